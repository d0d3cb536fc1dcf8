"""Score a trained model on the splits of its dataset."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
import torch
from numpy.typing import NDArray

from headtohead.audit.data_checks import leakage
from headtohead.config.experiment import Trial
from headtohead.data.batches import TokenRows
from headtohead.tasks.base import TrialModel
from headtohead.tasks.dataset import Dataset
from headtohead.tasks.registry import get_task
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
    """Evaluate a model on every split; in trials of a search, on validation data only.

    This is the only function that reads test data in full. Splits in `known_evaluations` were scored with the same
    weights during training and are not scored again.
    """
    task = get_task(trial.task)
    objective = task.build_objective(dataset)
    return {
        name: known_evaluations.get(name)
        or ranks.evaluate(
            model, objective, task.build_split_examples(trial, dataset, name).batches(EVALUATION_BATCH_SIZE), device
        )
        for name, split in dataset.corpus.splits.items()
        if split.role == "validation" or not trial.choosing
    }


def find_unseen_rows(trial: Trial, dataset: Dataset) -> dict[str, tuple[str, NDArray[np.intp]]]:
    """Return the rows of each monitored split that do not occur in the training split.

    Splits that share no rows with the training split are omitted. Maps the name of the subset to (split, row indices).
    """
    subsets = {}
    for name in trial.data.monitor:
        encoded = dataset.encoded[name]
        if not isinstance(encoded, TokenRows) or not trial.spec.scores_every_row:
            continue
        row_indices = np.flatnonzero(leakage.compute_unseen_mask(dataset.corpus, name))
        if 0 < len(row_indices) < len(encoded):
            subsets[f"{name}, unseen rows"] = name, row_indices
    return subsets
