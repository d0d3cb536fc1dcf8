"""Score the trained model of a trial on every split, and audit these scores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache, partial
from types import MappingProxyType

import numpy as np
import torch
from numpy.typing import NDArray

from headtohead.audit.data_checks import split_leakage
from headtohead.audit.rescoring import NUM_SAMPLED_ROWS, ModelRescorer
from headtohead.audit.result import CheckResult
from headtohead.audit.scoring_audit import run_scoring_checks
from headtohead.audit.training_audit import check_changed_weights, check_separate_layers, check_training_passes
from headtohead.config.experiment import Trial
from headtohead.config.tables.data import DataConfig
from headtohead.config.tables.model import CustomModelConfig
from headtohead.config.tasks import TaskName
from headtohead.data.encoding import TokenRows
from headtohead.data.scored_text import ScoredText, describe_scored_text
from headtohead.data.splits import select_evenly_spaced
from headtohead.model_cost import has_user_code
from headtohead.model_factory import build_model
from headtohead.nn.tensor_hashes import compute_tensor_hashes
from headtohead.tasks.base import TrialModel
from headtohead.tasks.dataset import Dataset
from headtohead.tasks.registry import get_task, prepare_dataset
from headtohead.training.loop import EVALUATION_BATCH_SIZE
from headtohead.training.parallel.single_process import SINGLE_PROCESS, SingleProcess
from headtohead.training.task_objectives.evaluation_pass import Evaluation
from headtohead.training.tensor_files import collect_model_tensors, load_model_tensors


def evaluate_splits(
    trial: Trial,
    dataset: Dataset,
    model: TrialModel,
    device: torch.device,
    known_evaluations: Mapping[str, Evaluation] = MappingProxyType({}),
    ranks: SingleProcess = SINGLE_PROCESS,
) -> dict[str, Evaluation]:
    """Evaluate a model on every split or, in the trials of a search, on validation data only.

    This is the only function that reads test data in full. Splits in `known_evaluations` were already scored with the
    same weights during training.
    """
    task = get_task(trial.task)
    objective = task.build_objective(dataset)
    return {
        name: known_evaluations.get(name)
        or ranks.run_evaluation_pass(
            model,
            objective,
            task.build_split_examples(trial, dataset, name).iter_batches(EVALUATION_BATCH_SIZE),
            device,
        )
        for name, split in dataset.corpus.splits.items()
        if split.role == "validation" or not trial.is_search
    }


def describe_scored_splits(trial: Trial, dataset: Dataset, splits: Iterable[str]) -> dict[str, ScoredText]:
    """Return a description of the text that a trial's evaluation scores, for each held-out split."""
    held_out_splits = [name for name in splits if dataset.corpus.splits[name].role != "train"]
    return {
        name: _describe_scored_split(trial.data.model_dump_json(), trial.task, trial.model.context, name)
        for name in held_out_splits
    }


@lru_cache(maxsize=16)
def _describe_scored_split(data_json: str, task_name: TaskName, context: int, split: str) -> ScoredText:
    """Return a description of one split's scored text. It is cached, because all seeds of a variant share it."""
    task, dataset = get_task(task_name), prepare_dataset(DataConfig.model_validate_json(data_json), task_name)
    examples = task.build_examples(dataset, dataset.encoded[split], context)
    return describe_scored_text(examples, dataset.corpus.splits[split], dataset.tokenizer, EVALUATION_BATCH_SIZE)


