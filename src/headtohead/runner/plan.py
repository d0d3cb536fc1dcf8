"""Estimate an experiment's cost before it runs: model sizes, and times based on a few real training steps."""

from __future__ import annotations

import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from headtohead.config import loading
from headtohead.config.experiment import Experiment, Trial
from headtohead.config.model import PretrainingConfig, TransformerConfig
from headtohead.config.search import FIRST_SEARCH_SEED
from headtohead.distillation import summarization
from headtohead.distillation.teacher import build_teacher_strategy, build_teacher_trial, open_teacher
from headtohead.distillation.teacher_texts import build_summary_prompts
from headtohead.execution.local_worker import default_num_workers
from headtohead.experiment.run_folder import Run
from headtohead.progress import format_duration
from headtohead.runner.detectable_effects import DetectableEffects, estimate_detectable_effects
from headtohead.runner.run_experiment import DEFAULT_RUNS_FOLDER
from headtohead.runner.run_search import build_search_trial, check_search
from headtohead.search import samplers
from headtohead.tasks.pretraining import build_pretraining_trial
from headtohead.tasks.registry import prepare_dataset
from headtohead.trials.time_estimate import estimate_seconds
from headtohead.trials.trial import run_trial

FIXED_SECONDS = 10.0
"""start of the processes, description of the corpus, and the report"""
NUM_TIMED_TOKENS = 16
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
    """Size and estimated duration of a search, before it starts."""

    points: int | None
    trials: int | None
    seconds: float
    """per trial on one worker, averaged over a few points"""
    minutes: float | None
    """time budget"""
    grid_size: int | None
    """number of points of the grid, if the budget covers fewer"""


@dataclass(frozen=True, repr=False)
class ExperimentPlan:
    """Size and estimated duration of an experiment."""

    experiment: str
    plan: tuple[VariantPlan, ...]
    trials: int
    workers: int
    preparation_seconds: float
    """teacher outputs and pre-training, if they are not in the cache"""
    seconds: float
    """estimated time of everything"""
    memory_bytes: int
    """weights, gradients, optimizer state and logits of all concurrent trials"""
    detectable: tuple[DetectableEffects, ...] = ()
    """effects that each variant's number of seeds can detect"""
    search: SearchPlan | None = None

    def __repr__(self) -> str:
        return (
            f"<plan of {self.experiment!r}: {len(self.plan)} variants, {self.trials} trials on {self.workers} workers, "
            f"about {format_duration(self.seconds)}>"
        )

    def to_dict(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}


def plan_experiment(
    experiment: Experiment, num_workers: int | None = None, *, pilot: Path | None = None
) -> ExperimentPlan:
    """Return model sizes, detectable effects and estimated times, measured by running a few steps of every variant.

    Nothing is saved. `pilot` is a folder with earlier runs; it defaults to the experiment's own folder, if it exists.
    """
    # Time a few real steps of every variant.
    variants = [_plan_variant(experiment, variant) for variant in experiment.names]
    num_trials, workers = experiment.max_seeds * len(variants), num_workers or default_num_workers()
    preparation_seconds = _estimate_preparation(experiment, workers)
    seconds = experiment.max_seeds * sum(variant.seconds for variant in variants) / min(workers, num_trials)
    search = plan_search(experiment) if experiment.search else None
    if search is not None and search.trials is not None:
        seconds += search.trials * search.seconds / min(workers, search.trials)
        seconds += experiment.max_seeds * variants[0].seconds / min(workers, num_trials)  # the winner
    return ExperimentPlan(
        experiment.name,
        tuple(variants),
        num_trials,
        workers,
        preparation_seconds,
        FIXED_SECONDS + preparation_seconds + seconds,
        max(variant.training_bytes for variant in variants) * min(workers, num_trials),
        tuple(estimate_detectable_effects(experiment, pilot, DEFAULT_RUNS_FOLDER / experiment.name)),
        search,
    )


def _plan_variant(experiment: Experiment, variant: str) -> VariantPlan:
    """Estimate the time of a variant by timing a few steps, and collect its size and changed settings."""
    with tempfile.TemporaryDirectory() as scratch:
        seconds = estimate_seconds(loading.build_trial(experiment, variant, 0), Path(scratch))
        start = Run(Path(scratch)).start
    settings = loading.diff_from_baseline(experiment, variant)
    sizes = start.parameters, start.flops_per_token, start.training_bytes, start.steps
    return VariantPlan(variant, settings, *sizes, seconds)


def _estimate_preparation(experiment: Experiment, num_workers: int) -> float:
    """Return the time in seconds for pre-training, training the teacher and generating its texts."""
    trials = [loading.build_trial(experiment, variant, 0) for variant in experiment.names]
    models = [trial.model for trial in trials]
    # Trials that run first: encoder pre-training and the teacher.
    dependencies = [
        build_pretraining_trial(trial)
        for trial, model in zip(trials, models, strict=True)
        if isinstance(model, TransformerConfig) and isinstance(model.init_from, PretrainingConfig)
    ]
    teacher = experiment.teacher
    if teacher is not None and not isinstance(teacher.model, str):
        dependencies.append(build_teacher_trial(trials[0]))
    seconds = 0.0
    for trial in dependencies:
        with tempfile.TemporaryDirectory() as scratch:
            seconds += estimate_seconds(trial, Path(scratch))
    return seconds + (_estimate_summaries(trials[0]) / num_workers if teacher is not None and teacher.prompt else 0.0)


def _estimate_summaries(trial: Trial) -> float:
    """Return the time in seconds that one worker needs to generate the teacher's training texts and test summaries."""
    dataset = prepare_dataset(trial.data, trial.task)
    assert trial.teacher is not None and dataset.documents is not None
    teacher = open_teacher(trial, dataset, run_trial)
    prompts = build_summary_prompts(trial.data, dataset, teacher.tokenizer, "test")[:1]
    strategy = build_teacher_strategy(trial.teacher)
    start_time = time.perf_counter()
    summarization.generate_summaries(teacher.model, teacher.tokenizer, prompts, strategy, NUM_TIMED_TOKENS)
    seconds = (time.perf_counter() - start_time) * max(1.0, trial.teacher.max_new_tokens / NUM_TIMED_TOKENS)
    return seconds * sum(len(dataset.documents.splits[name]) for name in ("train", "test"))


def plan_search(experiment: Experiment) -> SearchPlan:
    """Return the size of a search and its estimated duration, from a few timed steps at a few points."""
    assert experiment.search is not None
    check_search(experiment)
    search = experiment.search
    settings = [samplers.suggest_settings(search, number, [], []) for number in range(NUM_TIMED_POINTS)]
    seconds = []
    for values in settings:
        if values is not None:
            with tempfile.TemporaryDirectory() as scratch:
                trial = build_search_trial(experiment, "point", values, FIRST_SEARCH_SEED)
                seconds.append(estimate_seconds(trial, Path(scratch), num_steps=1))
    points, trials = search.compute_planned_counts()
    grid_size = search.count_points() if search.method == "grid" else None
    minutes = search.budget.minutes if search.budget else None
    return SearchPlan(points, trials, sum(seconds) / len(seconds), minutes, grid_size if grid_size != points else None)
