"""Objectives: the loss that a task minimises and the scores that it reports. The training loop knows neither."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from headtohead.data.batches import IGNORE_INDEX, Batch
from headtohead.nn.transformer import Transformer
from headtohead.training.cross_entropy import chunked_linear_cross_entropy, score_predictions

FloatArray = NDArray[np.float64]

MASKED_COPIES = 256
"""rows of a forward pass that computes pseudo-perplexity"""


@dataclass(frozen=True)
class Evaluation:
    """Scores of each example of a split, as columns: `losses` (sum over its predictions), `counts` (number of
    predictions) and `correct`; of a classifier also `labels` and `guessed`."""

    columns: dict[str, FloatArray]

    @property
    def losses(self) -> FloatArray:
        return self.columns["losses"]

    @property
    def counts(self) -> FloatArray:
        return self.columns["counts"]

    @property
    def loss(self) -> float:
        """Mean loss per prediction, weighted by the predictions of each example."""
        return float(self.losses.sum() / self.counts.sum())

    @property
    def perplexity(self) -> float:
        return float(np.exp(min(self.loss, 700.0)))

    @property
    def accuracy(self) -> float:
        return float(self.columns["correct"].sum() / self.counts.sum())

    def pick(self, indices: NDArray[np.intp]) -> "Evaluation":
        """Return the scores of the examples at these indices."""
        return Evaluation({name: column[indices] for name, column in self.columns.items()})


@runtime_checkable
class Objective(Protocol):
    """What the training loop needs of a task."""

    metric: str

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean loss of a batch."""

    def score(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Return the columns of an `Evaluation`, one value per row of the batch."""


class LanguageModelObjective:
    """Predict the next token."""

    metric = "perplexity"

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        if isinstance(model, Transformer):
            hidden, labels = self._select_predicted_hidden_states(model, batch)
            return chunked_linear_cross_entropy(model.output, hidden, labels)
        logits = model(batch.input_ids, batch.attention_mask).logits
        return F.cross_entropy(logits.flatten(0, 1), batch.labels.flatten(), ignore_index=IGNORE_INDEX)

    def score(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        counted = batch.labels != IGNORE_INDEX
        losses = torch.zeros(batch.labels.shape, dtype=torch.float64, device=counted.device)
        right = torch.zeros_like(counted)
        if isinstance(model, Transformer):
            hidden, labels = self._select_predicted_hidden_states(model, batch)
            token_losses, is_correct = score_predictions(model.output, hidden, labels)
            losses[counted], right[counted] = token_losses.double(), is_correct
        else:
            logits = model(batch.input_ids, batch.attention_mask).logits[counted]
            labels = batch.labels[counted]
            losses[counted] = F.cross_entropy(logits, labels, reduction="none").double()
            right[counted] = logits.argmax(-1) == labels
        return {"losses": losses.sum(1), "counts": counted.sum(1), "correct": right.sum(1)}

    @staticmethod
    def _select_predicted_hidden_states(model: Transformer, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return hidden states (predictions, width) and labels (predictions) of the positions to predict."""
        hidden, _ = model.compute_hidden_states(batch.input_ids, batch.attention_mask)
        if batch.attention_mask is None:
            return hidden.flatten(0, 1), batch.labels.flatten()
        counted = batch.labels != IGNORE_INDEX
        return hidden[counted], batch.labels[counted]


class MaskedLanguageModelObjective(LanguageModelObjective):
    """Predict masked tokens; score by pseudo-perplexity, after Salazar et al. 2020, arXiv:1910.14659."""

    def __init__(self, mask_id: int) -> None:
        self.mask_id = mask_id

    def score(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Mask each labelled token alone, one copy of its row per token, and sum the losses by row."""
        rows, positions = (batch.labels != IGNORE_INDEX).nonzero(as_tuple=True)
        totals = {
            name: torch.zeros(len(batch.labels), dtype=torch.float64, device=rows.device)
            for name in ("losses", "counts", "correct")
        }
        for row, position in zip(rows.split(MASKED_COPIES), positions.split(MASKED_COPIES), strict=True):
            copies = torch.arange(len(row), device=row.device)
            input_ids, labels = batch.input_ids[row], torch.full_like(batch.labels[row], IGNORE_INDEX)
            labels[copies, position] = batch.labels[row, position]
            input_ids[copies, position] = self.mask_id
            attention_mask = None if batch.attention_mask is None else batch.attention_mask[row]
            for name, values in super().score(model, Batch(input_ids, labels, attention_mask)).items():
                totals[name].index_add_(0, row, values.double())
        return totals

    @staticmethod
    def _select_predicted_hidden_states(model: Transformer, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return hidden states and labels of the masked positions only, also in batches without padding."""
        hidden, _ = model.compute_hidden_states(batch.input_ids, batch.attention_mask)
        is_predicted = batch.labels != IGNORE_INDEX
        return hidden[is_predicted], batch.labels[is_predicted]


class ClassificationObjective:
    """Predict the class of a text."""

    metric = "accuracy"

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch.input_ids, batch.attention_mask).logits, batch.labels)

    def score(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
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
    """Score all batches in evaluation mode; return the examples in their order. The model's mode is restored."""
    was_training = model.training
    model.eval()
    scored, places = [], []
    for batch in batches:
        scored.append(objective.score(model, batch.to(device)))
        places.append(batch.at)
    model.train(was_training)
    columns = {name: torch.cat([row[name].double().cpu() for row in scored]) for name in scored[0]}
    if all(place is not None for place in places):
        in_order = torch.cat([place for place in places if place is not None]).argsort()
        columns = {name: column[in_order] for name, column in columns.items()}
    return Evaluation({name: column.numpy() for name, column in columns.items()})
