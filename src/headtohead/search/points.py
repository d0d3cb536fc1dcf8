"""The points of a search: their settings from its journal, their scores from their run folders.

RUNS/EXPERIMENT/
  journal.jsonl                      among others: settings of each point, pruning decisions, elapsed time, the winner
  search/point-001/seed-1000/        a run: trial.json, start.json, metrics.jsonl, scores, result.json; no weights
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from headtohead.config.tables.search import FIRST_SEARCH_SEED, SEARCH_FOLDER, SearchConfig, SettingValues
from headtohead.experiment.run_folder import Run
from headtohead.experiment.schemas import (
    JournalEvent,
    PointEvent,
    PrunedEvent,
    PruningDecision,
    translate_inconsistent_files_error,
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
    num_seeds: int
    """number of seeds to train"""
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
        return "finished" if len(self.seed_scores) >= self.num_seeds else "open"

    @property
    def num_budgeted_trials(self) -> int:
        """Number of trials that the point counts against the budget, including those it may still need."""
        trials_by_status = {"pruned": len(self.seed_scores), "failed": len(self.seed_scores) + 1}
        return trials_by_status.get(self.status, self.num_seeds)

    def get_scores(self, metric: str) -> list[float]:
        """Return the scores in seed order, negated for losses so that higher is better."""
        sign = 1 if metric == "accuracy" else -1
        return [sign * self.seed_scores[seed] for seed in sorted(self.seed_scores)]


def load_points(
    search_folder: Path, search: SearchConfig, events: Sequence[JournalEvent], metric: str
) -> list[SearchPoint]:
    """Return the points that the journal's events name, with the scores of their runs."""
    points = [
        SearchPoint(event.point, event.settings, search.seeds) for event in events if isinstance(event, PointEvent)
    ]
    for event in events:
        if isinstance(event, PrunedEvent):
            points[event.point].pruned = event.decision
    for point in points:
        for seed in range(FIRST_SEARCH_SEED, FIRST_SEARCH_SEED + search.seeds):
            record_run_outcome(point, seed, Run(search_folder / point.name / f"seed-{seed}"), metric)
    return points


def record_run_outcome(point: SearchPoint, seed: int, run: Run, metric: str) -> None:
    """Add the score or the failure of a run to its point, if the run has ended."""
    if run.is_finished:
        with translate_inconsistent_files_error(run.folder / "result.json"):
            score = run.result.scores[VALIDATION_SPLIT].get_metric("accuracy" if metric == "accuracy" else "loss")
            if score is None:
                raise ValueError(f"no {metric} on validation data")
            point.seed_scores[seed] = score
    elif (failure := run.failure) is not None and failure.kind not in RETRYABLE_ERRORS:
        point.failure = f"seed {seed}: {failure.message}"


def list_finished_search_runs(experiment_folder: Path) -> list[tuple[str, Run]]:
    """Return a search's finished runs with their paths relative to the experiment folder."""
    paths = sorted(get_search_folder(experiment_folder).glob("point-*/seed-*/result.json"))
    return [(str(path.parent.relative_to(experiment_folder)), Run(path.parent)) for path in paths]


def select_best_point(points: Sequence[SearchPoint], metric: str) -> SearchPoint | None:
    """Return the point with the best validation mean among those with all their seeds, or else with the most seeds."""
    scored_points = [point for point in points if point.seed_scores and point.status in ("finished", "open")]
    num_seeds = max((len(point.seed_scores) for point in scored_points), default=0)
    candidates = [point for point in scored_points if len(point.seed_scores) == num_seeds]
    return max(candidates, key=lambda point: compute_mean(point.get_scores(metric)), default=None)


def compute_mean(scores: Sequence[float]) -> float:
    return sum(scores) / len(scores)


def get_search_folder(experiment_folder: Path) -> Path:
    """Return the folder with the run folders of a search."""
    return experiment_folder / SEARCH_FOLDER
