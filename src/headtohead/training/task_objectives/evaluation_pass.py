"""One evaluation pass: score all batches of a split with a task's objective, example by example."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from headtohead.data.batches import Batch
from headtohead.training.task_objectives.base import TaskObjective

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Evaluation:
    """The scores of each example in a split, as columns of shape (examples,).

    The columns are `losses` (summed over the predictions of an example), `counts` (number of predictions) and
    `correct`; for a classifier also `labels` and `guessed`.
    """

    columns: dict[str, FloatArray]

    @property
    def losses(self) -> FloatArray:
        """The loss of each example, summed over its predictions."""
        return self.columns["losses"]

    @property
    def counts(self) -> FloatArray:
        """The number of predictions of each example."""
        return self.columns["counts"]

    @property
    def loss(self) -> float:
        """The mean loss per prediction."""
        return float(self.losses.sum() / self.counts.sum())

    @property
    def perplexity(self) -> float:
        """exp(mean loss), infinite if it overflows."""
        return math.inf if self.loss > 700.0 else float(np.exp(self.loss))

    @property
    def accuracy(self) -> float:
        """The fraction of correct predictions."""
        return float(self.columns["correct"].sum() / self.counts.sum())

    def select_examples(self, example_indices: NDArray[np.intp]) -> "Evaluation":
        """Return the scores of the examples at these indices, in this order."""
        return Evaluation({name: column[example_indices] for name, column in self.columns.items()})


@torch.no_grad()
def run_evaluation_pass(
    model: nn.Module, objective: TaskObjective, batches: Iterable[Batch], device: torch.device
) -> Evaluation:
    """Score all batches with the model in evaluation mode; return the scores of all examples, in their order. The
    previous training mode is restored.
    """
    was_training = model.training
    model.eval()
    batch_scores, example_indices = [], []
    for batch in batches:
        batch_scores.append(objective.score_batch(model, batch.to(device)))
        example_indices.append(batch.score_indices)
    model.train(was_training)
    columns = {name: torch.cat([scores[name].double().cpu() for scores in batch_scores]) for name in batch_scores[0]}
    if all(indices is not None for indices in example_indices):
        order = torch.cat([indices for indices in example_indices if indices is not None]).argsort()
        columns = {name: column[order] for name, column in columns.items()}
    return Evaluation({name: column.numpy() for name, column in columns.items()})
