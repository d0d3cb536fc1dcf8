"""What is minimised and what is measured, for each task. The loop knows neither."""

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


@dataclass(frozen=True)
class Evaluation:
    """Scores of each example of a text, as columns: `losses` (total), `counts` (predictions), `correct`; a
    classifier's `labels` and `guessed` too."""

    columns: dict[str, FloatArray]

    @property
    def losses(self) -> FloatArray:
        return self.columns["losses"]

    @property
    def counts(self) -> FloatArray:
        return self.columns["counts"]

    @property
    def loss(self) -> float:
        """Total loss over total predictions, never a mean of means."""
        return float(self.losses.sum() / self.counts.sum())

    @property
    def perplexity(self) -> float:
        return float(np.exp(min(self.loss, 700.0)))

    @property
    def accuracy(self) -> float:
        return float(self.columns["correct"].sum() / self.counts.sum())

    def pick(self, indices: NDArray[np.intp]) -> "Evaluation":
        """The scores of these examples."""
        return Evaluation({name: column[indices] for name, column in self.columns.items()})


@runtime_checkable
class Objective(Protocol):
    """A task as the loop sees it."""

    metric: str

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The mean loss of a batch, to go down from."""

    def score(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """The columns of an evaluation, for the rows of this batch."""


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
            found, best = score_predictions(model.output, hidden, labels)
            losses[counted], right[counted] = found.double(), best
        else:
            logits = model(batch.input_ids, batch.attention_mask).logits[counted]
            labels = batch.labels[counted]
            losses[counted] = F.cross_entropy(logits, labels, reduction="none").double()
            right[counted] = logits.argmax(-1) == labels
        return {"losses": losses.sum(1), "counts": counted.sum(1), "correct": right.sum(1)}

    @staticmethod
    def _select_predicted_hidden_states(model: Transformer, batch: Batch) -> tuple[Tensor, Tensor]:
        """The stream where something is predicted, and what; the vocabulary layer is not asked about the rest."""
        hidden, _ = model.compute_hidden_states(batch.input_ids, batch.attention_mask)
        if batch.attention_mask is None:
            return hidden.flatten(0, 1), batch.labels.flatten()
        counted = batch.labels != IGNORE_INDEX
        return hidden[counted], batch.labels[counted]


class ClassificationObjective:
    """Name the class of a text."""

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
    """Score every example, in whatever order they come; the model is left in the mode that it was in."""
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
