"""The state of an experiment, read from its files: trial status, curves so far, verdicts and audits.

A reader reads only what has changed, such as the appended rows of metrics.jsonl. It needs no torch, and tolerates
incomplete and corrupted files.
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
"""longer curves are downsampled evenly"""

TrialStatus = Literal["waiting", "running", "stopped", "finished", "failed"]
ExperimentStatus = Literal["starting", "running", "finished", "stopped", "failed"]
JsonDict = dict[str, Any]


@dataclass
class TrialProgress:
    """Progress of one variant with one seed."""

    variant: str
    seed: int
    state: TrialStatus = "waiting"
    step: int = 0
    steps: int = 0
    split: str = ""
    value: float | None = None
    """the metric at the last evaluation on `split`: the primary split, or else the first"""
    message: str = ""


@dataclass
class ExperimentState:
    """Current state of an experiment."""

    name: str
    question: str
    state: ExperimentStatus
    metric: str
    trials: list[TrialProgress]
    curves: JsonDict
    """variant, split, seed: list of [step, value], as in findings.json"""
    can_stop: bool = False
    """whether a server started it"""
    message: str = ""
    finished_search_runs: int = 0
    """finished runs of a hyperparameter search"""
    quick: bool = False
    """whether it is a quick look, which is not judged"""
    left_out: list[str] = field(default_factory=list)
    """what the quick look reduced"""

    @property
    def finished(self) -> int:
        return sum(trial.state == "finished" for trial in self.trials)

    @property
    def summary(self) -> str:
        """Return one line on state and progress."""
        if not self.trials:
            return self.message or self.state
        counts = {state: sum(t.state == state for t in self.trials) for state in ("running", "failed", "stopped")}
        parts = [f"{self.finished} of {len(self.trials)} trials finished"]
        parts += [f"{count} {state}" for state, count in counts.items() if count]
        if self.finished_search_runs:
            parts.append(f"{self.finished_search_runs} search runs finished")
        return f"{self.state.capitalize()}: {', '.join(parts)}."


@dataclass
class JsonlTail:
    """A growing JSON Lines file of which only the appended rows are read."""

    path: Path
    size: int = 0
    offset: int = 0
    rows: list[JsonDict] = field(default_factory=list)

    def read(self) -> list[JsonDict]:
        try:
            size = self.path.stat().st_size
        except OSError:
            size = 0
        if size < self.size:  # truncated by a resume
            self.offset, self.rows = 0, []
        if size != self.size:
            self.size = size
            self._read_appended_rows()
        return self.rows

    def _read_appended_rows(self) -> None:
        try:
            with self.path.open("rb") as file:
                file.seek(self.offset)
                appended = file.read()
        except OSError:
            return
        complete_lines, newline, _ = appended.rpartition(b"\n")
        self.offset += len(complete_lines) + len(newline)
        for line in complete_lines.split(b"\n"):
            row = _parse_metrics_row(line)
            if row is not None:
                self.rows.append(row)


def _parse_metrics_row(line: bytes) -> JsonDict | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    is_valid = isinstance(row, dict) and isinstance(row.get("step"), int) and isinstance(row.get("split"), str)
    return row if is_valid else None


class ExperimentReader:
    """Reads the state of one experiment repeatedly."""

    def __init__(self, root: Path, name: str) -> None:
        self.root, self.name, self.folder = root, name, root / name
        self._tails: dict[Path, JsonlTail] = {}
        self._json_cache: dict[Path, tuple[int, Any]] = {}

    def read(self, *, with_metrics: bool = True) -> ExperimentState:
        """Return the current state; without metrics, it has no steps, scores and curves."""
        experiment = self.about()
        process = training_process.find_training_process(self.root, self.name)
        is_training = process is not None or training_process.is_locked(self.folder)
        if not experiment:
            return self._build_pending_state(is_training, process is not None)
        names, seeds, metric = _extract_trial_plan(experiment)
        primary = experiment.get("primary")
        primary_split = _get_string(primary, "split") if isinstance(primary, dict) else ""
        expected = self._list_expected_trials(names, seeds)
        trials = [self._read_trial_status(name, seed, is_training) for name, seed in expected]
        curves: JsonDict = {}
        for trial in trials if with_metrics else ():
            self._read_trial_metrics(trial, metric, primary_split)
            self._append_trial_curves(curves, trial, metric)
        state = ExperimentState(
            self.name, _get_string(experiment, "question"), "running", metric, trials, curves, process is not None
        )
        state.quick = experiment.get("quick") is True
        left_out = experiment.get("left_out")
        state.left_out = [text for text in left_out if isinstance(text, str)] if isinstance(left_out, list) else []
        state.finished_search_runs = len(list(self._iterate_search_results()))
        state.state = self._derive_status(
            state, is_training, has_adaptive_seeds=not isinstance(experiment.get("seeds"), int)
        )
        state.message = (
            "" if is_training or state.state == "finished" else training_process.read_log_tail(self.root, self.name)
        )
        return state

    def about(self) -> JsonDict:
        """Return the resolved experiment, or an empty dictionary before there is one."""
        experiment = self._read_cached_json(self.folder / "experiment.json").get("experiment")
        return experiment if isinstance(experiment, dict) else {}

    def findings(self) -> JsonDict:
        """Return the content of findings.json, or an empty dictionary."""
        findings = self._read_cached_json(self.folder / "findings.json")
        return findings if isinstance(findings.get("verdicts"), list) else {}

    def judged(self, state: ExperimentState) -> JsonDict:
        """Return the verdicts of findings.json if it covers every finished trial, else an empty dictionary."""
        findings = self.findings()
        rows = [row for row in findings.get("verdicts", []) if _is_verdict_row(row)]
        if not rows or not self.has_current_findings(state):
            return {}
        is_final = state.state not in ("running", "starting")
        headline = read_distillation_verdicts(findings)
        warnings = findings.get("warnings")
        warnings = [row for row in warnings if _is_warning_row(row)] if isinstance(warnings, list) else []
        return {"contest": headline, "warnings": warnings, "verdicts": rows, "chart": None, "final": is_final}

    def audits(self) -> dict[str, list[JsonDict]]:
        """Return the audits so far: of the data, and of the first trained model of each variant."""
        names, _, _ = _extract_trial_plan(self.about())
        audits = {"the data": self._read_cached_json(self.folder / "corpus.json").get("audits")}
        audits |= {
            name: self._read_cached_json(self.folder / name / "seed-0" / "audits.json").get("audits") for name in names
        }
        return {
            name: [row for row in rows if _is_audit_row(row)] for name, rows in audits.items() if isinstance(rows, list)
        }

    def has_current_findings(self, state: ExperimentState) -> bool:
        """Return whether findings.json is at least as new as the last result."""
        try:
            written = (self.folder / "findings.json").stat().st_mtime_ns
        except OSError:
            return False
        return all(
            self._get_mtime_ns(self._get_run_folder(trial.variant, trial.seed) / "result.json") <= written
            for trial in state.trials
            if trial.state == "finished"
        )

    def _build_pending_state(self, is_training: bool, can_stop: bool) -> ExperimentState:
        state: ExperimentStatus = "starting" if is_training else "failed"
        message = "" if is_training else training_process.read_log_tail(self.root, self.name)
        return ExperimentState(self.name, "", state, "", [], {}, can_stop, message)

    def _list_expected_trials(self, variant_names: list[str], num_seeds: int) -> list[tuple[str, int]]:
        """Return requested and existing trials in the order in which they run."""
        num_shown = min(MAX_TRIALS, max(num_seeds, *(self._find_last_seed(name) + 1 for name in variant_names), 0))
        return [(name, seed) for seed in range(num_shown) for name in variant_names][:MAX_TRIALS]

    def _find_last_seed(self, variant: str) -> int:
        try:
            seeds = [entry.name.removeprefix("seed-") for entry in os.scandir(self.folder / variant)]
        except OSError:
            return -1
        return max((int(seed) for seed in seeds if seed.isdecimal() and len(seed) < 6), default=-1)

    def _get_run_folder(self, variant: str, seed: int) -> Path:
        return self.folder / variant / f"seed-{seed}"

    def _read_trial_status(self, variant: str, seed: int, is_training: bool) -> TrialProgress:
        folder, trial = self._get_run_folder(variant, seed), TrialProgress(variant, seed)
        if not is_inside(folder, self.root):  # a link that leaves the runs folder
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
        """Set step and score of the last evaluation."""
        folder = self._get_run_folder(trial.variant, trial.seed)
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
        for row in self._read_metrics_rows(self._get_run_folder(trial.variant, trial.seed)):
            if isinstance(row.get(metric), int | float):
                by_split = curves.setdefault(trial.variant, {})
                by_split.setdefault(row["split"], {}).setdefault(str(trial.seed), []).append([row["step"], row[metric]])

    def _iterate_search_results(self) -> Iterator[Path]:
        yield from (self.folder / "search").glob("point-*/seed-*/result.json")

    def _derive_status(self, state: ExperimentState, is_training: bool, has_adaptive_seeds: bool) -> ExperimentStatus:
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
        """Return a JSON file, read again if it has changed, or an empty dictionary if it cannot be read."""
        modified = self._get_mtime_ns(path)
        if modified == 0:
            return {}
        cached = self._json_cache.get(path)
        if cached is None or cached[0] != modified:
            cached = self._json_cache[path] = (modified, self._load_json(path))
        content: JsonDict = cached[1]
        return content

    def _load_json(self, path: Path) -> JsonDict:
        if find_readable_file(self.folder.resolve(), str(path.relative_to(self.folder))) is None:
            return {}
        try:
            content = read_json(path)
        except (HeadToHeadError, OSError, RecursionError):
            return {}
        return content if isinstance(content, dict) else {}


def _extract_trial_plan(experiment: Mapping[str, Any]) -> tuple[list[str], int, str]:
    """Return the names of baseline and variants, the number of seeds, and the metric."""
    variants, seeds, primary = experiment.get("variants"), experiment.get("seeds"), experiment.get("primary")
    names = [name for name in variants if _is_valid_variant_name(name)] if isinstance(variants, dict) else []
    metric = primary.get("metric") if isinstance(primary, dict) else None
    return (
        [BASELINE, *names],
        seeds if isinstance(seeds, int) else 0,
        metric if isinstance(metric, str) else "perplexity",
    )


def read_distillation_verdicts(findings: JsonDict) -> list[JsonDict]:
    """Return the verdicts by ROUGE of a distillation, or none if the findings are malformed."""
    try:
        summarization = Findings.model_validate({"summarization": findings.get("summarization")})
        return [asdict(verdict) for verdict in tables.build_headline_verdicts(summarization)]
    except INCONSISTENT_DATA_ERRORS:
        return []


def _is_audit_row(row: Any) -> bool:
    return (
        isinstance(row, dict)
        and {"name", "passed", "is_blocking", "procedure", "observation", "interpretation"} <= row.keys()
    )


def _is_warning_row(row: Any) -> bool:
    return isinstance(row, dict) and all(isinstance(row.get(key), str) for key in ("kind", "message", "advice"))


def _is_verdict_row(row: Any) -> bool:
    return isinstance(row, dict) and all(isinstance(row.get(key), str) for key in ("variant", "outcome", "summary"))


def _is_valid_variant_name(name: str) -> bool:
    """Return whether a variant name from an untrusted file is a safe folder name."""
    return bool(name) and not name.startswith(".") and "/" not in name and "\0" not in name


def _get_string(mapping: Mapping[str, Any], key: str) -> str:
    value = mapping.get(key)
    return value if isinstance(value, str) else ""


def downsample_curves(curves: JsonDict) -> JsonDict:
    """Return curves at evenly spaced steps, always including the last."""
    steps = sorted(
        {
            step
            for by_split in curves.values()
            for by_seed in by_split.values()
            for curve in by_seed.values()
            for step, _ in curve
        }
    )
    stride = -(-len(steps) // MAX_CURVE_POINTS)
    if stride <= 1:
        return curves
    kept_steps = set(steps[::-1][::stride])
    return {
        variant: {
            split: {seed: [point for point in points if point[0] in kept_steps] for seed, points in by_seed.items()}
            for split, by_seed in by_split.items()
        }
        for variant, by_split in curves.items()
    }
