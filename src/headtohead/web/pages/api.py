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
from headtohead.web.settings_form import Asked
from headtohead.web.site import Site, site_of

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
Here = Annotated[Site, Depends(site_of)]
Name = Annotated[str, Path(max_length=255, description="an experiment's name, as the list gives it")]


class Wanted(BaseModel):
    """What is to be trained."""

    model_config = ConfigDict(extra="forbid")
    recipe: str = Field(max_length=200, description="a recipe, or an experiment file of the server's folder")
    settings: dict[Annotated[str, Field(max_length=200)], Annotated[str, Field(max_length=1500)]] = Field(
        default={}, max_length=100, description="setting: value as TOML, as in training.steps: 200"
    )
    data: str | None = Field(default=None, max_length=500, description="another corpus")
    quick: bool = False
    full: bool = Field(default=False, description="the file's [full] setting, where it has one")

    def asked(self, name: str = "") -> Asked:
        settings = tuple(f"{key}={value}" for key, value in self.settings.items())
        return Asked(self.recipe, name, settings, self.data or None, self.quick, self.full)


class NewExperiment(Wanted):
    """What is to be trained, and what it is to be called."""

    name: str = Field(max_length=64)


class MoreSeeds(BaseModel):
    """How many seeds more for each variant."""

    model_config = ConfigDict(extra="forbid")
    add: int = Field(ge=1, le=experiments.MOST_SEEDS)


class Done(BaseModel):
    """What was done, and to which experiment."""

    name: str
    did: str


@router.get("/experiments")
def list_experiments(site: Here) -> list[dict[str, Any]]:
    """Every experiment: question, state, verdicts."""
    return experiments.listed(site)


@router.get("/experiments/{name}")
def get_experiment(name: Name, site: Here) -> dict[str, Any]:
    """The state of one: every trial, the curves so far, the verdicts if there are any."""
    reader, live = experiments.read(site, name)
    found: dict[str, Any] = _plain(
        {
            **asdict(live),
            "summary": live.summary,
            "settings": experiments.settings_of(reader.about()),
            "verdicts": reader.findings().get("verdicts", []),
            "audits": reader.audits(),
        }
    )
    return found


def _plain(value: Any) -> Any:
    """Without the figures that JSON does not have."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@router.get("/recipes")
def list_recipes(site: Here) -> dict[str, dict[str, Any]]:
    """What can be started."""
    return forms.choices(site.files)


@router.post("/estimates")
async def estimate(wanted: Wanted, site: Here, costs: start.Costs) -> dict[str, Any]:
    """What a training would cost; nothing is trained and nothing is kept."""
    return await start.cost(site, costs, wanted.asked())


@router.post("/experiments", status_code=201)
async def start_experiment(wanted: NewExperiment, site: Here) -> Done:
    """Start one."""
    return Done(name=await run_in_threadpool(start.begin, site, wanted.asked(wanted.name)), did="started")


@router.post("/experiments/{name}/stop")
def stop_experiment(name: Name, site: Here) -> Done:
    """Stop it; what was trained is kept."""
    training_process.stop(site.folders.root, experiments.exists(site, name))
    return Done(name=name, did="asked to stop")


@router.post("/experiments/{name}/resume")
def resume_experiment(name: Name, site: Here) -> Done:
    """Go on with it."""
    site.folders.find(name)
    training_process.resume(site.folders.root, name)
    return Done(name=name, did="resumed")


@router.post("/experiments/{name}/seeds")
def add_seeds(name: Name, more: MoreSeeds, site: Here) -> Done:
    """Train more seeds of every variant."""
    seeds = experiments.more_seeds(site, name, more.add)
    return Done(name=name, did=f"training until there are {seeds} seeds")
