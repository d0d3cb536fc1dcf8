"""Checks before training: the request is valid, its runs fit on the disk, and variants are scored on the same text."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import torch

from headtohead.audit.code_checks import TorchGlobals, check_model_code
from headtohead.audit.unused_code import check_unused_code
from headtohead.config.experiment import BASELINE, Experiment, Trial
from headtohead.config.loading import build_trial, diff_from_baseline
from headtohead.errors import DiskFullError, RequestError
from headtohead.findings.comparability import TextColumns, add_settings, compare_texts
from headtohead.findings.evaluation_sets import ScoreUnit
from headtohead.model_cost import ModelCost, has_user_code
from headtohead.tasks.registry import get_task, prepare_dataset
from headtohead.trials.evaluation import describe_scored_texts
from headtohead.trials.trial import build_training, compute_model_size


def check_runnable(experiment: Experiment) -> dict[str, ModelCost]:
    """Check the corpus, tokenizer and models before anything is written. Return the model size of each variant.

    Raise an error if anything is wrong with the request.
    """
    sizes = {}
    torch_globals = TorchGlobals()
    for variant in experiment.names:
        trial = build_trial(experiment, variant, 0)
        dataset = prepare_dataset(trial.data, trial.task)
        unknown_splits = [name for name in trial.data.monitor if name not in dataset.corpus.splits]
        if unknown_splits:
            test_splits = ", ".join(split.name for split in dataset.corpus.get_test_splits())
            raise RequestError(f"data.monitor: no held-out text named {unknown_splits[0]!r} (there are: {test_splits})")
        primary = experiment.primary.split
        if primary not in ("test", *dataset.corpus.splits):
            raise RequestError(
                f"primary.split: no split named {primary!r} (there are: {', '.join(dataset.corpus.splits)})"
            )
        sizes[variant] = compute_model_size(trial, dataset)
        with tempfile.TemporaryDirectory() as scratch:
            model, trainer = build_training(
                trial, dataset, Path(scratch), torch.device("cpu"), with_dependencies=False, model_size=sizes[variant]
            )
        if has_user_code(trial.model):
            batch = get_task(trial.task).build_audit_batch(trial, dataset)
            check_unused_code(model, batch, trainer.optimizer)
            check_model_code(model, batch)
            torch_globals.check_unchanged(f"the model of {variant}")
    check_scored_texts(experiment)
    return sizes


def check_disk_space(experiment: Experiment, folder: Path, num_workers: int, weights_bytes: int) -> None:
    """Raise DiskFullError if the runs do not fit on the disk.

    Every trial stores `weights_bytes` of weights; a running one also stores two checkpoints, each three times as large.
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


def check_scored_texts(experiment: Experiment) -> None:
    """Raise RequestError if a variant would be scored on a different text than every variant it is compared with."""
    trials = {name: build_trial(experiment, name, 0) for name in experiment.names}
    corpus = prepare_dataset(trials[BASELINE].data, experiment.task).corpus
    split = experiment.primary.split
    splits = [test.name for test in corpus.get_test_splits()] if split == "test" else [split]
    for name in experiment.variants:
        references = {
            BASELINE,
            *(comparison.baseline for comparison in experiment.comparisons if name in comparison.variants),
        }
        reasons = [_compare_trials(trials[reference], trials[name], splits) for reference in sorted(references)]
        if all(reasons):
            reason = add_settings(reasons[0], diff_from_baseline(experiment, name))
            raise RequestError(f"variants.{name}: it could not be compared with the baseline, because it {reason}")


def _compare_trials(reference: Trial, variant: Trial, splits: list[str]) -> str:
    """Return why two trials will not be scored on the same text, or an empty string if they will."""
    if reference.data == variant.data and reference.model.context == variant.model.context:
        return ""
    by_example = variant.spec.target.is_class
    unit = compare_texts(_describe(reference), _describe(variant), splits, by_example=by_example)
    return "" if isinstance(unit, ScoreUnit) else unit


def _describe(trial: Trial) -> TextColumns:
    """Return the columns of scores.safetensors that do not depend on the model."""
    dataset = prepare_dataset(trial.data, trial.task)
    texts = describe_scored_texts(trial, dataset, dataset.corpus.splits)
    return {f"{split}.{name}": values for split, text in texts.items() for name, values in text.to_columns().items()}
