"""A teacher in the one loop: batches that carry its targets, and the objective that learns from them.

What is measured does not change: a student is scored on people's texts, as any language model is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headtohead.data.batches import IGNORED, Batch
from headtohead.data.sft import PromptedSchedule
from headtohead.nn.transformer import Transformer
from headtohead.pretrained.layer_dropping import Learner
from headtohead.training.cross_entropy import vocabulary_loss, vocabulary_scores
from headtohead.training.distillation_loss import Mixture, Targets, distil_loss, mixed_losses
from headtohead.training.objectives import LanguageModel

Gather = Callable[[Sequence[int], Sequence[int]], Targets]
"""numbers of rows, and how many predictions of each count: their targets, laid end to end"""


@dataclass(frozen=True)
class TaughtBatch(Batch):
    """A batch, and what the teacher says of each of its counted predictions, row by row."""

    targets: Targets | None = None

    def to(self, device: torch.device | str) -> TaughtBatch:
        plain = super().to(device)
        targets = None if self.targets is None else self.targets.to(device)
        return TaughtBatch(plain.input_ids, plain.labels, plain.attention_mask, targets=targets)

    def rows(self, first: int, end: int) -> TaughtBatch:
        plain, targets = super().rows(first, end), self.targets
        if targets is not None:
            skipped = super().rows(0, first).predictions
            taken = slice(skipped, skipped + plain.predictions)
            targets = Targets(targets.ids[taken], targets.shares[taken], targets.rest[taken])
        return TaughtBatch(plain.input_ids, plain.labels, plain.attention_mask, targets=targets)


class TaughtSchedule(PromptedSchedule):
    """The same batches, with a teacher's targets."""

    def __init__(self, *given: Any, gather: Gather, **named: Any) -> None:
        super().__init__(*given, **named)
        self.gather = gather

    def batch(self, step: int) -> Batch:
        plain = super().batch(step)
        counts = (plain.labels != IGNORED).sum(1).tolist()
        targets = self.gather(self.indices(step).tolist(), counts)
        return TaughtBatch(plain.input_ids, plain.labels, plain.attention_mask, targets=targets)


class Student(LanguageModel):
    """Predict the next token; where a batch has a teacher's targets, be near them too."""

    def __init__(self, how: Mixture | None = None) -> None:
        self.how = how

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        targets = batch.targets if isinstance(batch, TaughtBatch) else None
        if targets is None or self.how is None:
            if not _reads_stream(model):
                return super().loss(model, batch)
            return vocabulary_loss(*_stream(model, batch))
        if _reads_stream(model):
            return distil_loss(*_stream(model, batch), targets, self.how)
        counted = batch.labels != IGNORED
        logits = model(batch.input_ids, batch.attention_mask).logits[counted]
        return mixed_losses(logits, batch.labels[counted], targets, self.how).mean()

    def score(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        if not isinstance(model, Learner) or not model.is_direct():
            return super().score(model, batch)
        counted = batch.labels != IGNORED
        losses = torch.zeros(batch.labels.shape, dtype=torch.float64, device=counted.device)
        right = torch.zeros_like(counted)
        found, best = vocabulary_scores(*_stream(model, batch))
        losses[counted], right[counted] = found.double(), best
        return {"losses": losses.sum(1), "counts": counted.sum(1), "correct": right.sum(1)}


def _reads_stream(model: nn.Module) -> bool:
    """Whether the vocabulary layer may be asked about some positions only."""
    return isinstance(model, Transformer) or (isinstance(model, Learner) and model.is_direct())


def _stream(model: Any, batch: Batch) -> tuple[nn.Linear, Tensor, Tensor]:
    """The output layer, the stream where something is predicted, and what."""
    found = model.stream(batch.input_ids, batch.attention_mask)
    hidden = found[0] if isinstance(found, tuple) else found
    counted = batch.labels != IGNORED
    return model.output, hidden[counted], batch.labels[counted]


__all__ = ["Gather", "Student", "TaughtBatch", "TaughtSchedule"]
