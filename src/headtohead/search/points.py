"""The points of a search, read from its journal and run folders.

RUNS/EXPERIMENT/
  journal.jsonl                      among others: settings of each point, pruning decisions, elapsed time, the winner
  search/point-001/seed-1000/        a run: trial.json, start.json, metrics.jsonl, scores, result.json; no weights
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from headtohead.config import experiment
from headtohead.config.search import FIRST_SEARCH_SEED, SEARCH_FOLDER, SearchBudget, SearchConfig, SettingValues
from headtohead.errors import RunFolderError
from headtohead.experiment.journal import Journal
from headtohead.experiment.run_folder import Run
from headtohead.experiment.schemas import (
    JournalEvent,
    PointEvent,
    PrunedEvent,
    PruningDecision,
    SearchStartEvent,
    TrialEvent,
    WinnerEvent,
    report_inconsistent_data,
)

VALIDATION_SPLIT = "validation"
RETRYABLE_ERRORS = ("DiskFullError", "RunFolderError", "OSError", "PermissionError", "FileNotFoundError")
"""failures that do not depend on the point's settings"""
PointStatus = Literal["finished", "pruned", "failed", "open"]


@dataclass
class SearchPoint:
    """One choice of settings, with its validation scores so far."""

    number: int
    settings: SettingValues
    seeds: int
    """the number of seeds to train"""
    seed_scores: dict[int, float] = field(default_factory=dict)
    """by seed: validation accuracy, or loss for other metrics"""
    failure: str | None = None
    pruned: PruningDecision | None = None

    @property
    def name(self) -> str:
        return f"point-{self.number + 1:03d}"

    @property
    def status(self) -> PointStatus:
        """ "failed", "pruned", "finished" if all seeds are done, otherwise "open"."""
        if self.failure is not None:
            return "failed"
        if self.pruned is not None:
            return "pruned"
        return "finished" if len(self.seed_scores) >= self.seeds else "open"

    @property
    def budgeted_trials(self) -> int:
        """Number of trials that the point counts against the budget, including those it may still need."""
        trials_by_status = {"pruned": len(self.seed_scores), "failed": len(self.seed_scores) + 1}
        return trials_by_status.get(self.status, self.seeds)

    def scores(self, metric: str) -> list[float]:
        """Return the scores in seed order; higher is better."""
        sign = 1 if metric == "accuracy" else -1
        return [sign * self.seed_scores[seed] for seed in sorted(self.seed_scores)]


def read_search_events(journal: Journal, identity: str | None = None) -> list[JournalEvent]:
    """Return the events from the start of the search on.

    Points are numbered in order, and no event refers to a later point. With `identity`, raise RunFolderError if the
    events belong to a different search.
    """
    events = journal.read()
    first = next((index for index, event in enumerate(events) if isinstance(event, SearchStartEvent)), len(events))
    num_points = 0
    for number, event in enumerate(events, start=1):
        if isinstance(event, PointEvent) and event.point == num_points:
            num_points += 1
        elif isinstance(event, PointEvent | PrunedEvent | WinnerEvent) and event.point >= num_points:
            raise RunFolderError(
                f"{journal.path}, line {number} is corrupted: point {event.point} is used before it was chosen"
            )
        elif isinstance(event, SearchStartEvent) and identity not in (None, event.identity):
            raise RunFolderError(
                f"{journal.folder} contains another search (its settings differ); choose another --out"
            )
    return events[first:]


def open_search(journal: Journal, identity: str) -> list[JournalEvent]:
    """Return the events of the search so far; record its start if there are none."""
    events = read_search_events(journal, identity)
    if not events:
        journal.append(SearchStartEvent(identity=identity))
    return events


def compute_search_identity(experiment: experiment.Experiment) -> str:
    """Return a hash of everything that a search's scores depend on, which excludes its budget."""
    assert experiment.search is not None
    identity_fields = [experiment.identity(), experiment.search.model_dump(mode="json", exclude={"budget"})]
    return hashlib.sha256(json.dumps(identity_fields, sort_keys=True).encode()).hexdigest()[:16]


