"""Score a trained model on its dataset's splits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache, partial
from types import MappingProxyType

import numpy as np
import torch
from numpy.typing import NDArray

from headtohead.audit.data_checks import leakage
from headtohead.audit.result import CheckResult
from headtohead.audit.scoring_audit import run_scoring_checks
from headtohead.audit.scoring_probe import NUM_SAMPLED_ROWS, ScoringProbe
from headtohead.config.data import DataConfig
from headtohead.config.experiment import Trial
from headtohead.config.tasks import TaskName
from headtohead.data.encoding import TokenRows
from headtohead.data.scored_text import ScoredText, describe_scored_text
from headtohead.data.splits import select_evenly_spaced
from headtohead.model_cost import has_user_code
from headtohead.model_factory import build_model
from headtohead.tasks.base import TrialModel
from headtohead.tasks.dataset import Dataset
from headtohead.tasks.registry import get_task, prepare_dataset
from headtohead.training.checkpoints import collect_model_tensors, load_tensors
from headtohead.training.loop import EVALUATION_BATCH_SIZE
from headtohead.training.objectives import Evaluation
from headtohead.training.processes import SINGLE_PROCESS, SingleProcess


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
        or ranks.evaluate(
            model, objective, task.build_split_examples(trial, dataset, name).batches(EVALUATION_BATCH_SIZE), device
        )
        for name, split in dataset.corpus.splits.items()
        if split.role == "validation" or not trial.is_search
    }


def describe_scored_texts(trial: Trial, dataset: Dataset, splits: Iterable[str]) -> dict[str, ScoredText]:
    """Describe the text that each held-out split's scores refer to."""
    held_out = [name for name in splits if dataset.corpus.splits[name].role != "train"]
    return {
        name: _describe_scored_text(trial.data.model_dump_json(), trial.task, trial.model.context, name)
        for name in held_out
    }


@lru_cache(maxsize=16)
def _describe_scored_text(data_json: str, task_name: TaskName, context: int, split: str) -> ScoredText:
    """Describe one split's scored text, which all seeds of a variant share."""
    task, dataset = get_task(task_name), prepare_dataset(DataConfig.model_validate_json(data_json), task_name)
    examples = task.build_examples(dataset, dataset.encoded[split], context)
    return describe_scored_text(examples, dataset.corpus.splits[split], dataset.tokenizer, EVALUATION_BATCH_SIZE)


def audit_scores(
    trial: Trial, dataset: Dataset, model: TrialModel, device: torch.device, evaluations: Mapping[str, Evaluation]
) -> list[CheckResult]:
    """Rescore a sample of the test rows right after the final scoring, and check that the scores agree."""
    task = get_task(trial.task)
    names = [split.name for split in dataset.corpus.get_test_splits() if split.name in evaluations]
    name = (names or list(evaluations))[0]
    examples, losses = task.build_split_examples(trial, dataset, name), torch.as_tensor(evaluations[name].losses)
    if len(losses) == len(examples.find_documents()):
        losses = examples.sum_by_example(losses)
    batches = list(examples.sample(NUM_SAMPLED_ROWS).batches(EVALUATION_BATCH_SIZE))
    batches = [batch for batch in batches if batch.attention_mask is None] or batches
    batches = [batches[i] for i in select_evenly_spaced(len(batches), NUM_SAMPLED_ROWS // EVALUATION_BATCH_SIZE)]
    indices = torch.cat([batch.example_indices for batch in batches if batch.example_indices is not None])
    is_known = trial.spec.scores_every_row and len(losses) == examples.count
    probe = ScoringProbe(
        model,
        task.build_objective(dataset),
        batches,
        target=trial.spec.target,
        device=device,
        recorded=losses[indices] if is_known else None,
        seed=trial.seed,
    )
    rebuild = partial(_rebuild_model, trial, dataset, model) if has_user_code(trial.model) else None
    return run_scoring_checks(probe, [evaluations[test_name] for test_name in names], rebuild)


def _rebuild_model(trial: Trial, dataset: Dataset, model: TrialModel) -> TrialModel:
    """Return a new model with a trained model's saved tensors, as if it were loaded from its folder."""
    rebuilt = build_model(
        trial.model,
        dataset.tokenizer.vocab_size,
        dataset.num_classes,
        is_causal=trial.spec.target.is_causal,
        seed=trial.seed,
    )
    load_tensors(rebuilt, collect_model_tensors(model), "the trained model")
    return rebuilt


def find_unseen_rows(trial: Trial, dataset: Dataset) -> dict[str, tuple[str, NDArray[np.intp]]]:
    """Return the rows of each monitored split that do not occur in the training split.

    Splits that share no rows with the training split are omitted. Maps each subset's name to (split, row indices).
    """
    subsets = {}
    for name in trial.data.monitor:
        encoded = dataset.encoded[name]
        if not isinstance(encoded, TokenRows) or not trial.spec.scores_every_row:
            continue
        row_indices = np.flatnonzero(
            leakage.compute_unseen_mask(dataset.corpus, name, allow_overlap=trial.data.allow_overlap)
        )
        if 0 < len(row_indices) < len(encoded):
            subsets[f"{name}, unseen rows"] = name, row_indices
    return subsets
