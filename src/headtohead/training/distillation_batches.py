"""A teacher in the one loop: batches that carry its targets, and the objective that learns from them.

What is measured does not change: a student is scored on people's texts, as any language model is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headtohead.data.batches import IGNORE_INDEX, Batch
from headtohead.data.sft import PromptedBatchSchedule
from headtohead.nn.transformer import Transformer
from headtohead.pretrained.layer_dropping import StudentModel
from headtohead.training.cross_entropy import chunked_linear_cross_entropy, score_predictions
from headtohead.training.distillation_loss import (
    DistillationLossConfig,
    TeacherTargets,
    compute_chunked_distillation_loss,
    compute_distillation_losses,
)
from headtohead.training.objectives import LanguageModelObjective

TeacherTargetLookup = Callable[[Sequence[int], Sequence[int]], TeacherTargets]
"""numbers of rows, and how many predictions of each count: their targets, laid end to end"""


@dataclass(frozen=True)
class DistillationBatch(Batch):
    """A batch, and what the teacher says of each of its counted predictions, row by row."""

    targets: TeacherTargets | None = None

    def to(self, device: torch.device | str) -> DistillationBatch:
        plain = super().to(device)
        targets = None if self.targets is None else self.targets.to(device)
        return DistillationBatch(plain.input_ids, plain.labels, plain.attention_mask, targets=targets)

    def rows(self, start: int, end: int) -> DistillationBatch:
        plain, targets = super().rows(start, end), self.targets
        if targets is not None:
            skipped = super().rows(0, start).num_predictions
            taken = slice(skipped, skipped + plain.num_predictions)
            targets = TeacherTargets(targets.ids[taken], targets.shares[taken], targets.other_log_prob[taken])
        return DistillationBatch(plain.input_ids, plain.labels, plain.attention_mask, targets=targets)


class DistillationBatchSchedule(PromptedBatchSchedule):
    """The same batches, with a teacher's targets."""

    def __init__(self, *given: Any, look_up_targets: TeacherTargetLookup, **named: Any) -> None:
        super().__init__(*given, **named)
        self.gather = look_up_targets

    def batch(self, step: int) -> Batch:
        plain = super().batch(step)
        counts = (plain.labels != IGNORE_INDEX).sum(1).tolist()
        targets = self.gather(self.indices(step).tolist(), counts)
        return DistillationBatch(plain.input_ids, plain.labels, plain.attention_mask, targets=targets)


class DistillationObjective(LanguageModelObjective):
    """Predict the next token; where a batch has a teacher's targets, be near them too."""

    def __init__(self, loss_config: DistillationLossConfig | None = None) -> None:
        self.how = loss_config

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        targets = batch.targets if isinstance(batch, DistillationBatch) else None
        if targets is None or self.how is None:
            if not _has_hidden_states(model):
                return super().loss(model, batch)
            return chunked_linear_cross_entropy(*_select_predicted_hidden_states(model, batch))
        if _has_hidden_states(model):
            return compute_chunked_distillation_loss(*_select_predicted_hidden_states(model, batch), targets, self.how)
        counted = batch.labels != IGNORE_INDEX
        logits = model(batch.input_ids, batch.attention_mask).logits[counted]
        return compute_distillation_losses(logits, batch.labels[counted], targets, self.how).mean()

    def score(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        if not isinstance(model, StudentModel) or not model.is_output_linear():
            return super().score(model, batch)
        counted = batch.labels != IGNORE_INDEX
        losses = torch.zeros(batch.labels.shape, dtype=torch.float64, device=counted.device)
        right = torch.zeros_like(counted)
        found, best = score_predictions(*_select_predicted_hidden_states(model, batch))
        losses[counted], right[counted] = found.double(), best
        return {"losses": losses.sum(1), "counts": counted.sum(1), "correct": right.sum(1)}


def _has_hidden_states(model: nn.Module) -> bool:
    """Whether the vocabulary layer may be asked about some positions only."""
    return isinstance(model, Transformer) or (isinstance(model, StudentModel) and model.is_output_linear())


def _select_predicted_hidden_states(model: Any, batch: Batch) -> tuple[nn.Linear, Tensor, Tensor]:
    """The output layer, the stream where something is predicted, and what."""
    found = model.compute_hidden_states(batch.input_ids, batch.attention_mask)
    hidden = found[0] if isinstance(found, tuple) else found
    counted = batch.labels != IGNORE_INDEX
    return model.output, hidden[counted], batch.labels[counted]


__all__ = ["DistillationBatch", "DistillationBatchSchedule", "DistillationObjective", "TeacherTargetLookup"]
