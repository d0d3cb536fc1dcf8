"""The points of a search, read from its journal and run folders.

RUNS/EXPERIMENT/search/
  journal.jsonl               settings of each point, pruning decisions, elapsed time, the winner
  point-001/seed-1000/        a run: trial.json, start.json, metrics.jsonl, scores, result.json; no weights
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import JsonValue

from headtohead.atomic_io import (
    CHECKSUM_KEY,
    append_jsonl,
    compute_checksum,
    has_valid_checksum,
    read_jsonl,
    write_bytes,
)
from headtohead.config import experiment
from headtohead.config.search import FIRST_SEARCH_SEED, SEARCH_FOLDER, SearchBudget, SearchConfig, SettingValues
from headtohead.errors import RunFolderError
from headtohead.experiment.run_folder import Run
from headtohead.experiment.schemas import (
    JournalEvent,
    PointEvent,
    PrunedEvent,
    PruningDecision,
    Record,
    SearchStartEvent,
    TrialEvent,
    WinnerEvent,
    report_inconsistent_data,
    validate_record,
)

JOURNAL_FILE = "journal.jsonl"
VALIDATION_SPLIT = "validation"
RETRYABLE_ERRORS = ("DiskFullError", "RunFolderError", "OSError", "PermissionError", "FileNotFoundError")
"""failures that do not depend on the settings of the point"""
PointStatus = Literal["finished", "pruned", "failed", "open"]


@dataclass
class SearchPoint:
    """One choice of settings, with its validation scores so far."""

    number: int
    settings: SettingValues
    seeds: int
    """number of seeds to train"""
    figures: dict[int, float] = field(default_factory=dict)
    """by seed: validation accuracy, or loss for other metrics"""
    failure: str | None = None
    pruned: PruningDecision | None = None

    @property
    def name(self) -> str:
        return f"point-{self.number + 1:03d}"

    @property
    def status(self) -> PointStatus:
        """ "failed", "pruned", "finished" with all seeds, else "open"."""
        if self.failure is not None:
            return "failed"
        if self.pruned is not None:
            return "pruned"
        return "finished" if len(self.figures) >= self.seeds else "open"

    @property
    def budgeted_trials(self) -> int:
        """Number of trials that the point takes from the budget, including those it may still need."""
        trials_by_status = {"pruned": len(self.figures), "failed": len(self.figures) + 1}
        return trials_by_status.get(self.status, self.seeds)

    def scores(self, metric: str) -> list[float]:
        """Return the scores in the order of their seeds; higher is better."""
        sign = 1 if metric == "accuracy" else -1
        return [sign * self.figures[seed] for seed in sorted(self.figures)]


@dataclass
class SearchJournal:
    """The decisions of a search, one JSON line each. An incomplete last line is ignored and removed."""

    folder: Path

    @property
    def path(self) -> Path:
        return self.folder / JOURNAL_FILE

    def read_events(self, identity: str) -> list[JournalEvent]:
        """Return the events so far; raise RunFolderError if they belong to another search."""
        events = read_journal_events(self.path)
        if events and (not isinstance(events[0], SearchStartEvent) or events[0].identity != identity):
            raise RunFolderError(f"{self.folder} contains another search (its settings differ); choose another --out")
        return events

    def open(self, identity: str) -> list[JournalEvent]:
        """Return the events so far, and prepare the journal for further ones."""
        self.folder.mkdir(parents=True, exist_ok=True)
        events = self.read_events(identity)
        write_bytes(self.path, b"".join(json.dumps(_seal_event(event)).encode() + b"\n" for event in events))
        if not events:
            self.write(SearchStartEvent(identity=identity))
        return events

    def write(self, event: Record) -> None:
        """Append an event."""
        append_jsonl(self.path, _seal_event(event))


def _seal_event(event: Record) -> dict[str, JsonValue]:
    """Return an event as JSON with its checksum."""
    line = event.to_json()
    return {**line, CHECKSUM_KEY: compute_checksum(line)}


def read_journal_events(path: Path) -> list[JournalEvent]:
    """Return the complete lines of a journal. Points are numbered in order; no event refers to a later point."""
    events: list[JournalEvent] = []
    num_points = 0
    for number, line in enumerate(read_jsonl(path), start=1):
        location = f"{path}, line {number}"
        event: JournalEvent = validate_record(line, JournalEvent, location)  # type: ignore[arg-type]
        if not has_valid_checksum(line):
            raise RunFolderError(f"{location} is corrupted: checksum mismatch")
        if isinstance(event, PointEvent) and event.point == num_points:
            num_points += 1
        elif isinstance(event, PointEvent | PrunedEvent | WinnerEvent) and event.point >= num_points:
            raise RunFolderError(f"{location} is corrupted: point {event.point} is used before it was chosen")
        events.append(event)
    return events


def compute_search_identity(experiment: experiment.Experiment) -> str:
    """Return a hash of everything that the scores of a search depend on, which excludes its budget."""
    assert experiment.search is not None
    identity_fields = [experiment.identity(), experiment.search.model_dump(mode="json", exclude={"budget"})]
    return hashlib.sha256(json.dumps(identity_fields, sort_keys=True).encode()).hexdigest()[:16]


def read_winner_settings(experiment: experiment.Experiment, experiment_folder: Path) -> SettingValues | None:
    """Return the settings of the winner; None if the search has not ended. The winner never changes."""
    assert experiment.search is not None
    folder = get_search_folder(experiment_folder)
    events = SearchJournal(folder).read_events(compute_search_identity(experiment))
    winner = find_winner_event(events)
    if winner is None:
        return None
    if winner.budget != experiment.search.budget:
        raise RunFolderError(
            f"{folder}: this search ended with the budget {_format_budget(winner.budget)}, and its winner was tested; "
            "choose another --out for a longer search"
        )
    return next(event.settings for event in events if isinstance(event, PointEvent) and event.point == winner.point)


def _format_budget(budget: SearchBudget | None) -> str:
    limits = budget.model_dump(exclude_none=True) if budget else {}
    return ", ".join(f"{name} = {limit}" for name, limit in limits.items()) or "none"


def find_winner_event(events: Sequence[JournalEvent]) -> WinnerEvent | None:
    """Return the event that names the winner, or None."""
    return next((event for event in events if isinstance(event, WinnerEvent)), None)


def read_elapsed_seconds(events: Sequence[JournalEvent]) -> float:
    """Return the duration of the search, without interruptions."""
    return max((event.seconds for event in events if isinstance(event, TrialEvent)), default=0.0)


def load_points(
    search_folder: Path, search: SearchConfig, events: Sequence[JournalEvent], metric: str
) -> list[SearchPoint]:
    """Return the points of the journal with the scores of their runs."""
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
            point.figures[seed] = value
    elif (failure := run.failure) is not None and failure.kind not in RETRYABLE_ERRORS:
        point.failure = f"seed {seed}: {failure.message}"


def list_finished_runs(experiment_folder: Path) -> list[tuple[str, Run]]:
    """Return the finished runs of a search with their paths relative to the experiment's folder."""
    paths = sorted(get_search_folder(experiment_folder).glob("point-*/seed-*/result.json"))
    return [(str(path.parent.relative_to(experiment_folder)), Run(path.parent)) for path in paths]


def select_best(points: Sequence[SearchPoint], metric: str) -> SearchPoint | None:
    """Return the point with the best validation mean among those with all their seeds, or else with the most seeds."""
    scored = [point for point in points if point.figures and point.status in ("finished", "open")]
    num_seeds = max((len(point.figures) for point in scored), default=0)
    candidates = [point for point in scored if len(point.figures) == num_seeds]
    return max(candidates, key=lambda point: compute_mean(point.scores(metric)), default=None)


def compute_mean(scores: Sequence[float]) -> float:
    return sum(scores) / len(scores)


def get_search_folder(experiment_folder: Path) -> Path:
    return experiment_folder / SEARCH_FOLDER
