"""The state of an experiment, read from its files alone: what each trial does, curves so far, what is known.

A reader is kept while somebody looks. It asks the disk what has changed and reads only that, the new end of
metrics.jsonl for instance. Nothing here needs torch, and nothing fails on a file that is half there or damaged.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from headtohead.atomic_io import read_json
from headtohead.distillation import tables
from headtohead.errors import HeadToHeadError
from headtohead.experiment.schemas import INCONSISTENT_DATA_ERRORS, Findings
from headtohead.web import training_process
from headtohead.web.experiment_folders import find_readable_file, is_inside

BASELINE = "baseline"
MAX_TRIALS = 500
MAX_CURVE_POINTS = 60
"""evaluations of a curve that are drawn; of more, an even choice"""

TrialStatus = Literal["waiting", "running", "stopped", "finished", "failed"]
ExperimentStatus = Literal["starting", "running", "finished", "stopped", "failed"]
JsonDict = dict[str, Any]


@dataclass
class TrialProgress:
    """One variant with one seed, as far as its folder tells."""

    variant: str
    seed: int
    state: TrialStatus = "waiting"
    step: int = 0
    steps: int = 0
    split: str = ""
    value: float | None = None
    """the metric at the last evaluation, on `split`: the one that is judged, or else the first"""
    message: str = ""


@dataclass
class ExperimentState:
    """An experiment right now."""

    name: str
    question: str
    state: ExperimentStatus
    metric: str
    trials: list[TrialProgress]
    curves: JsonDict
    """variant: split: seed: list of [step, value], as in findings.json"""
    can_stop: bool = False
    """the server, this one or an earlier one, started it"""
    message: str = ""
    finished_search_runs: int = 0
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
        if self.finished_search_runs:
            words.append(f"{self.finished_search_runs} runs of the search finished")
        return f"{self.state.capitalize()}: {', '.join(words)}."


@dataclass
class JsonlTail:
    """A file of lines that grows: only its new end is read."""

    path: Path
    size: int = 0
    at: int = 0
    rows: list[JsonDict] = field(default_factory=list)

    def read(self) -> list[JsonDict]:
        try:
            size = self.path.stat().st_size
        except OSError:
            size = 0
        if size < self.size:  # cut off for a resume: drawn again
            self.at, self.rows = 0, []
        if size != self.size:
            self.size = size
            self._read_appended_rows()
        return self.rows

    def _read_appended_rows(self) -> None:
        try:
            with self.path.open("rb") as file:
                file.seek(self.at)
                new = file.read()
        except OSError:
            return
        whole, newline, _ = new.rpartition(b"\n")
        self.at += len(whole) + len(newline)
        for line in whole.split(b"\n"):
            row = _parse_metrics_row(line)
            if row is not None:
                self.rows.append(row)


def _parse_metrics_row(line: bytes) -> JsonDict | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    known = isinstance(row, dict) and isinstance(row.get("step"), int) and isinstance(row.get("split"), str)
    return row if known else None


class ExperimentReader:
    """Reads one experiment again and again."""

    def __init__(self, root: Path, name: str) -> None:
        self.root, self.name, self.folder = root, name, root / name
        self._tails: dict[Path, JsonlTail] = {}
        self._json_cache: dict[Path, tuple[int, Any]] = {}

    def read(self, *, with_metrics: bool = True) -> ExperimentState:
        """The state now; without `metrics`, no steps, figures and curves, which a list does not show."""
        about = self.about()
        process = training_process.find_training_process(self.root, self.name)
        busy = process is not None or training_process.is_locked(self.folder)
        if not about:
            return self._build_pending_state(busy, process is not None)
        names, seeds, metric = _extract_trial_plan(about)
        judged = _get_string(about["primary"], "split") if isinstance(about.get("primary"), dict) else ""
        trials = [self._read_trial_status(name, seed, busy) for name, seed in self._list_expected_trials(names, seeds)]
        curves: JsonDict = {}
        for trial in trials if with_metrics else ():
            self._read_trial_metrics(trial, metric, judged)
            self._append_trial_curves(curves, trial, metric)
        live = ExperimentState(
            self.name, _get_string(about, "question"), "running", metric, trials, curves, process is not None
        )
        live.finished_search_runs = len(list(self._iterate_search_results()))
        live.state = self._state(live, busy, has_adaptive_seeds=not isinstance(about.get("seeds"), int))
        live.message = "" if busy or live.state == "finished" else training_process.read_log_tail(self.root, self.name)
        return live

    def about(self) -> JsonDict:
        """The experiment as it was resolved; empty while there is none."""
        found = self._read_cached_json(self.folder / "experiment.json").get("experiment")
        return found if isinstance(found, dict) else {}

    def findings(self) -> JsonDict:
        """findings.json, as it was last written."""
        found = self._read_cached_json(self.folder / "findings.json")
        return found if isinstance(found.get("verdicts"), list) else {}

    def judged(self, state: ExperimentState) -> JsonDict:
        """The verdicts of findings.json, where it knows of every finished trial; empty otherwise."""
        found = self.findings()
        rows = [row for row in found.get("verdicts", []) if _is_verdict_row(row)]
        if not rows or not self.has_current_findings(state):
            return {}
        final = state.state not in ("running", "starting")
        return {"contest": read_distillation_verdicts(found), "verdicts": rows, "chart": None, "final": final}

    def audits(self) -> dict[str, list[JsonDict]]:
        """What the audits said so far: of the texts, and of each variant's first trained model."""
        names, _, _ = _extract_trial_plan(self.about())
        found = {"the texts": self._read_cached_json(self.folder / "corpus.json").get("audits")}
        found |= {
            name: self._read_cached_json(self.folder / name / "seed-0" / "audits.json").get("audits") for name in names
        }
        return {
            name: [row for row in rows if _is_audit_row(row)] for name, rows in found.items() if isinstance(rows, list)
        }

    def has_current_findings(self, state: ExperimentState) -> bool:
        """Whether findings.json is at least as new as the last result."""
        try:
            judged = (self.folder / "findings.json").stat().st_mtime_ns
        except OSError:
            return False
        return all(
            self._get_mtime_ns(self._run(t.variant, t.seed) / "result.json") <= judged
            for t in state.trials
            if t.state == "finished"
        )

    def _build_pending_state(self, is_training: bool, can_stop: bool) -> ExperimentState:
        state: ExperimentStatus = "starting" if is_training else "failed"
        words = "" if is_training else training_process.read_log_tail(self.root, self.name)
        return ExperimentState(self.name, "", state, "", [], {}, can_stop, words)

    def _list_expected_trials(self, variant_names: list[str], num_seeds: int) -> list[tuple[str, int]]:
        """The trials that were asked for and those that are there, in the order in which they run."""
        most = min(MAX_TRIALS, max(num_seeds, *(self._find_last_seed(name) + 1 for name in variant_names), 0))
        return [(name, seed) for seed in range(most) for name in variant_names][:MAX_TRIALS]

    def _find_last_seed(self, variant: str) -> int:
        try:
            found = [entry.name.removeprefix("seed-") for entry in os.scandir(self.folder / variant)]
        except OSError:
            return -1
        return max((int(one) for one in found if one.isdecimal() and len(one) < 6), default=-1)

    def _run(self, variant: str, seed: int) -> Path:
        return self.folder / variant / f"seed-{seed}"

    def _read_trial_status(self, variant: str, seed: int, is_training: bool) -> TrialProgress:
        folder, trial = self._run(variant, seed), TrialProgress(variant, seed)
        if not is_inside(folder, self.root):  # also when it is not there yet, unless a link leads out
            return trial
        if (folder / "result.json").is_file():
            trial.state = "finished"
        elif (folder / "failure.json").is_file():
            trial.state, trial.message = (
                "failed",
                _get_string(self._read_cached_json(folder / "failure.json"), "message"),
            )
        elif (folder / "trial.json").is_file():
            trial.state = "running" if is_training else "stopped"
        return trial

    def _read_trial_metrics(self, trial: TrialProgress, metric: str, primary_split: str) -> None:
        """How far it has come, and the metric at its last evaluation."""
        folder = self._run(trial.variant, trial.seed)
        if trial.state == "waiting":
            return
        start = self._read_cached_json(folder / "start.json")
        trial.steps = start["steps"] if isinstance(start.get("steps"), int) else 0
        rows = self._read_metrics_rows(folder)
        trial.step = max((row["step"] for row in rows), default=0)
        last = {
            row["split"]: row[metric]
            for row in rows
            if row["split"] not in ("batches", "train") and isinstance(row.get(metric), int | float)
        }
        if last:
            trial.split = primary_split if primary_split in last else next(iter(last))
            trial.value = last[trial.split]

    def _read_metrics_rows(self, run_folder: Path) -> list[JsonDict]:
        path = run_folder / "metrics.jsonl"
        return self._tails.setdefault(path, JsonlTail(path)).read()

    def _append_trial_curves(self, curves: JsonDict, trial: TrialProgress, metric: str) -> None:
        if trial.state == "waiting":
            return
        for row in self._read_metrics_rows(self._run(trial.variant, trial.seed)):
            if isinstance(row.get(metric), int | float):
                by_split = curves.setdefault(trial.variant, {})
                by_split.setdefault(row["split"], {}).setdefault(str(trial.seed), []).append([row["step"], row[metric]])

    def _iterate_search_results(self) -> Iterator[Path]:
        yield from (self.folder / "search").glob("cell-*/seed-*/result.json")

    def _state(self, state: ExperimentState, is_training: bool, has_adaptive_seeds: bool) -> ExperimentStatus:
        if is_training:
            return "running"
        if state.trials and all(trial.state == "finished" for trial in state.trials):
            return "finished"
        if any(trial.state == "failed" for trial in state.trials):
            return "failed"
        settled = (
            has_adaptive_seeds
            and self.findings()
            and all(trial.state in ("finished", "waiting") for trial in state.trials)
        )
        return "finished" if settled else "stopped"

    def _get_mtime_ns(self, path: Path) -> int:
        try:
            return path.stat().st_mtime_ns
        except OSError:
            return 0

    def _read_cached_json(self, path: Path) -> JsonDict:
        """A JSON file of the experiment, read again when it has changed; empty where there is none to be read."""
        changed = self._get_mtime_ns(path)
        if changed == 0:
            return {}
        kept = self._json_cache.get(path)
        if kept is None or kept[0] != changed:
            kept = self._json_cache[path] = (changed, self._load_json(path))
        found: JsonDict = kept[1]
        return found

    def _load_json(self, path: Path) -> JsonDict:
        if find_readable_file(self.folder.resolve(), str(path.relative_to(self.folder))) is None:
            return {}
        try:
            found = read_json(path)
        except (HeadToHeadError, OSError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}


