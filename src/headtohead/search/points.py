"""The cells of a search as they are known from its folder: a small journal of what was decided, and the run folders.

RUNS/EXPERIMENT/search/
  journal.jsonl               which cell has which settings, what was given up, how long it took, who won
  cell-001/seed-1000/         a run of a search: trial.json, start.json, metrics.jsonl, scores, result.json; no model
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from headtohead.atomic_io import (
    CHECKSUM_KEY,
    append_jsonl,
    compute_checksum,
    has_valid_checksum,
    read_jsonl,
    write_bytes,
)
from headtohead.config import experiment
from headtohead.config.search import FIRST_SEARCH_SEED, SEARCH_FOLDER, SearchConfig, SettingValues
from headtohead.errors import RunFolderError
from headtohead.experiment import schemas
from headtohead.experiment.run_folder import SCHEMA_VERSION, Run
from headtohead.search.pruning import PruningDecision

JOURNAL_FILE = "journal.jsonl"
VALIDATION_SPLIT = "validation"
RETRYABLE_ERRORS = ("DiskFullError", "RunFolderError", "OSError", "PermissionError", "FileNotFoundError")
"""failures that are not the cell's own"""
PointStatus = Literal["finished", "pruned", "failed", "open"]


@dataclass
class SearchPoint:
    """One choice of settings, and what its seeds gave on validation data so far."""

    number: int
    settings: SettingValues
    seeds: int
    """how many it is to get"""
    figures: dict[int, float] = field(default_factory=dict)
    """seed: mean loss, or accuracy"""
    failure: str | None = None
    pruned: PruningDecision | None = None

    @property
    def name(self) -> str:
        return f"cell-{self.number + 1:03d}"

    @property
    def status(self) -> PointStatus:
        if self.failure is not None:
            return "failed"
        if self.pruned is not None:
            return "pruned"
        return "finished" if len(self.figures) >= self.seeds else "open"

    @property
    def budgeted_trials(self) -> int:
        """The trials that it takes of the budget: all that it may still need, or what it has had."""
        had = {"pruned": len(self.figures), "failed": len(self.figures) + 1}
        return had.get(self.status, self.seeds)

    def scores(self, metric: str) -> list[float]:
        """In the order of seeds, the higher the better."""
        sign = 1 if metric == "accuracy" else -1
        return [sign * self.figures[seed] for seed in sorted(self.figures)]


@dataclass
class SearchJournal:
    """What was decided, line by line. A line that a kill cut off does not count and is taken away."""

    folder: Path

    @property
    def path(self) -> Path:
        return self.folder / JOURNAL_FILE

    def lines(self, identity: str) -> list[dict[str, Any]]:
        """The lines so far, of this search and no other."""
        lines = read_journal_events(self.path)
        if lines and lines[0].get("identity") != identity:
            raise RunFolderError(f"{self.folder}: holds another search (its settings differ); give another --out")
        return lines

    def open(self, identity: str) -> list[dict[str, Any]]:
        """The same, ready to be continued."""
        self.folder.mkdir(parents=True, exist_ok=True)
        lines = self.lines(identity)
        write_bytes(self.path, b"".join(json.dumps(line).encode() + b"\n" for line in lines))
        if not lines:
            self.write("search", schema=SCHEMA_VERSION, identity=identity)
        return lines

    def write(self, event: str, **what: Any) -> None:
        line = {"event": event, **what}
        append_jsonl(self.path, {**line, CHECKSUM_KEY: compute_checksum(line)})


def read_journal_events(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a journal. Cells are numbered one after the other, and no line is about one to come."""
    lines = read_jsonl(path)
    known = 0
    for number, line in enumerate(lines, start=1):
        place, event = Path(f"{path}, line {number}"), line.get("event")
        if not isinstance(event, str) or event not in schemas.EVENT_SCHEMAS:
            raise RunFolderError(
                f"{place}: is damaged (an event {event!r}; there are: {', '.join(schemas.EVENT_SCHEMAS)})"
            )
        schemas.validate(line, schemas.EVENT_SCHEMAS[event], place)
        if not has_valid_checksum(line):
            raise RunFolderError(f"{place}: is damaged (its checksum does not agree)")
        if event == "cell" and line["cell"] == known:
            known += 1
        elif event in ("cell", "pruned", "winner") and line["cell"] >= known:
            raise RunFolderError(f"{place}: is damaged (cell {line['cell']} comes before it was chosen)")
    return lines


def compute_search_identity(experiment: experiment.Experiment) -> str:
    """Hash of all that a search's figures depend on; its budget is not among it."""
    assert experiment.search is not None
    kept = [experiment.identity(), experiment.search.model_dump(mode="json", exclude={"budget"})]
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:16]


