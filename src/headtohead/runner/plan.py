"""Estimate the cost of an experiment before it runs: model sizes, and times based on a few real training steps."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from headtohead.config import trial_settings
from headtohead.config.experiment import Experiment, Trial
from headtohead.config.tables.model import PretrainingConfig, TransformerConfig
from headtohead.config.tables.search import FIRST_SEARCH_SEED
from headtohead.distillation import summary_generation
from headtohead.distillation.summary_dataset import encode_split_prompts
from headtohead.distillation.teacher import build_teacher_strategy, build_teacher_trial, open_teacher
from headtohead.execution.local_worker import WORKER_BYTES, get_default_num_workers
from headtohead.experiment.run_folder import Run
from headtohead.experiment.schemas import StartFile
from headtohead.experiment.sweep_cells import build_cell_experiments
from headtohead.json_files import compute_json_checksum
from headtohead.progress import format_duration
from headtohead.runner.budgets import resolve_budgets
from headtohead.runner.detectable_effects import DetectableEffects, estimate_detectable_effects
from headtohead.runner.run_experiment import DEFAULT_RUNS_FOLDER
from headtohead.runner.search_trials import build_search_trial, check_search_is_runnable
from headtohead.search import samplers
from headtohead.tasks.pretraining import build_pretraining_trial
from headtohead.tasks.registry import prepare_dataset
from headtohead.trials.timing import estimate_trial_seconds
from headtohead.trials.trial import run_trial

FIXED_SECONDS = 10.0
"""start of the processes, description of the corpus, and the report"""
NUM_TIMED_TOKENS = 16
"""tokens of a summary that are generated to time the teacher"""
NUM_TIMED_POINTS = 3
"""points of a search that are timed"""


@dataclass(frozen=True)
class VariantPlan:
    """Size and estimated cost of one variant."""

    variant: str
    settings: dict[str, Any]
    parameters: int
    flops_per_token: int | None
    training_bytes: int
    steps: int
    seconds: float
    """estimated time of one trial on one worker"""


@dataclass(frozen=True)
class SearchPlan:
    """Size and estimated duration of a search or a tuning, before it starts."""

    points: int | None
    """number of points; of a tuning, for the baseline and for each variant; None if only time limits it"""
    trials: int | None
    """number of trials in total; None if only time limits it"""
    seconds: float
    """estimated time of one trial on one worker, averaged over a few points"""
    max_seconds: float | None
    """time limit of the search"""
    grid_size: int | None
    """number of points of the grid, if the budget covers fewer"""

    def estimate_seconds(self, num_workers: int) -> float:
        """Return the duration with this many workers, or the time limit if the number of trials is unlimited."""
        if self.trials is None:
            return self.max_seconds or 0.0
        return self.trials * self.seconds / min(num_workers, self.trials)


@dataclass(frozen=True, repr=False)
class ExperimentPlan:
    """Size and estimated duration of an experiment."""

    experiment: str
    plan: tuple[VariantPlan, ...]
    """the baseline and all variants; empty for a sweep"""
    trials: int
    """number of trials, excluding those of a search or a tuning"""
    workers: int
    preparation_seconds: float
    """estimated time of teacher outputs and pre-training that are not in the cache"""
    seconds_per_seed: float
    """estimated time of one more seed of all variants"""
    seconds: float
    """estimated time of everything"""
    memory_bytes: int
    """peak memory of all concurrent workers"""
    detectable: tuple[DetectableEffects, ...] = ()
    """effects that each variant's number of seeds can detect"""
    search: SearchPlan | None = None
    tuning: SearchPlan | None = None
    """tuning of the baseline and every variant"""
    cells: tuple[CellPlan, ...] = ()
    """cells of a sweep in the order in which they run"""

    def __repr__(self) -> str:
        size = f"{len(self.cells)} cells" if self.cells else f"{len(self.plan)} variants"
        return (
            f"<plan of {self.experiment!r}: {size}, {self.trials} trials on {self.workers} workers, "
            f"about {format_duration(self.seconds)}>"
        )

    def to_dict(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True)
