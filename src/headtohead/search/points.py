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

from headtohead.atomic_io import SEAL, append_line, is_as_written, read_lines, seal_of, write_bytes
from headtohead.config import experiment
from headtohead.config.search import FIRST_SEED, FOLDER, Search, Settings
from headtohead.errors import RunFolderError
from headtohead.experiment import schemas
from headtohead.experiment.run_folder import SCHEMA, Run
from headtohead.search.pruning import Pruned

JOURNAL = "journal.jsonl"
VALIDATION = "validation"
TRY_AGAIN = ("DiskFullError", "RunFolderError", "OSError", "PermissionError", "FileNotFoundError")
"""failures that are not the cell's own"""
Status = Literal["finished", "pruned", "failed", "open"]


@dataclass
class Cell:
    """One choice of settings, and what its seeds gave on validation data so far."""

    number: int
    settings: Settings
    seeds: int
    """how many it is to get"""
    figures: dict[int, float] = field(default_factory=dict)
    """seed: mean loss, or accuracy"""
    failure: str | None = None
    pruned: Pruned | None = None

    @property
    def name(self) -> str:
        return f"cell-{self.number + 1:03d}"

    @property
    def status(self) -> Status:
        if self.failure is not None:
            return "failed"
        if self.pruned is not None:
            return "pruned"
        return "finished" if len(self.figures) >= self.seeds else "open"

    @property
    def cost(self) -> int:
        """The trials that it takes of the budget: all that it may still need, or what it has had."""
        had = {"pruned": len(self.figures), "failed": len(self.figures) + 1}
        return had.get(self.status, self.seeds)

    def scores(self, metric: str) -> list[float]:
        """In the order of seeds, the higher the better."""
        sign = 1 if metric == "accuracy" else -1
        return [sign * self.figures[seed] for seed in sorted(self.figures)]


@dataclass
class Journal:
    """What was decided, line by line. A line that a kill cut off does not count and is taken away."""

    folder: Path

    @property
    def path(self) -> Path:
        return self.folder / JOURNAL

    def lines(self, identity: str) -> list[dict[str, Any]]:
        """The lines so far, of this search and no other."""
        lines = read_journal(self.path)
        if lines and lines[0].get("identity") != identity:
            raise RunFolderError(f"{self.folder}: holds another search (its settings differ); give another --out")
        return lines

    def open(self, identity: str) -> list[dict[str, Any]]:
        """The same, ready to be continued."""
        self.folder.mkdir(parents=True, exist_ok=True)
        lines = self.lines(identity)
        write_bytes(self.path, b"".join(json.dumps(line).encode() + b"\n" for line in lines))
        if not lines:
            self.write("search", schema=SCHEMA, identity=identity)
        return lines

    def write(self, event: str, **what: Any) -> None:
        line = {"event": event, **what}
        append_line(self.path, {**line, SEAL: seal_of(line)})


def read_journal(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a journal. Cells are numbered one after the other, and no line is about one to come."""
    lines = read_lines(path)
    known = 0
    for number, line in enumerate(lines, start=1):
        place, event = Path(f"{path}, line {number}"), line.get("event")
        if not isinstance(event, str) or event not in schemas.EVENTS:
            raise RunFolderError(f"{place}: is damaged (an event {event!r}; there are: {', '.join(schemas.EVENTS)})")
        schemas.checked(line, schemas.EVENTS[event], place)
        if not is_as_written(line):
            raise RunFolderError(f"{place}: is damaged (its checksum does not agree)")
        if event == "cell" and line["cell"] == known:
            known += 1
        elif event in ("cell", "pruned", "winner") and line["cell"] >= known:
            raise RunFolderError(f"{place}: is damaged (cell {line['cell']} comes before it was chosen)")
    return lines


def identity_of(experiment: experiment.Experiment) -> str:
    """Hash of all that a search's figures depend on; its budget is not among it."""
    assert experiment.search is not None
    kept = [experiment.identity(), experiment.search.model_dump(mode="json", exclude={"budget"})]
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:16]


def budget_of(search: Search) -> dict[str, Any] | None:
    return search.budget.model_dump(mode="json") if search.budget else None


def winner_of(experiment: experiment.Experiment, experiment_folder: Path) -> Settings | None:
    """The settings of the winner, if the search has ended; it stays the winner."""
    assert experiment.search is not None
    folder = folder_of(experiment_folder)
    lines = Journal(folder).lines(identity_of(experiment))
    ended = winner_in(lines)
    if ended is None:
        return None
    if ended["budget"] != budget_of(experiment.search):
        raise RunFolderError(
            f"{folder}: this search has ended with the budget {ended['budget']}, and its winner was tested; "
            "a longer search needs another --out"
        )
    settings: Settings = next(
        line["settings"] for line in lines if line["event"] == "cell" and line["cell"] == ended["cell"]
    )
    return settings


def winner_in(lines: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    return next((line for line in lines if line["event"] == "winner"), None)


def seconds_in(lines: Sequence[dict[str, Any]]) -> float:
    """How long the search has taken, breaks left out."""
    return max((float(line["seconds"]) for line in lines if line["event"] == "trial"), default=0.0)


def cells_in(folder: Path, search: Search, lines: Sequence[dict[str, Any]], metric: str) -> list[Cell]:
    """The cells of the journal with the figures of their runs."""
    cells = [Cell(line["cell"], line["settings"], search.seeds) for line in lines if line["event"] == "cell"]
    for line in lines:
        if line["event"] == "pruned":
            cells[line["cell"]].pruned = Pruned(**line["why"])
    for cell in cells:
        for seed in range(FIRST_SEED, FIRST_SEED + search.seeds):
            note(cell, seed, Run(folder / cell.name / f"seed-{seed}"), metric)
    return cells


def note(cell: Cell, seed: int, run: Run, metric: str) -> None:
    """Write down how a run ended, if it has."""
    if run.is_finished:
        with schemas.agreeing(run.folder / "result.json"):
            found = run.result["scores"][VALIDATION]
            cell.figures[seed] = float(found["accuracy" if metric == "accuracy" else "loss"])
    elif (run.folder / "failure.json").is_file():
        failure = schemas.read(run.folder / "failure.json", schemas.Failure)
        if failure.get("kind") not in TRY_AGAIN:
            cell.failure = f"seed {seed}: {failure['message']}"


def finished_runs(experiment_folder: Path) -> list[tuple[str, Run]]:
    """Where each finished run of the search lies, and the run."""
    found = sorted(folder_of(experiment_folder).glob("cell-*/seed-*/result.json"))
    return [(str(path.parent.relative_to(experiment_folder)), Run(path.parent)) for path in found]


def best(cells: Sequence[Cell], metric: str) -> Cell | None:
    """The highest mean on validation data among the cells with all their seeds; if none has them, with the most."""
    scored = [cell for cell in cells if cell.figures and cell.status in ("finished", "open")]
    most = max((len(cell.figures) for cell in scored), default=0)
    whole = [cell for cell in scored if len(cell.figures) == most]
    return max(whole, key=lambda cell: mean(cell.scores(metric)), default=None)


def mean(scores: Sequence[float]) -> float:
    return sum(scores) / len(scores)


def why(pruned: Pruned) -> dict[str, Any]:
    return asdict(pruned)


def folder_of(experiment_folder: Path) -> Path:
    return experiment_folder / FOLDER
