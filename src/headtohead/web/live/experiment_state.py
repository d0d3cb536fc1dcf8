"""An experiment's state, read from its files: trial status, curves so far, verdicts and audits.

A reader reads only what has changed, such as lines appended to metrics.jsonl. It does not need torch, and it ignores
incomplete and invalid files.
"""

from __future__ import annotations

import contextlib
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

from pydantic import ValidationError

from headtohead import safe_open
from headtohead.audit.result import CheckResult
from headtohead.config.base import FOLDER_NAME_PATTERN
from headtohead.config.experiment import Experiment
from headtohead.config.tables.search import SEARCH_FOLDER
from headtohead.config.tables.sweep import CELLS_FOLDER
from headtohead.distillation.tables import build_rouge_verdict_cards
from headtohead.errors import HeadToHeadError, RunFolderError
from headtohead.experiment import schemas
from headtohead.experiment.run_folder import ExperimentRuns
from headtohead.versus.config import VersusConfig
from headtohead.versus.file_schemas import COMPARISON_FILE, RUN_FILE, CommandRun, ComparisonFile
from headtohead.web import training_process
from headtohead.web.experiment_folders import find_readable_file, resolves_inside_folder

MAX_TRIALS = 500
MAX_METRICS_BYTES = 8 << 20
MAX_METRICS_LINES = 20_000
"""limits for each metrics.jsonl; later lines are not shown"""
MAX_SHOWN_ROWS = 500
"""verdicts and warnings on a page; the report shows all"""
MAX_CURVE_POINTS = 60
"""longer curves are downsampled evenly"""

TrialStatus = Literal["waiting", "running", "stopped", "finished", "failed"]
ExperimentStatus = Literal["starting", "running", "finished", "stopped", "failed"]
JsonDict = dict[str, Any]
RecordT = TypeVar("RecordT", bound=schemas.Record)


@dataclass
class TrialProgress:
    """The progress of one variant trained with one seed."""

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
    """The current state of an experiment."""

    name: str
    question: str
    state: ExperimentStatus
    metric: str
    trials: list[TrialProgress]
    curves: JsonDict
    """variant, split, seed: list of [step, value], as in findings.json"""
    can_stop: bool = False
    """whether a server started it"""
    can_resume: bool = True
    """whether the server can train more; it does not run the commands of a comparison"""
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
        """Return one line about the state and progress."""
        if not self.trials:
            return self.message or self.state
        counts = {state: sum(t.state == state for t in self.trials) for state in ("running", "failed", "stopped")}
        parts = [f"{self.finished} of {len(self.trials)} trials finished"]
        parts += [f"{count} {state}" for state, count in counts.items() if count]
        if self.finished_search_runs:
            parts.append(f"{self.finished_search_runs} search runs finished")
        return f"{self.state.capitalize()}: {', '.join(parts)}."


@dataclass
class MetricsFileTail:
    """Reads the newly appended lines of a trial's growing metrics.jsonl. Invalid lines are skipped."""

    path: Path
    size: int = 0
    offset: int = 0
    lines: list[schemas.MetricsLine] = field(default_factory=list)

    def read_lines(self) -> list[schemas.MetricsLine]:
        """Return all complete lines of a running trial's metrics.jsonl, reading only those that are new."""
        size = _get_mtime_and_size(self.path)[1]
        if size < self.size:  # truncated by a resume
            self.offset, self.lines = 0, []
        if size != self.size:
            self.size = size
            with (
                contextlib.suppress(OSError, RunFolderError),
                safe_open.open_file(self.path, MAX_METRICS_BYTES) as file,
            ):
                file.seek(self.offset)
                complete_lines, newline, _ = file.read(MAX_METRICS_BYTES).rpartition(b"\n")
                self.offset += len(complete_lines) + len(newline)
                for line in complete_lines.split(b"\n"):
                    with contextlib.suppress(ValidationError):
                        self.lines.append(schemas.MetricsLine.model_validate_json(line))
                del self.lines[MAX_METRICS_LINES:]
        return self.lines


