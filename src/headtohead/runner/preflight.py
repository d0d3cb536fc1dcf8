"""Check before anything is written that an experiment can run: models, corpus, disk space and comparable scores."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import torch

from headtohead.audit.forbidden_code import check_forbidden_code
from headtohead.audit.torch_globals import TorchGlobalsSnapshot
from headtohead.audit.unused_code import check_unused_code
from headtohead.config.experiment import BASELINE, Experiment, Trial
from headtohead.config.trial_settings import build_trial, diff_settings_from_baseline
from headtohead.errors import DiskFullError, RequestError
from headtohead.findings.comparability import ScoreColumns, add_settings_to_reason, compare_scored_texts
from headtohead.findings.example_scores import ScoreUnit
from headtohead.model_cost import ModelCost, has_user_code
from headtohead.nn.parts.context import TrainingContext
from headtohead.tasks.registry import get_task, prepare_dataset
from headtohead.training.parts.schedule import Schedule
from headtohead.trials.evaluation import describe_scored_splits
from headtohead.trials.step_cost import compute_trial_model_cost
from headtohead.trials.trial import build_training

MIN_LR_FACTOR = 0.01
"""if all factors are smaller, the warmup is too long, or the schedule returns learning rates instead of factors"""
NUM_CHECKED_STEPS = 200


def check_runnable(experiment: Experiment) -> dict[str, ModelCost]:
    """Check before a run that every variant's corpus, tokenizer and model can be built; return the cost of each model.

    Raises:
        RequestError: If a variant cannot be trained or cannot be compared with its baseline.
    """
    model_costs = {}
    torch_globals = TorchGlobalsSnapshot()
    for variant in experiment.names:
        trial = build_trial(experiment, variant, 0)
        dataset = prepare_dataset(trial.data, trial.task)
        unknown_splits = [name for name in trial.data.monitor if name not in dataset.corpus.splits]
        if unknown_splits:
            test_splits = ", ".join(split.name for split in dataset.corpus.get_test_splits())
            raise RequestError(f"data.monitor: no held-out text named {unknown_splits[0]!r} (available: {test_splits})")
        primary_split = experiment.primary.split
        if primary_split not in ("test", *dataset.corpus.splits):
            raise RequestError(
                f"primary.split: no split named {primary_split!r} (available: {', '.join(dataset.corpus.splits)})"
            )
        model_costs[variant] = compute_trial_model_cost(trial, dataset)
        with tempfile.TemporaryDirectory() as scratch:
            model, trainer = build_training(
                trial,
                dataset,
                Path(scratch),
                torch.device("cpu"),
                with_dependencies=False,
                model_cost=model_costs[variant],
            )
        if not experiment.quick:
            _check_schedule(trial, trainer.optimizer.lr_schedule, trainer.total_steps)
        if has_user_code(trial.model):
            batch = get_task(trial.task).build_audit_batch(trial, dataset)
            check_unused_code(model, batch, trainer.optimizer)
            check_forbidden_code(model, batch, trainer.objective.compute_loss, trainer.optimizer.parameters)
            torch_globals.raise_if_changed(f"the model of {variant}")
    check_scored_text(experiment)
    return model_costs


def _check_schedule(trial: Trial, schedule: Schedule, total_steps: int) -> None:
    """Raise RequestError if a schedule never reaches a hundredth of the learning rate of the file."""
    steps = {step * (total_steps - 1) // NUM_CHECKED_STEPS for step in range(NUM_CHECKED_STEPS + 1)}
    largest_factor = max(float(schedule.get_factor(TrainingContext(step, total_steps))) for step in steps)
    if largest_factor < MIN_LR_FACTOR:
        raise RequestError(
            f"training.schedule: the factor of {trial.training.schedule.kind} is at most {largest_factor:.2g} in "
            f"{total_steps:,} steps, so almost nothing is trained; shorten the warmup, or let get_factor() return a "
            "multiple of the learning rate, such as 1"
        )


def check_disk_space(experiment: Experiment, folder: Path, num_workers: int, weights_bytes: int) -> None:
    """Check before a run that it fits on the disk; raise DiskFullError if not.

    Every trial stores `weights_bytes` of weights. A running trial also stores two checkpoints, each three times as
    large.
    """
    num_trials = experiment.max_seeds * len(experiment.names)
    required_bytes = weights_bytes * num_trials + 6 * weights_bytes * min(num_workers, num_trials)
    existing_folder = next(candidate for candidate in (folder, *folder.absolute().parents) if candidate.exists())
    free_bytes = shutil.disk_usage(existing_folder).free
    if free_bytes < required_bytes:
        explanation = (
            f"the runs need about {required_bytes / 1e6:.1f} MB and the disk has {free_bytes / 1e6:.1f} MB left"
        )
        raise DiskFullError(f"{folder}: {explanation}")


def check_scored_text(experiment: Experiment) -> None:
    """Check before a run that variants are scored on the same text as those they are compared with."""
    trials = {name: build_trial(experiment, name, 0) for name in experiment.names}
    corpus = prepare_dataset(trials[BASELINE].data, experiment.task).corpus
    split = experiment.primary.split
    splits = [test.name for test in corpus.get_test_splits()] if split == "test" else [split]
    for name in experiment.variants:
        references = {
            BASELINE,
            *(comparison.baseline for comparison in experiment.comparisons if name in comparison.variants),
        }
        reasons = [_explain_different_text(trials[reference], trials[name], splits) for reference in sorted(references)]
        if all(reasons):
            reason = add_settings_to_reason(reasons[0], diff_settings_from_baseline(experiment, name))
            raise RequestError(f"variants.{name}: cannot be compared with the baseline, because it {reason}")


def _explain_different_text(reference: Trial, variant: Trial, splits: list[str]) -> str:
    """Return why two trials would be scored on different text, or an empty string if they would not."""
    if reference.data == variant.data and reference.model.context == variant.model.context:
        return ""
    by_example = variant.spec.target.is_class_label
    unit_or_reason = compare_scored_texts(
        _describe_scored_columns(reference), _describe_scored_columns(variant), splits, by_example=by_example
    )
    return "" if isinstance(unit_or_reason, ScoreUnit) else unit_or_reason


def _describe_scored_columns(trial: Trial) -> ScoreColumns:
    """Return the columns of scores.safetensors that a trial will have, before it runs: those of the scored text."""
    dataset = prepare_dataset(trial.data, trial.task)
    scored_splits = describe_scored_splits(trial, dataset, dataset.corpus.splits)
    return {
        f"{split}.{column}": values
        for split, scored_text in scored_splits.items()
        for column, values in scored_text.to_columns().items()
    }
