"""The state of an experiment, read from its files alone: what each trial does, curves so far, what is known.

A reader is kept while somebody looks. It asks the disk what has changed and reads only that, the new end of
metrics.jsonl for instance. Nothing here needs torch, and nothing fails on a file that is half there or damaged.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from headtohead.atomic_io import read_json
from headtohead.distillation import tables
from headtohead.errors import HeadToHeadError
from headtohead.experiment.schemas import ODD
from headtohead.web import training_process
from headtohead.web.experiment_folders import file_in, inside

BASELINE = "baseline"
MOST_TRIALS = 500
MOST_POINTS = 60
"""evaluations of a curve that are drawn; of more, an even choice"""

TrialState = Literal["waiting", "running", "stopped", "finished", "failed"]
State = Literal["starting", "running", "finished", "stopped", "failed"]
Json = dict[str, Any]


@dataclass
class Trial:
    """One variant with one seed, as far as its folder tells."""

    variant: str
    seed: int
    state: TrialState = "waiting"
    step: int = 0
    steps: int = 0
    split: str = ""
    value: float | None = None
    """the metric at the last evaluation, on `split`: the one that is judged, or else the first"""
    message: str = ""


@dataclass
class Live:
    """An experiment right now."""

    name: str
    question: str
    state: State
    metric: str
    trials: list[Trial]
    curves: Json
    """variant: split: seed: list of [step, value], as in findings.json"""
    can_stop: bool = False
    """the server, this one or an earlier one, started it"""
    message: str = ""
    searched: int = 0
    """runs of a search that are finished"""

    @property
    def finished(self) -> int:
        return sum(trial.state == "finished" for trial in self.trials)

    @property
    def summary(self) -> str:
        """One line for a person who cannot watch all the time."""
        if not self.trials:
            return self.message or self.state
        counts = {state: sum(t.state == state for t in self.trials) for state in ("running", "failed", "stopped")}
        words = [f"{self.finished} of {len(self.trials)} trials finished"]
        words += [f"{count} {state}" for state, count in counts.items() if count]
        if self.searched:
            words.append(f"{self.searched} runs of the search finished")
        return f"{self.state.capitalize()}: {', '.join(words)}."


@dataclass
class Tail:
    """A file of lines that grows: only its new end is read."""

    path: Path
    size: int = 0
    at: int = 0
    rows: list[Json] = field(default_factory=list)

    def read(self) -> list[Json]:
        try:
            size = self.path.stat().st_size
        except OSError:
            size = 0
        if size < self.size:  # cut off for a resume: drawn again
            self.at, self.rows = 0, []
        if size != self.size:
            self.size = size
            self._more()
        return self.rows

    def _more(self) -> None:
        try:
            with self.path.open("rb") as file:
                file.seek(self.at)
                new = file.read()
        except OSError:
            return
        whole, newline, _ = new.rpartition(b"\n")
        self.at += len(whole) + len(newline)
        for line in whole.split(b"\n"):
            row = _row(line)
            if row is not None:
                self.rows.append(row)


def _row(line: bytes) -> Json | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    known = isinstance(row, dict) and isinstance(row.get("step"), int) and isinstance(row.get("split"), str)
    return row if known else None


class Reader:
    """Reads one experiment again and again."""

    def __init__(self, root: Path, name: str) -> None:
        self.root, self.name, self.folder = root, name, root / name
        self._tails: dict[Path, Tail] = {}
        self._files: dict[Path, tuple[int, Any]] = {}

    def read(self, *, metrics: bool = True) -> Live:
        """The state now; without `metrics`, no steps, figures and curves, which a list does not show."""
        about = self.about()
        process = training_process.find(self.root, self.name)
        busy = process is not None or training_process.is_locked(self.folder)
        if not about:
            return self._before_it_began(busy, process is not None)
        names, seeds, metric = _plan(about)
        judged = _text(about["primary"], "split") if isinstance(about.get("primary"), dict) else ""
        trials = [self._trial(name, seed, busy) for name, seed in self._wanted(names, seeds)]
        curves: Json = {}
        for trial in trials if metrics else ():
            self._measure(trial, metric, judged)
            self._add_curves(curves, trial, metric)
        live = Live(self.name, _text(about, "question"), "running", metric, trials, curves, process is not None)
        live.searched = len(list(self._search_results()))
        live.state = self._state(live, busy, auto=not isinstance(about.get("seeds"), int))
        live.message = "" if busy or live.state == "finished" else training_process.last_words(self.root, self.name)
        return live

    def about(self) -> Json:
        """The experiment as it was resolved; empty while there is none."""
        found = self._json(self.folder / "experiment.json").get("experiment")
        return found if isinstance(found, dict) else {}

    def findings(self) -> Json:
        """findings.json, as it was last written."""
        found = self._json(self.folder / "findings.json")
        return found if isinstance(found.get("verdicts"), list) else {}

    def judged(self, live: Live) -> Json:
        """The verdicts of findings.json, where it knows of every finished trial; empty otherwise."""
        found = self.findings()
        rows = [row for row in found.get("verdicts", []) if _is_verdict(row)]
        if not rows or not self.is_judged(live):
            return {}
        final = live.state not in ("running", "starting")
        return {"contest": contest(found), "verdicts": rows, "chart": None, "final": final}

    def audits(self) -> dict[str, list[Json]]:
        """What the audits said so far: of the texts, and of each variant's first trained model."""
        names, _, _ = _plan(self.about())
        found = {"the texts": self._json(self.folder / "corpus.json").get("audits")}
        found |= {name: self._json(self.folder / name / "seed-0" / "audits.json").get("audits") for name in names}
        return {name: [row for row in rows if _is_audit(row)] for name, rows in found.items() if isinstance(rows, list)}

    def is_judged(self, live: Live) -> bool:
        """Whether findings.json is at least as new as the last result."""
        try:
            judged = (self.folder / "findings.json").stat().st_mtime_ns
        except OSError:
            return False
        return all(
            self._changed(self._run(t.variant, t.seed) / "result.json") <= judged
            for t in live.trials
            if t.state == "finished"
        )

    def _before_it_began(self, busy: bool, ours: bool) -> Live:
        state: State = "starting" if busy else "failed"
        words = "" if busy else training_process.last_words(self.root, self.name)
        return Live(self.name, "", state, "", [], {}, ours, words)

    def _wanted(self, names: list[str], seeds: int) -> list[tuple[str, int]]:
        """The trials that were asked for and those that are there, in the order in which they run."""
        most = min(MOST_TRIALS, max(seeds, *(self._last_seed(name) + 1 for name in names), 0))
        return [(name, seed) for seed in range(most) for name in names][:MOST_TRIALS]

    def _last_seed(self, name: str) -> int:
        try:
            found = [entry.name.removeprefix("seed-") for entry in os.scandir(self.folder / name)]
        except OSError:
            return -1
        return max((int(one) for one in found if one.isdecimal() and len(one) < 6), default=-1)

    def _run(self, variant: str, seed: int) -> Path:
        return self.folder / variant / f"seed-{seed}"

    def _trial(self, variant: str, seed: int, busy: bool) -> Trial:
        folder, trial = self._run(variant, seed), Trial(variant, seed)
        if not inside(folder, self.root):  # also when it is not there yet, unless a link leads out
            return trial
        if (folder / "result.json").is_file():
            trial.state = "finished"
        elif (folder / "failure.json").is_file():
            trial.state, trial.message = "failed", _text(self._json(folder / "failure.json"), "message")
        elif (folder / "trial.json").is_file():
            trial.state = "running" if busy else "stopped"
        return trial

    def _measure(self, trial: Trial, metric: str, judged: str) -> None:
        """How far it has come, and the metric at its last evaluation."""
        folder = self._run(trial.variant, trial.seed)
        if trial.state == "waiting":
            return
        start = self._json(folder / "start.json")
        trial.steps = start["steps"] if isinstance(start.get("steps"), int) else 0
        rows = self._metrics(folder)
        trial.step = max((row["step"] for row in rows), default=0)
        last = {
            row["split"]: row[metric]
            for row in rows
            if row["split"] not in ("batches", "train") and isinstance(row.get(metric), int | float)
        }
        if last:
            trial.split = judged if judged in last else next(iter(last))
            trial.value = last[trial.split]

    def _metrics(self, folder: Path) -> list[Json]:
        path = folder / "metrics.jsonl"
        return self._tails.setdefault(path, Tail(path)).read()

    def _add_curves(self, curves: Json, trial: Trial, metric: str) -> None:
        if trial.state == "waiting":
            return
        for row in self._metrics(self._run(trial.variant, trial.seed)):
            if isinstance(row.get(metric), int | float):
                by_split = curves.setdefault(trial.variant, {})
                by_split.setdefault(row["split"], {}).setdefault(str(trial.seed), []).append([row["step"], row[metric]])

    def _search_results(self) -> Iterator[Path]:
        yield from (self.folder / "search").glob("cell-*/seed-*/result.json")

    def _state(self, live: Live, busy: bool, auto: bool) -> State:
        if busy:
            return "running"
        if live.trials and all(trial.state == "finished" for trial in live.trials):
            return "finished"
        if any(trial.state == "failed" for trial in live.trials):
            return "failed"
        settled = auto and self.findings() and all(trial.state in ("finished", "waiting") for trial in live.trials)
        return "finished" if settled else "stopped"

    def _changed(self, path: Path) -> int:
        try:
            return path.stat().st_mtime_ns
        except OSError:
            return 0

    def _json(self, path: Path) -> Json:
        """A JSON file of the experiment, read again when it has changed; empty where there is none to be read."""
        changed = self._changed(path)
        if changed == 0:
            return {}
        kept = self._files.get(path)
        if kept is None or kept[0] != changed:
            kept = self._files[path] = (changed, self._loaded(path))
        found: Json = kept[1]
        return found

    def _loaded(self, path: Path) -> Json:
        if file_in(self.folder.resolve(), str(path.relative_to(self.folder))) is None:
            return {}
        try:
            found = read_json(path)
        except (HeadToHeadError, OSError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}