def _extract_trial_plan(experiment: Mapping[str, Any]) -> tuple[list[str], int, str]:
    """Names of baseline and variants, how many seeds were asked for, the metric."""
    variants, seeds, primary = experiment.get("variants"), experiment.get("seeds"), experiment.get("primary")
    names = [name for name in variants if _is_valid_variant_name(name)] if isinstance(variants, dict) else []
    metric = primary.get("metric") if isinstance(primary, dict) else None
    return (
        [BASELINE, *names],
        seeds if isinstance(seeds, int) else 0,
        metric if isinstance(metric, str) else "perplexity",
    )


def read_distillation_verdicts(findings: JsonDict) -> list[JsonDict]:
    """The verdicts of a distillation on summaries; none where the file is not as we write it."""
    try:
        verdicts = tables.build_headline_verdicts(Findings.model_validate(findings))
        return [asdict(verdict) for verdict in verdicts]
    except INCONSISTENT_DATA_ERRORS:
        return []


def _is_audit_row(row: Any) -> bool:
    return (
        isinstance(row, dict)
        and {"name", "passed", "is_blocking", "procedure", "observation", "interpretation"} <= row.keys()
    )


def _is_verdict_row(row: Any) -> bool:
    return isinstance(row, dict) and all(isinstance(row.get(key), str) for key in ("variant", "outcome", "summary"))


def _is_valid_variant_name(name: str) -> bool:
    """A variant's name is a folder's; the file may have been written by anybody."""
    return bool(name) and not name.startswith(".") and "/" not in name and "\0" not in name


def _get_string(mapping: Mapping[str, Any], key: str) -> str:
    given = mapping.get(key)
    return given if isinstance(given, str) else ""


def downsample_curves(curves: JsonDict) -> JsonDict:
    """Curves of many evaluations at an even choice of steps, the last one always."""
    steps = sorted({at for by_split in curves.values() for by in by_split.values() for p in by.values() for at, _ in p})
    stride = -(-len(steps) // MAX_CURVE_POINTS)
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