def dump_budget(search: SearchConfig) -> dict[str, Any] | None:
    return search.budget.model_dump(mode="json") if search.budget else None


def read_winner_settings(experiment: experiment.Experiment, experiment_folder: Path) -> SettingValues | None:
    """The settings of the winner, if the search has ended; it stays the winner."""
    assert experiment.search is not None
    folder = get_search_folder(experiment_folder)
    lines = SearchJournal(folder).lines(compute_search_identity(experiment))
    ended = find_winner_event(lines)
    if ended is None:
        return None
    if ended["budget"] != dump_budget(experiment.search):
        raise RunFolderError(
            f"{folder}: this search has ended with the budget {ended['budget']}, and its winner was tested; "
            "a longer search needs another --out"
        )
    settings: SettingValues = next(
        line["settings"] for line in lines if line["event"] == "cell" and line["cell"] == ended["cell"]
    )
    return settings


def find_winner_event(events: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    return next((line for line in events if line["event"] == "winner"), None)


def read_elapsed_seconds(events: Sequence[dict[str, Any]]) -> float:
    """How long the search has taken, breaks left out."""
    return max((float(line["seconds"]) for line in events if line["event"] == "trial"), default=0.0)


def load_points(
    search_folder: Path, search: SearchConfig, events: Sequence[dict[str, Any]], metric: str
) -> list[SearchPoint]:
    """The cells of the journal with the figures of their runs."""
    cells = [SearchPoint(line["cell"], line["settings"], search.seeds) for line in events if line["event"] == "cell"]
    for line in events:
        if line["event"] == "pruned":
            cells[line["cell"]].pruned = PruningDecision(**line["why"])
    for cell in cells:
        for seed in range(FIRST_SEARCH_SEED, FIRST_SEARCH_SEED + search.seeds):
            record_run(cell, seed, Run(search_folder / cell.name / f"seed-{seed}"), metric)
    return cells


def record_run(point: SearchPoint, seed: int, run: Run, metric: str) -> None:
    """Write down how a run ended, if it has."""
    if run.is_finished:
        with schemas.report_inconsistent_data(run.folder / "result.json"):
            found = run.result["scores"][VALIDATION_SPLIT]
            point.figures[seed] = float(found["accuracy" if metric == "accuracy" else "loss"])
    elif (run.folder / "failure.json").is_file():
        failure = schemas.read_validated(run.folder / "failure.json", schemas.FailureFile)
        if failure.get("kind") not in RETRYABLE_ERRORS:
            point.failure = f"seed {seed}: {failure['message']}"


def list_finished_runs(experiment_folder: Path) -> list[tuple[str, Run]]:
    """Where each finished run of the search lies, and the run."""
    found = sorted(get_search_folder(experiment_folder).glob("cell-*/seed-*/result.json"))
    return [(str(path.parent.relative_to(experiment_folder)), Run(path.parent)) for path in found]


def select_best(points: Sequence[SearchPoint], metric: str) -> SearchPoint | None:
    """The highest mean on validation data among the cells with all their seeds; if none has them, with the most."""
    scored = [cell for cell in points if cell.figures and cell.status in ("finished", "open")]
    most = max((len(cell.figures) for cell in scored), default=0)
    whole = [cell for cell in scored if len(cell.figures) == most]
    return max(whole, key=lambda cell: compute_mean(cell.scores(metric)), default=None)


def compute_mean(scores: Sequence[float]) -> float:
    return sum(scores) / len(scores)


def dump_pruning_decision(decision: PruningDecision) -> dict[str, Any]:
    return asdict(decision)


def get_search_folder(experiment_folder: Path) -> Path:
    return experiment_folder / SEARCH_FOLDER