def audit_trial_scores(
    trial: Trial, dataset: Dataset, model: TrialModel, device: torch.device, evaluations: Mapping[str, Evaluation]
) -> list[CheckResult]:
    """Return the scoring audits of a trial: a sample of its test examples is scored again, in several ways.

    The audits run right after the final evaluation, before anything else uses the model.
    """
    task = get_task(trial.task)
    test_splits = [split.name for split in dataset.corpus.get_test_splits() if split.name in evaluations]
    split_name = (test_splits or list(evaluations))[0]
    examples = task.build_split_examples(trial, dataset, split_name)
    losses = torch.as_tensor(evaluations[split_name].losses)
    if len(losses) == len(examples.find_document_indices()):
        losses = examples.sum_scores_by_example(losses)
    batches = list(examples.sample(NUM_SAMPLED_ROWS).iter_batches(EVALUATION_BATCH_SIZE))
    batches = [batch for batch in batches if batch.attention_mask is None] or batches
    batches = [batches[i] for i in select_evenly_spaced(len(batches), NUM_SAMPLED_ROWS // EVALUATION_BATCH_SIZE)]
    example_indices = torch.cat([batch.example_indices for batch in batches if batch.example_indices is not None])
    has_loss_per_example = trial.spec.scores_every_row and len(losses) == examples.num_examples
    rescorer = ModelRescorer(
        model,
        task.build_objective(dataset),
        batches,
        target=trial.spec.target,
        device=device,
        recorded_losses=losses[example_indices] if has_loss_per_example else None,
        seed=trial.seed,
    )
    rebuild_model = partial(_rebuild_trained_model, trial, dataset, model) if has_user_code(trial.model) else None
    return run_scoring_checks(rescorer, [evaluations[name] for name in test_splits], rebuild_model)


def audit_trial_training(
    trial: Trial,
    dataset: Dataset,
    model: TrialModel,
    device: torch.device,
    initial_hashes: Mapping[str, str],
    chosen_step: int,
) -> list[CheckResult]:
    """Return the audits of how a trial's model was trained.

    `initial_hashes` are the hashes of its tensors at step 0, and `chosen_step` is the step after which its weights were
    kept.
    """
    results = [check_changed_weights(model, initial_hashes)] if chosen_step else []
    if not has_user_code(trial.model):
        return results
    task = get_task(trial.task)
    objective, batch = task.build_objective(dataset), task.build_audit_batch(trial, dataset).to(device)
    initial_weights_differ = False
    if isinstance(trial.model, CustomModelConfig):  # parts are initialized from (seed, module name)
        rebuilt_hashes = compute_tensor_hashes(_build_trial_model(trial, dataset))
        initial_weights_differ = any(initial_hashes.get(name) != value for name, value in rebuilt_hashes.items())
        results.append(check_separate_layers(model))
    return [*results, *check_training_passes(model, batch, objective.compute_loss, initial_weights_differ)]


def _rebuild_trained_model(trial: Trial, dataset: Dataset, model: TrialModel) -> TrialModel:
    """Return a new model with the tensors of a trial's trained model, to audit the evaluation.

    The scoring audits compare both, to detect state of user code that is not saved.
    """
    rebuilt_model = _build_trial_model(trial, dataset)
    load_model_tensors(rebuilt_model, collect_model_tensors(model), "the trained model")
    return rebuilt_model


def _build_trial_model(trial: Trial, dataset: Dataset) -> TrialModel:
    """Return a new model of a trial with its own initial weights, without those that it copies from other models."""
    return build_model(
        trial.model,
        dataset.tokenizer.vocab_size,
        dataset.num_classes,
        is_causal=trial.spec.target.is_causal,
        seed=trial.seed,
    )


def find_unseen_rows(trial: Trial, dataset: Dataset) -> dict[str, tuple[str, NDArray[np.intp]]]:
    """Return the subsets to evaluate during training: rows of each monitored split that do not occur in train.

    The result maps the name of each subset to its split and row indices. Splits that share no rows with the training
    split are omitted.
    """
    subsets = {}
    for name in trial.data.monitor:
        encoded = dataset.encoded[name]
        if not isinstance(encoded, TokenRows) or not trial.spec.scores_every_row:
            continue
        row_indices = np.flatnonzero(
            split_leakage.compute_unseen_mask(dataset.corpus, name, allow_overlap=trial.data.allow_overlap)
        )
        if 0 < len(row_indices) < len(encoded):
            subsets[f"{name}, unseen rows"] = name, row_indices
    return subsets
