"""The JSON API under /api, described by /api/openapi.json."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Path
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool

from headtohead.web import settings_form as forms
from headtohead.web import training_process
from headtohead.web.live.experiment_state import MAX_SHOWN_ROWS
from headtohead.web.pages import experiments, start
from headtohead.web.settings_form import TrainingRequest
from headtohead.web.site import AppContextDep

router = APIRouter(
    prefix="/api",
    tags=["api"],
    responses={
        code: {"description": description, "content": {"application/json": {"schema": {"type": "object"}}}}
        for code, description in (
            (400, "malformed request"),
            (401, "missing or wrong token"),
            (403, "cross-site request"),
            (404, "no such experiment or model"),
            (408, "timeout while receiving the body"),
            (409, "conflicts with the current state"),
            (413, "body too large"),
            (414, "URL too long"),
            (421, "unknown host name"),
            (422, "invalid request; the response names the fields"),
            (503, "too many concurrent requests"),
        )
    },
)
ExperimentName = Annotated[str, Path(max_length=255, description="name of an experiment")]


class ExperimentRequest(BaseModel):
    """An experiment to train: a recipe and changes to it."""

    model_config = ConfigDict(extra="forbid")
    recipe: str = Field(max_length=200, description="recipe, or experiment file in the server's folder")
    settings: dict[Annotated[str, Field(max_length=200)], Annotated[str, Field(max_length=1500)]] = Field(
        default={}, max_length=100, description="values by setting, in TOML syntax: training.budget: 200 steps"
    )
    data: str | None = Field(default=None, max_length=500, description="replaces the corpus")
    quick: bool = False
    full: bool = Field(default=False, description="use the file's [full] table")

    def to_training_request(self, name: str = "") -> TrainingRequest:
        settings = tuple(f"{key}={value}" for key, value in self.settings.items())
        return TrainingRequest(self.recipe, name, settings, self.data or None, self.quick, self.full)


class NewExperimentRequest(ExperimentRequest):
    """An experiment to train, and its name."""

    name: str = Field(max_length=64)


class AddSeedsRequest(BaseModel):
    """The number of additional seeds to train for each variant."""

    model_config = ConfigDict(extra="forbid")
    num_seeds: int = Field(ge=1, le=experiments.MAX_ADDITIONAL_SEEDS)


class ActionResult(BaseModel):
    """The action taken on an experiment."""

    name: str
    action: str


@router.get("/experiments")
def list_experiments(context: AppContextDep) -> list[dict[str, Any]]:
    """Return the question, state and verdicts of every experiment."""
    return experiments.list_experiment_summaries(context)


@router.get("/experiments/{name}")
def get_experiment(name: ExperimentName, context: AppContextDep) -> dict[str, Any]:
    """Return the state of an experiment: trials, curves, verdicts and audits."""
    reader, state = experiments.read_experiment_state(context, name)
    findings = reader.read_findings()
    response: dict[str, Any] = _replace_non_finite_numbers(
        {
            **asdict(state),
            "summary": state.summary,
            "settings": experiments.list_changed_settings(reader.read_experiment()),
            "warnings": [warning.to_json() for warning in findings.warnings[:MAX_SHOWN_ROWS]],
            "verdicts": [verdict.to_dict() for verdict in findings.verdicts[:MAX_SHOWN_ROWS]],
            "audits": {name: [audit.to_dict() for audit in audits] for name, audits in reader.read_audits().items()},
        }
    )
    return response


def _replace_non_finite_numbers(value: Any) -> Any:
    """Replace NaN and infinity in a response of the API with null, because JSON cannot represent them."""
    if isinstance(value, dict):
        return {key: _replace_non_finite_numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_replace_non_finite_numbers(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@router.get("/recipes")
def list_recipes(context: AppContextDep) -> dict[str, dict[str, Any]]:
    """Return the recipes and experiment files that can be started."""
    return forms.list_recipes(context.experiment_files_folder)


@router.post("/estimates")
async def estimate_cost(body: ExperimentRequest, context: AppContextDep) -> dict[str, Any]:
    """Return the estimated cost of an experiment without saving anything."""
    return await start.estimate_cost(context, body.to_training_request())


@router.post("/experiments", status_code=201)
async def start_experiment(body: NewExperimentRequest, context: AppContextDep) -> ActionResult:
    """Start an experiment."""
    return ActionResult(
        name=await run_in_threadpool(start.start_requested_experiment, context, body.to_training_request(body.name)),
        action="started",
    )


@router.post("/experiments/{name}/stop")
def stop_experiment(name: ExperimentName, context: AppContextDep) -> ActionResult:
    """Stop an experiment. Its finished trials and checkpoints remain."""
    experiments.check_experiment_in_url(context, name)
    training_process.stop_training_process(context.experiment_folders.root, name)
    return ActionResult(name=name, action="stopping")


@router.post("/experiments/{name}/resume")
def resume_experiment(name: ExperimentName, context: AppContextDep) -> ActionResult:
    """Resume an experiment."""
    experiments.resume_training(context, name)
    return ActionResult(name=name, action="resumed")


@router.post("/experiments/{name}/seeds")
def add_seeds(name: ExperimentName, body: AddSeedsRequest, context: AppContextDep) -> ActionResult:
    """Train additional seeds for every variant."""
    num_seeds = experiments.train_additional_seeds(context, name, body.num_seeds)
    return ActionResult(name=name, action=f"training up to {num_seeds} seeds")