def read_winner_settings(experiment: experiment.Experiment, experiment_folder: Path) -> SettingValues | None:
    """Return the winner's settings, or None if the search has not ended. The winner never changes."""
    assert experiment.search is not None
    events = read_search_events(Journal(experiment_folder), compute_search_identity(experiment))
    winner = find_winner_event(events)
    if winner is None:
        return None
    if winner.budget != experiment.search.budget:
        raise RunFolderError(
            f"{experiment_folder}: this search ended with the budget {_format_budget(winner.budget)}, and its winner "
            "was tested; choose another --out for a longer search"
        )
    return next(event.settings for event in events if isinstance(event, PointEvent) and event.point == winner.point)


def _format_budget(budget: SearchBudget | None) -> str:
    limits = budget.model_dump(exclude_none=True) if budget else {}
    return ", ".join(f"{name} = {limit}" for name, limit in limits.items()) or "none"


def find_winner_event(events: Sequence[JournalEvent]) -> WinnerEvent | None:
    """Return the event that names the winner, or None."""
    return next((event for event in events if isinstance(event, WinnerEvent)), None)


def read_elapsed_seconds(events: Sequence[JournalEvent]) -> float:
    """Return the duration of the search, excluding interruptions."""
    return max((event.seconds for event in events if isinstance(event, TrialEvent)), default=0.0)


def load_points(
    search_folder: Path, search: SearchConfig, events: Sequence[JournalEvent], metric: str
) -> list[SearchPoint]:
    """Return the points in the journal with their runs' scores."""
    points = [
        SearchPoint(event.point, event.settings, search.seeds) for event in events if isinstance(event, PointEvent)
    ]
    for event in events:
        if isinstance(event, PrunedEvent):
            points[event.point].pruned = event.decision
    for point in points:
        for seed in range(FIRST_SEARCH_SEED, FIRST_SEARCH_SEED + search.seeds):
            record_run(point, seed, Run(search_folder / point.name / f"seed-{seed}"), metric)
    return points


def record_run(point: SearchPoint, seed: int, run: Run, metric: str) -> None:
    """Record the outcome of a run, if it has ended."""
    if run.is_finished:
        with report_inconsistent_data(run.folder / "result.json"):
            value = run.result.scores[VALIDATION_SPLIT].get_metric("accuracy" if metric == "accuracy" else "loss")
            if value is None:
                raise ValueError(f"no {metric} on validation data")
            point.seed_scores[seed] = value
    elif (failure := run.failure) is not None and failure.kind not in RETRYABLE_ERRORS:
        point.failure = f"seed {seed}: {failure.message}"


def list_finished_runs(experiment_folder: Path) -> list[tuple[str, Run]]:
    """Return a search's finished runs with their paths relative to the experiment folder."""
    paths = sorted(get_search_folder(experiment_folder).glob("point-*/seed-*/result.json"))
    return [(str(path.parent.relative_to(experiment_folder)), Run(path.parent)) for path in paths]


def select_best(points: Sequence[SearchPoint], metric: str) -> SearchPoint | None:
    """Return the point with the best validation mean among those with all their seeds, or else with the most seeds."""
    scored_points = [point for point in points if point.seed_scores and point.status in ("finished", "open")]
    num_seeds = max((len(point.seed_scores) for point in scored_points), default=0)
    candidates = [point for point in scored_points if len(point.seed_scores) == num_seeds]
    return max(candidates, key=lambda point: compute_mean(point.scores(metric)), default=None)


def compute_mean(scores: Sequence[float]) -> float:
    return sum(scores) / len(scores)


def get_search_folder(experiment_folder: Path) -> Path:
    return experiment_folder / SEARCH_FOLDER
