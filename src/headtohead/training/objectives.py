"""Objectives: the loss that a task minimizes and the scores that it reports."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from headtohead.data.batches import IGNORE_INDEX, Batch
from headtohead.nn.token_losses import compute_token_losses
from headtohead.nn.transformer import Transformer
from headtohead.pretrained.layer_dropping import StudentModel
from headtohead.training.cross_entropy import chunked_linear_cross_entropy, score_predictions

FloatArray = NDArray[np.float64]

MASKED_COPIES = 256
"""masked copies per forward pass when computing pseudo-perplexity"""


@dataclass(frozen=True)
class Evaluation:
    """The scores for each example in a split, as columns of shape (examples,).

    The columns are `losses` (summed over the predictions of an example), `counts` (number of predictions) and
    `correct`; for a classifier also `labels` and `guessed`.
    """

    columns: dict[str, FloatArray]

    @property
    def losses(self) -> FloatArray:
        return self.columns["losses"]

    @property
    def counts(self) -> FloatArray:
        return self.columns["counts"]

    @property
    def loss(self) -> float:
        """The mean loss per prediction."""
        return float(self.losses.sum() / self.counts.sum())

    @property
    def perplexity(self) -> float:
        return math.inf if self.loss > 700.0 else float(np.exp(self.loss))

    @property
    def accuracy(self) -> float:
        return float(self.columns["correct"].sum() / self.counts.sum())

    def pick(self, indices: NDArray[np.intp]) -> "Evaluation":
        """Return the scores for the examples at these indices."""
        return Evaluation({name: column[indices] for name, column in self.columns.items()})


@runtime_checkable
class Objective(Protocol):
    """The interface between a task and the training loop."""

    metric: str

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean loss of a batch."""

    def score(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Return the columns of an `Evaluation`, one value for each of `batch.score_indices`."""


class LanguageModelObjective:
    """Predict the next token."""

    metric = "perplexity"
    predicts_every_position = True
    """whether every position in an unpadded batch is predicted"""

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        if has_linear_output(model):
            return chunked_linear_cross_entropy(*self.select_predicted_hidden_states(model, batch))
        logits = model(batch.input_ids, batch.attention_mask).logits
        return F.cross_entropy(logits.flatten(0, 1), batch.labels.flatten(), ignore_index=IGNORE_INDEX)

    def score(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Return losses, counts and correct predictions, summed per row or, for packed rows, per segment."""
        losses, is_correct = self.score_tokens(model, batch)
        is_predicted = batch.labels != IGNORE_INDEX
        columns = {"losses": losses, "counts": is_predicted, "correct": is_correct}
        if batch.segments is None:
            return {name: values.sum(1) for name, values in columns.items()}
        segments, indices = batch.segments[is_predicted].unique(return_inverse=True)
        zeros = torch.zeros(len(segments), dtype=torch.float64, device=losses.device)
        return {name: zeros.index_add(0, indices, values[is_predicted].double()) for name, values in columns.items()}

    def score_tokens(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return each prediction's loss and whether it is correct, both (batch, length) and 0 where nothing is
        predicted.
        """
        is_predicted = batch.labels != IGNORE_INDEX
        losses = torch.zeros(batch.labels.shape, dtype=torch.float64, device=is_predicted.device)
        is_correct = torch.zeros_like(is_predicted)
        if has_linear_output(model):
            token_losses, token_is_correct = score_predictions(*self.select_predicted_hidden_states(model, batch))
            losses[is_predicted], is_correct[is_predicted] = token_losses.double(), token_is_correct
        else:
            logits = model(batch.input_ids, batch.attention_mask).logits[is_predicted]
            labels = batch.labels[is_predicted]
            losses[is_predicted] = compute_token_losses(logits, labels)
            is_correct[is_predicted] = logits.argmax(-1) == labels
        return losses, is_correct

    def select_predicted_hidden_states(self, model: Any, batch: Batch) -> tuple[nn.Linear, Tensor, Tensor]:
        """Return the output layer, the hidden states to predict from, (predictions, width), and the labels,
        (predictions,).
        """
        output = model.compute_hidden_states(batch.input_ids, batch.attention_mask)
        hidden_states = output[0] if isinstance(output, tuple) else output
        if batch.attention_mask is None and self.predicts_every_position:
            return model.output, hidden_states.flatten(0, 1), batch.labels.flatten()
        is_predicted = batch.labels != IGNORE_INDEX
        return model.output, hidden_states[is_predicted], batch.labels[is_predicted]


def has_linear_output(model: nn.Module) -> bool:
    """Return whether a linear layer maps hidden states to logits, so that it can be applied to selected positions."""
    return isinstance(model, Transformer) or (isinstance(model, StudentModel) and model.is_output_linear())


class MaskedLanguageModelObjective(LanguageModelObjective):
    """Predict masked tokens; score by pseudo-perplexity, after Salazar et al. 2020, arXiv:1910.14659."""

    predicts_every_position = False

    def __init__(self, mask_id: int) -> None:
        self.mask_id = mask_id

    def score(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Score each labeled token with only that token masked, using one copy of its row per token; sum losses per
        row.
        """
        row_indices, positions = (batch.labels != IGNORE_INDEX).nonzero(as_tuple=True)
        totals = {
            name: torch.zeros(len(batch.labels), dtype=torch.float64, device=row_indices.device)
            for name in ("losses", "counts", "correct")
        }
        for chunk_rows, chunk_positions in zip(
            row_indices.split(MASKED_COPIES), positions.split(MASKED_COPIES), strict=True
        ):
            copy_indices = torch.arange(len(chunk_rows), device=chunk_rows.device)
            input_ids, labels = batch.input_ids[chunk_rows], torch.full_like(batch.labels[chunk_rows], IGNORE_INDEX)
            labels[copy_indices, chunk_positions] = batch.labels[chunk_rows, chunk_positions]
            input_ids[copy_indices, chunk_positions] = self.mask_id
            attention_mask = None if batch.attention_mask is None else batch.attention_mask[chunk_rows]
            for name, values in super().score(model, Batch(input_ids, labels, attention_mask)).items():
                totals[name].index_add_(0, chunk_rows, values.double())
        return totals


class ClassificationObjective:
    """Predict the class of a text."""

    metric = "accuracy"

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch.input_ids, batch.attention_mask).logits, batch.labels)

    def score(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Return each row's loss, label and predicted class."""
        logits = model(batch.input_ids, batch.attention_mask).logits
        losses = F.cross_entropy(logits, batch.labels, reduction="none")
        guessed = logits.argmax(-1)
        return {
            "losses": losses,
            "counts": torch.ones_like(batch.labels),
            "correct": guessed == batch.labels,
            "labels": batch.labels,
            "guessed": guessed,
        }


@torch.no_grad()
def evaluate(model: nn.Module, objective: Objective, batches: Iterable[Batch], device: torch.device) -> Evaluation:
    """Score all batches in evaluation mode and return the scores in example order. The previous training mode is
    restored.
    """
    was_training = model.training
    model.eval()
    batch_scores, example_indices = [], []
    for batch in batches:
        batch_scores.append(objective.score(model, batch.to(device)))
        example_indices.append(batch.score_indices)
    model.train(was_training)
    columns = {name: torch.cat([scores[name].double().cpu() for scores in batch_scores]) for name in batch_scores[0]}
    if all(indices is not None for indices in example_indices):
        order = torch.cat([indices for indices in example_indices if indices is not None]).argsort()
        columns = {name: column[order] for name, column in columns.items()}
    return Evaluation({name: column.numpy() for name, column in columns.items()})