class ExperimentReader:
    """Reads the state of one experiment, repeatedly while it is trained. Missing and invalid files are ignored."""

    def __init__(self, root: Path, name: str) -> None:
        self.root, self.name, self.folder = root, name, root / name
        self.runs = ExperimentRuns(self.folder)
        self._tails: dict[Path, MetricsFileTail] = {}
        self._records: dict[Path, tuple[int, schemas.Record | None]] = {}

    def read_state(self, *, with_metrics: bool = True) -> ExperimentState:
        """Return the current state. If metrics are not requested, it contains no steps, scores or curves."""
        if (comparison_config := self.read_comparison_config()) is not None:
            return self._read_comparison_state(comparison_config)
        experiment = self.read_experiment()
        process = training_process.find_training_process(self.root, self.name)
        is_training = process is not None or training_process.is_being_trained(self.folder)
        log = "" if is_training else training_process.read_log_tail(self.root, self.name)
        if experiment is None:
            status: ExperimentStatus = "starting" if is_training else "failed"
            return ExperimentState(self.name, "", status, "", [], {}, process is not None, message=log)
        num_planned_seeds = experiment.seeds if isinstance(experiment.seeds, int) else 0
        variant_folders = _list_variant_folders(experiment)[:MAX_TRIALS]
        existing_seed_counts = (seed + 1 for variant in variant_folders for seed in self.runs.seeds(variant)[-1:])
        num_shown_seeds = min(MAX_TRIALS, max(num_planned_seeds, *existing_seed_counts, 0))
        shown_runs = [(variant, seed) for seed in range(num_shown_seeds) for variant in variant_folders][:MAX_TRIALS]
        trials = [self._read_trial_status(variant, seed, is_training) for variant, seed in shown_runs]
        curves: JsonDict = {}
        for trial in trials if with_metrics else ():
            self._read_trial_metrics(trial, experiment, curves)
        state = ExperimentState(
            name=self.name,
            question=experiment.question,
            state=self._derive_status(trials, is_training, has_adaptive_seeds=isinstance(experiment.seeds, str)),
            metric=experiment.primary.metric,
            trials=trials,
            curves=curves if experiment.sweep is None else {},
            can_stop=process is not None,
            finished_search_runs=len(list(self.folder.glob(f"{SEARCH_FOLDER}/point-*/seed-*/result.json"))),
            quick=experiment.quick,
            left_out=list(experiment.left_out),
        )
        state.message = "" if state.state == "finished" else log
        return state

    def read_experiment(self) -> Experiment | None:
        """Return the resolved experiment, or None if it has not been written yet."""
        file = self._read_record(self.folder / "experiment.json", schemas.ExperimentFile)
        is_safe = file is not None and all(map(FOLDER_NAME_PATTERN.fullmatch, file.experiment.variants))
        return file.experiment if file is not None and is_safe else None

    def read_comparison_config(self) -> VersusConfig | None:
        """Return the settings of a command comparison, or None if this is an ordinary experiment."""
        file = self._read_record(self.folder / COMPARISON_FILE, ComparisonFile)
        return file.config if file is not None else None

    def read_findings(self) -> schemas.Findings:
        """Return the contents of findings.json, or empty findings if the file is missing or invalid."""
        return self._read_record(self.folder / "findings.json", schemas.Findings) or schemas.Findings()

    def read_shown_verdicts(self, state: ExperimentState) -> JsonDict:
        """Return the verdicts in findings.json, as pages show them, or an empty dictionary if there are none.

        Verdicts that do not cover every finished trial are not shown.
        """
        findings = self.read_findings()
        if not findings.verdicts or not self.has_current_findings(state):
            return {}
        return {
            "headline": [asdict(card) for card in build_rouge_verdict_cards(findings)[:MAX_SHOWN_ROWS]],
            "warnings": [warning.to_json() for warning in findings.warnings[:MAX_SHOWN_ROWS]],
            "verdicts": [verdict.to_dict() for verdict in findings.verdicts[:MAX_SHOWN_ROWS]],
            "chart": None,
            "final": state.state not in ("running", "starting"),
        }

    def read_audits(self) -> dict[str, list[CheckResult]]:
        """Return the audits available so far: the data audit, and the audit of each variant's first trained model."""
        experiment = self.read_experiment()
        corpus = self._read_record(self.folder / "corpus.json", schemas.CorpusFile)
        audits = {"the data": corpus.audits} if corpus else {}
        for name, data_audits in corpus.variant_audits.items() if corpus else ():
            audits[f"the data of {name}"] = data_audits
        for name in experiment.names[:MAX_SHOWN_ROWS] if experiment else ():
            if file := self._read_record(self.runs.run(name, 0).folder / "audits.json", schemas.AuditsFile):
                audits[name] = file.audits
        return audits

    def has_current_findings(self, state: ExperimentState) -> bool:
        """Return whether findings.json is at least as recent as the latest result."""
        findings_time = _get_mtime_and_size(self.folder / "findings.json")[0]
        finished_folders = [
            self.runs.run(trial.variant, trial.seed).folder for trial in state.trials if trial.state == "finished"
        ]
        result_files = [folder / name for folder in finished_folders for name in ("result.json", RUN_FILE)]
        return findings_time > 0 and all(_get_mtime_and_size(path)[0] <= findings_time for path in result_files)

    def _read_comparison_state(self, config: VersusConfig) -> ExperimentState:
        """Return the state of a comparison of commands: finished runs with their curves, and waiting ones."""
        is_running = training_process.is_being_trained(self.folder)
        curves: JsonDict = {}
        trials = []
        for variant, seed in config.list_planned_runs()[:MAX_TRIALS]:
            trial = TrialProgress(variant, seed, split=config.metric.name)
            folder = self.runs.run(variant, seed).folder
            run = (
                self._read_record(folder / RUN_FILE, CommandRun) if resolves_inside_folder(folder, self.root) else None
            )
            if run is not None:
                trial.state, trial.message = ("finished" if run.has_finite_value else "failed"), run.message
                trial.value = run.value if run.has_finite_value else None
                curves.setdefault(variant, {}).setdefault(config.metric.name, {})[str(seed)] = run.curve
            elif resolves_inside_folder(folder, self.root) and folder.is_dir():
                trial.state = "running" if is_running else "stopped"
            trials.append(trial)
        return ExperimentState(
            name=self.name,
            question=config.question,
            state=self._derive_status(trials, is_running, has_adaptive_seeds=False),
            metric=config.metric.verdict_metric,
            trials=trials,
            curves=curves,
            can_resume=False,
        )

    def _read_trial_status(self, variant: str, seed: int, is_training: bool) -> TrialProgress:
        """Determine the state of one trial from the files in its run folder."""
        run, trial = self.runs.run(variant, seed), TrialProgress(variant, seed)
        if not resolves_inside_folder(run.folder, self.root):  # a symbolic link that points outside the runs folder
            return trial
        if run.is_finished:
            trial.state = "finished"
        elif (run.folder / "failure.json").is_file():
            failure = self._read_record(run.folder / "failure.json", schemas.FailureFile)
            trial.state, trial.message = "failed", failure.message if failure else ""
        elif (run.folder / "trial.json").is_file():
            trial.state = "running" if is_training else "stopped"
        return trial

    def _read_trial_metrics(self, trial: TrialProgress, experiment: Experiment, curves: JsonDict) -> None:
        """Set the last evaluation's step and score, and add the trial's curves."""
        if trial.state == "waiting":
            return
        folder, metric = self.runs.run(trial.variant, trial.seed).folder, experiment.primary.metric
        start = self._read_record(folder / "start.json", schemas.StartFile)
        trial.steps = start.steps if start else 0
        path = folder / "metrics.jsonl"
        scores: dict[str, float] = {}
        for line in self._tails.setdefault(path, MetricsFileTail(path)).read_lines():
            trial.step = max(trial.step, line.step)
            score = getattr(line, metric)
            if score is None:
                continue
            curves_by_seed = curves.setdefault(trial.variant, {}).setdefault(line.split, {})
            curves_by_seed.setdefault(str(trial.seed), []).append([line.step, score])
            if line.split not in ("batches", "train"):
                scores[line.split] = score
        if scores:
            trial.split = experiment.primary.split if experiment.primary.split in scores else next(iter(scores))
            trial.value = scores[trial.split]

    def _derive_status(
        self, trials: list[TrialProgress], is_training: bool, *, has_adaptive_seeds: bool
    ) -> ExperimentStatus:
        """Derive the experiment's state from its trials' states."""
        if is_training:
            return "running"
        states = {trial.state for trial in trials}
        if states == {"finished"}:
            return "finished"
        if "failed" in states:
            return "failed"
        has_findings = bool(self.read_findings().verdicts or self.read_findings().sweep)
        is_settled = has_adaptive_seeds and has_findings and states <= {"finished", "waiting"}
        return "finished" if is_settled else "stopped"

    def _read_record(self, path: Path, schema: type[RecordT]) -> RecordT | None:
        """Return an experiment file, reread if it has changed, or None if it is missing or invalid."""
        modified_time = _get_mtime_and_size(path)[0]
        if path not in self._records or self._records[path][0] != modified_time:
            record = None
            if find_readable_file(self.folder.resolve(), str(path.relative_to(self.folder))) is not None:
                with contextlib.suppress(HeadToHeadError, OSError, RecursionError):
                    record = schemas.read_record(path, schema)
            self._records[path] = (modified_time, record)
        return cast("RecordT | None", self._records[path][1])