def _plan(about: Mapping[str, Any]) -> tuple[list[str], int, str]:
    """Names of baseline and variants, how many seeds were asked for, the metric."""
    variants, seeds, primary = about.get("variants"), about.get("seeds"), about.get("primary")
    names = [name for name in variants if _is_name(name)] if isinstance(variants, dict) else []
    metric = primary.get("metric") if isinstance(primary, dict) else None
    return (
        [BASELINE, *names],
        seeds if isinstance(seeds, int) else 0,
        metric if isinstance(metric, str) else "perplexity",
    )


def contest(findings: Json) -> list[Json]:
    """The verdicts of a distillation on summaries; none where the file is not as we write it."""
    try:
        return tables.lead(findings)
    except ODD:
        return []


def _is_audit(row: Any) -> bool:
    return isinstance(row, dict) and {"name", "passed", "serious", "tried", "found", "meaning"} <= row.keys()


def _is_verdict(row: Any) -> bool:
    return isinstance(row, dict) and all(isinstance(row.get(key), str) for key in ("variant", "word", "sentence"))


def _is_name(name: str) -> bool:
    """A variant's name is a folder's; the file may have been written by anybody."""
    return bool(name) and not name.startswith(".") and "/" not in name and "\0" not in name


def _text(found: Mapping[str, Any], key: str) -> str:
    given = found.get(key)
    return given if isinstance(given, str) else ""


def thinned(curves: Json) -> Json:
    """Curves of many evaluations at an even choice of steps, the last one always."""
    steps = sorted({at for by_split in curves.values() for by in by_split.values() for p in by.values() for at, _ in p})
    stride = -(-len(steps) // MOST_POINTS)
    if stride <= 1:
        return curves
    kept = set(steps[::-1][::stride])
    return {
        variant: {
            split: {seed: [point for point in points if point[0] in kept] for seed, points in by_seed.items()}
            for split, by_seed in by_split.items()
        }
        for variant, by_split in curves.items()
    }
