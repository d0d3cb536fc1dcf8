"""The same for programs: JSON under /api, described by /api/openapi.json."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool

from headtohead.web import settings_form as forms
from headtohead.web import training_process
from headtohead.web.pages import experiments, start
from headtohead.web.settings_form import TrainingRequest
from headtohead.web.site import AppContext, get_app_context

router = APIRouter(
    prefix="/api",
    tags=["api"],
    responses={
        code: {"description": words, "content": {"application/json": {"schema": {"type": "object"}}}}
        for code, words in (
            (400, "a request that cannot be read"),
            (401, "without the token"),
            (403, "asked for by another site"),
            (404, "no such experiment"),
            (408, "the body took too long"),
            (409, "not now"),
            (413, "too large"),
            (414, "too long an address"),
            (421, "another server's name"),
            (422, "what is wrong, and where"),
            (503, "too many requests at once"),
        )
    },
)
AppContextDep = Annotated[AppContext, Depends(get_app_context)]
ExperimentName = Annotated[str, Path(max_length=255, description="an experiment's name, as the list gives it")]


class ExperimentRequest(BaseModel):
    """What is to be trained."""

    model_config = ConfigDict(extra="forbid")
    recipe: str = Field(max_length=200, description="a recipe, or an experiment file of the server's folder")
    settings: dict[Annotated[str, Field(max_length=200)], Annotated[str, Field(max_length=1500)]] = Field(
        default={}, max_length=100, description="setting: value as TOML, as in training.steps: 200"
    )
    data: str | None = Field(default=None, max_length=500, description="another corpus")
    quick: bool = False
    full: bool = Field(default=False, description="the file's [full] setting, where it has one")

    def asked(self, name: str = "") -> TrainingRequest:
        settings = tuple(f"{key}={value}" for key, value in self.settings.items())
        return TrainingRequest(self.recipe, name, settings, self.data or None, self.quick, self.full)


class NewExperimentRequest(ExperimentRequest):
    """What is to be trained, and what it is to be called."""

    name: str = Field(max_length=64)


class AddSeedsRequest(BaseModel):
    """How many seeds more for each variant."""

    model_config = ConfigDict(extra="forbid")
    add: int = Field(ge=1, le=experiments.MAX_ADDITIONAL_SEEDS)


class ActionResult(BaseModel):
    """What was done, and to which experiment."""

    name: str
    did: str


@router.get("/experiments")
def list_experiments(context: AppContextDep) -> list[dict[str, Any]]:
    """Every experiment: question, state, verdicts."""
    return experiments.list_experiment_summaries(context)


@router.get("/experiments/{name}")
def get_experiment(name: ExperimentName, context: AppContextDep) -> dict[str, Any]:
    """The state of one: every trial, the curves so far, the verdicts if there are any."""
    reader, live = experiments.read_experiment_state(context, name)
    found: dict[str, Any] = _replace_non_finite(
        {
            **asdict(live),
            "summary": live.summary,
            "settings": experiments.list_changed_settings(reader.about()),
            "verdicts": reader.findings().get("verdicts", []),
            "audits": reader.audits(),
        }
    )
    return found


def _replace_non_finite(value: Any) -> Any:
    """Without the figures that JSON does not have."""
    if isinstance(value, dict):
        return {key: _replace_non_finite(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_replace_non_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@router.get("/recipes")
def list_recipes(context: AppContextDep) -> dict[str, dict[str, Any]]:
    """What can be started."""
    return forms.list_recipes(context.files)


@router.post("/estimates")
async def estimate_cost(
    body: ExperimentRequest, context: AppContextDep, estimator: start.EstimatorDep
) -> dict[str, Any]:
    """What a training would cost; nothing is trained and nothing is kept."""
    return await start.estimate_cost(context, estimator, body.asked())


@router.post("/experiments", status_code=201)
async def start_experiment(body: NewExperimentRequest, context: AppContextDep) -> ActionResult:
    """Start one."""
    return ActionResult(
        name=await run_in_threadpool(start.start_experiment, context, body.asked(body.name)), did="started"
    )


@router.post("/experiments/{name}/stop")
def stop_experiment(name: ExperimentName, context: AppContextDep) -> ActionResult:
    """Stop it; what was trained is kept."""
    training_process.stop(context.folders.root, experiments.validate_experiment_name(context, name))
    return ActionResult(name=name, did="asked to stop")


@router.post("/experiments/{name}/resume")
def resume_experiment(name: ExperimentName, context: AppContextDep) -> ActionResult:
    """Go on with it."""
    context.folders.find(name)
    training_process.resume(context.folders.root, name)
    return ActionResult(name=name, did="resumed")


@router.post("/experiments/{name}/seeds")
def add_seeds(name: ExperimentName, body: AddSeedsRequest, context: AppContextDep) -> ActionResult:
    """Train more seeds of every variant."""
    seeds = experiments.train_additional_seeds(context, name, body.add)
    return ActionResult(name=name, did=f"training until there are {seeds} seeds")