def _list_variant_folders(experiment: Experiment) -> list[str]:
    """Return the folders whose trials a page shows, relative to the experiment's folder: one per variant.

    In a sweep, every cell has its own folder with one folder per variant.
    """
    if experiment.sweep is None:
        return list(experiment.names)
    cells = [cell.name for cell in experiment.sweep.list_cells()]
    return [f"{CELLS_FOLDER}/{cell}/{name}" for cell in cells for name in experiment.names]


def _get_mtime_and_size(path: Path) -> tuple[int, int]:
    """Return the modification time (ns) and size of a file of the experiment's state, which tell if it has changed.

    Both are zero if the file does not exist.
    """
    try:
        stat = path.stat()
    except OSError:
        return 0, 0
    return stat.st_mtime_ns, stat.st_size


def downsample_curves(curves: JsonDict) -> JsonDict:
    """Reduce the curves in an experiment's state to MAX_CURVE_POINTS evenly spaced steps, the last one included."""
    steps = sorted(
        {
            step
            for variant_curves in curves.values()
            for curves_by_seed in variant_curves.values()
            for curve in curves_by_seed.values()
            for step, _ in curve
        }
    )
    stride = -(-len(steps) // MAX_CURVE_POINTS)
    if stride <= 1:
        return curves
    kept_steps = set(steps[::-1][::stride])
    return {
        variant: {
            split: {
                seed: [point for point in points if point[0] in kept_steps] for seed, points in curves_by_seed.items()
            }
            for split, curves_by_seed in variant_curves.items()
        }
        for variant, variant_curves in curves.items()
    }
