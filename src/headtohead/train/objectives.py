"""What is minimised and what is measured, for each task. The loop knows neither."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from ..corpus import Batch

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Evaluation:
    """Scores of each example of a text: total loss, how many predictions, how many of them right."""

    losses: Floats
    counts: Floats
    correct: Floats

    @property
    def loss(self) -> float:
        """Total loss over total predictions, never a mean of means."""
        return float(self.losses.sum() / self.counts.sum())

    @property
    def perplexity(self) -> float:
        return float(np.exp(min(self.loss, 700.0)))

    @property
    def accuracy(self) -> float:
        return float(self.correct.sum() / self.counts.sum())


@runtime_checkable
class Objective(Protocol):
    """A task as the loop sees it."""

    metric: str

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The mean loss of a batch, to go down from."""

    def score(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """For each row: total loss, number of predictions, number right."""


class LanguageModel:
    """Predict the next token."""

    metric = "perplexity"

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        logits = model(batch.input_ids, batch.attention_mask).logits
        return F.cross_entropy(logits.flatten(0, 1), batch.labels.flatten(), ignore_index=-100)

    def score(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        logits = model(batch.input_ids, batch.attention_mask).logits
        flat = F.cross_entropy(logits.flatten(0, 1), batch.labels.flatten(), ignore_index=-100, reduction="none")
        counted = batch.labels != -100
        right = (logits.argmax(-1) == batch.labels) & counted
        return flat.view_as(batch.labels).double().sum(1), counted.sum(1), right.sum(1)


class Classify:
    """Name the class of a text."""

    metric = "accuracy"

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch.input_ids, batch.attention_mask).logits, batch.labels)

    def score(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        logits = model(batch.input_ids, batch.attention_mask).logits
        losses = F.cross_entropy(logits, batch.labels, reduction="none")
        return losses.double(), torch.ones_like(batch.labels), logits.argmax(-1) == batch.labels


OBJECTIVES: dict[str, Any] = {"language-model": LanguageModel, "classify": Classify}


def objective_of(task: str) -> Objective:
    made: Objective = OBJECTIVES[task]()
    return made


@torch.no_grad()
def evaluate(model: nn.Module, objective: Objective, batches: Iterable[Batch], device: torch.device) -> Evaluation:
    """Score every example; the model is left in the mode that it was in."""
    was_training = model.training
    model.eval()
    scored = [[t.double().cpu() for t in objective.score(model, batch.to(device))] for batch in batches]
    model.train(was_training)
    losses, counts, correct = (torch.cat(column).numpy() for column in zip(*scored, strict=True))
    return Evaluation(losses, counts, correct)