class CellPlan:
    """Size and estimated duration of one cell of a sweep."""

    name: str
    coordinates: dict[str, str]
    """label of the value on each axis"""
    plan: ExperimentPlan


def plan_experiment(
    experiment: Experiment, num_workers: int | None = None, *, pilot: Path | None = None
) -> ExperimentPlan:
    """Estimate model sizes, detectable effects and times by running a few steps of every variant. Nothing is saved.

    Args:
        experiment: The experiment to plan.
        num_workers: Number of worker processes.
        pilot: Folder with earlier runs; by default the folder of the experiment, if it exists.
    """
    folder, timer = DEFAULT_RUNS_FOLDER / experiment.name, _TrialTimer()
    if experiment.sweep is None:
        return _plan_comparison(experiment, num_workers, pilot, folder, timer)
    cells = tuple(
        CellPlan(
            cell.name,
            dict(cell.cell.coordinates),
            _plan_comparison(cell.experiment, num_workers, pilot, cell.get_folder(folder), timer),
        )
        for cell in build_cell_experiments(experiment)
    )
    plans = [cell.plan for cell in cells]
    return ExperimentPlan(
        experiment.name,
        (),
        sum(plan.trials for plan in plans),
        min(plan.workers for plan in plans),
        sum(plan.preparation_seconds for plan in plans),
        sum(plan.seconds_per_seed for plan in plans),
        FIXED_SECONDS + sum(plan.seconds - FIXED_SECONDS for plan in plans),
        max(plan.memory_bytes for plan in plans),
        cells=cells,
    )


def _plan_comparison(
    experiment: Experiment, num_workers: int | None, pilot: Path | None, folder: Path, timer: _TrialTimer
) -> ExperimentPlan:
    """Return the plan of an experiment without a sweep."""
    experiment, _ = resolve_budgets(experiment, {})
    # Time a few real steps of every variant.
    variants = [_plan_variant(experiment, variant, timer) for variant in experiment.names]
    training_bytes = max(variant.training_bytes for variant in variants)
    num_trials, workers = experiment.max_seeds * len(variants), num_workers or get_default_num_workers(training_bytes)
    preparation_seconds = _estimate_preparation_seconds(experiment, workers)
    search = _plan_search(experiment) if experiment.search else None
    tuning = _plan_tuning(experiment, variants)
    selection_seconds = sum(plan.estimate_seconds(workers) for plan in (search, tuning) if plan)
    seconds_per_seed = sum(variant.seconds for variant in variants) / min(workers, num_trials)
    if search is not None:
        seconds_per_seed += variants[0].seconds / min(workers, num_trials)  # the winner
    return ExperimentPlan(
        experiment.name,
        tuple(variants),
        num_trials,
        workers,
        preparation_seconds,
        seconds_per_seed,
        FIXED_SECONDS + preparation_seconds + selection_seconds + experiment.max_seeds * seconds_per_seed,
        (WORKER_BYTES + training_bytes) * min(workers, num_trials),
        tuple(estimate_detectable_effects(experiment, pilot, folder)),
        search,
        tuning,
    )


@dataclass
class _TrialTimer:
    """Estimate trial durations from a few training steps.

    Trials that differ only in optimizer options, such as the learning rate, are timed once.
    """

    timings: dict[str, tuple[float, StartFile]] = field(default_factory=dict)
    """seconds and start.json of the trials timed so far, by a digest of the settings"""

    def time_trial(self, trial: Trial) -> tuple[float, StartFile]:
        """Return the planned duration of a trial in seconds, and its start.json, which holds the model sizes."""
        optimizer = trial.training.optimizer.model_copy(update={"options": {}})
        training = trial.training.model_copy(update={"optimizer": optimizer})
        key = compute_json_checksum(
            trial.model_copy(update={"training": training, "variant": ""}).model_dump(mode="json")
        )
        if key not in self.timings:
            with tempfile.TemporaryDirectory() as scratch:
                self.timings[key] = estimate_trial_seconds(trial, Path(scratch)), Run(Path(scratch)).start
        return self.timings[key]


