"""The journal events of a hyperparameter search, and the section of findings.json about the search."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, ConfigDict, JsonValue

from headtohead.config.budget import SearchBudget
from headtohead.config.tables.search import PruningConfig, SearchDimension
from headtohead.experiment.schemas.base import Interval, NonNegativeInt, Pair, Record, SeedScore, VersionedRecord


class SearchStartEvent(VersionedRecord):
    """A search began"""

    event: Literal["search"] = "search"
    identity: str
    """hash of all inputs that determine the results of the search, except its budget"""


class PointEvent(Record):
    """A point of the search space was chosen"""

    event: Literal["point"] = "point"
    point: NonNegativeInt
    """number of the point, from 0"""
    settings: dict[str, JsonValue]
    """value of each setting"""


class PruningDecision(Record):
    """Why a point was pruned, on the scale of its scores"""

    model_config = ConfigDict(extra="forbid")
    deficit: float
    """difference to the better point"""
    threshold: float
    """difference that noise explains"""
    seeds: NonNegativeInt
    """seeds of the point at that time"""


class PrunedEvent(Record):
    """A point gets no more seeds"""

    event: Literal["pruned"] = "pruned"
    point: NonNegativeInt
    """number of the point"""
    decision: PruningDecision
    """why the point was pruned"""


class TrialEvent(Record):
    """A trial ended"""

    event: Literal["trial"] = "trial"
    point: NonNegativeInt = 0
    """number of the point"""
    seed: int = 0
    """seed of the trial"""
    seconds: float
    """duration of the search up to the end of the trial"""


class WinnerEvent(Record):
    """The search ended"""

    event: Literal["winner"] = "winner"
    point: NonNegativeInt
    """number of the best point"""
    budget: SearchBudget | None
    """budget of the search"""


class SearchPointResult(Record):
    """One point of the search space with its scores on validation data"""

    point: NonNegativeInt
    """number of the point, from 0"""
    name: str
    """name of its folder"""
    settings: dict[str, JsonValue]
    """value of each setting"""
    status: Literal["finished", "pruned", "failed", "unfinished"]
    """finished: all seeds were trained"""
    scores: list[SeedScore]
    """score of each seed"""
    mean: float | None
    """mean over seeds; null without seeds"""
    interval: Interval | None
    """95 % interval over seeds, from the pooled standard deviation"""
    message: str
    """error message, if it failed"""


class SettingEffect(Record):
    """Effect of one value of a setting, averaged over the other settings"""

    value: str
    """the value, or a range of values"""
    points: NonNegativeInt
    """number of points with it"""
    mean: float
    """mean score"""
    interval: Interval | None
    """95 % interval"""


class SearchHistoryEntry(Record):
    """The search after one more point"""

    trials: NonNegativeInt
    """trials so far"""
    point: NonNegativeInt
    """number of the point"""
    mean: float
    """mean score of the point"""
    best: float
    """best mean score so far"""


class SelectionBias(Record):
    """How much of the winner's lead in the search was due to selecting the best of many points"""

    search: float
    """the winner's score in the search"""
    fresh: float
    """the winner's score with seeds that the search did not use"""
    baseline: float
    """the baseline's score with the same seeds"""
    lead: float
    """the winner's lead in the search"""
    kept: float
    """the winner's lead with fresh seeds"""
    bias: float
    """the part of the lead in the search that fresh seeds do not confirm"""
    interval: Interval | None
    """95 % interval of the bias"""
    seeds: Pair
    """seeds in the search, and fresh seeds"""


def convert_lists_to_tuples(space: object) -> object:
    """Return the space with tuples for lists: settings are immutable, and JSON has lists only."""
    if not isinstance(space, dict):
        return space
    return {name: tuple(values) if isinstance(values, list) else values for name, values in space.items()}


class SearchFindings(Record):
    """A hyperparameter search"""

    method: str
    """grid, random or tpe"""
    space: Annotated[dict[str, SearchDimension], BeforeValidator(convert_lists_to_tuples)]
    """values of each setting"""
    seeds: NonNegativeInt
    """seeds per point"""
    budget: SearchBudget | None
    """limit of the search"""
    prune: PruningConfig | None
    """pruning rule"""
    grid_size: NonNegativeInt | None
    """points in the grid"""
    trials: NonNegativeInt
    """trials that were run"""
    seconds: float
    """duration"""
    seed_std: float | None
    """standard deviation of one seed, pooled over points"""
    winner: NonNegativeInt
    """number of the winning point"""
    points: list[SearchPointResult]
    """all points"""
    effects: dict[str, list[SettingEffect]]
    """effect of each setting"""
    history: list[SearchHistoryEntry]
    """best score over time"""
    selection_bias: SelectionBias | None
    """how much of the winner's lead remained with fresh seeds"""
    checksums: dict[str, str]
    """SHA-256 of each result.json"""