def _plan_variant(experiment: Experiment, variant: str, timer: _TrialTimer) -> VariantPlan:
    """Return the estimated time, size and changed settings of a variant."""
    seconds, start = timer.time_trial(trial_settings.build_trial(experiment, variant, 0))
    settings = trial_settings.diff_settings_from_baseline(experiment, variant)
    sizes = start.parameters, start.flops_per_token, start.training_bytes, start.steps
    return VariantPlan(variant, settings, *sizes, seconds)


def _plan_tuning(experiment: Experiment, variants: Sequence[VariantPlan]) -> SearchPlan | None:
    """Return the size and duration of tuning the baseline and all variants, excluding extensions of the grid."""
    tune = experiment.tune
    if tune is None:
        return None
    num_points, num_trials = tune.compute_planned_counts()
    return SearchPlan(
        num_points,
        None if num_trials is None else num_trials * len(variants),
        sum(variant.seconds for variant in variants) / len(variants),
        None if tune.max_seconds is None else tune.max_seconds * len(variants),
        tune.count_points() if tune.method == "grid" and tune.count_points() != num_points else None,
    )


def _estimate_preparation_seconds(experiment: Experiment, num_workers: int) -> float:
    """Return the planned seconds before the first trial: pre-training, and training and running the teacher."""
    trials = [trial_settings.build_trial(experiment, variant, 0) for variant in experiment.names]
    models = [trial.model for trial in trials]
    # Trials that train the models which other trials start from or learn from
    prerequisite_trials = [
        build_pretraining_trial(trial)
        for trial, model in zip(trials, models, strict=True)
        if isinstance(model, TransformerConfig) and isinstance(model.init_from, PretrainingConfig)
    ]
    teacher = experiment.teacher
    if teacher is not None and not isinstance(teacher.model, str):
        prerequisite_trials.append(build_teacher_trial(trials[0]))
    seconds = 0.0
    for trial in prerequisite_trials:
        with tempfile.TemporaryDirectory() as scratch:
            seconds += estimate_trial_seconds(trial, Path(scratch))
    if teacher is not None and teacher.prompt:
        seconds += _estimate_summary_seconds(trials[0]) / num_workers
    return seconds


def _estimate_summary_seconds(trial: Trial) -> float:
    """Return the planned seconds in which one worker generates a teacher's summaries of the documents."""
    dataset = prepare_dataset(trial.data, trial.task)
    assert trial.teacher is not None and dataset.documents is not None
    teacher = open_teacher(trial, dataset, run_trial)
    prompts = encode_split_prompts(trial.data, dataset, teacher.tokenizer, "test")[:1]
    strategy = build_teacher_strategy(trial.teacher)
    start_time = time.perf_counter()
    summary_generation.generate_summaries(teacher.model, teacher.tokenizer, prompts, strategy, NUM_TIMED_TOKENS)
    seconds = (time.perf_counter() - start_time) * max(1.0, trial.teacher.max_new_tokens / NUM_TIMED_TOKENS)
    return seconds * sum(len(dataset.documents.splits[name]) for name in ("train", "test"))


def _plan_search(experiment: Experiment) -> SearchPlan:
    """Return the size of a search and its estimated duration, from a few timed steps at several points."""
    assert experiment.search is not None
    check_search_is_runnable(experiment)
    search = experiment.search
    timed_points = [samplers.suggest_settings(search, number, [], []) for number in range(NUM_TIMED_POINTS)]
    trial_seconds = []
    for settings in timed_points:
        if settings is not None:
            with tempfile.TemporaryDirectory() as scratch:
                trial = build_search_trial(experiment, "point", settings, FIRST_SEARCH_SEED)
                trial_seconds.append(estimate_trial_seconds(trial, Path(scratch), num_steps=1))
    num_points, num_trials = search.compute_planned_counts()
    grid_size = search.count_points() if search.method == "grid" else None
    return SearchPlan(
        num_points,
        num_trials,
        sum(trial_seconds) / len(trial_seconds),
        search.max_seconds,
        None if grid_size == num_points else grid_size,
    )
