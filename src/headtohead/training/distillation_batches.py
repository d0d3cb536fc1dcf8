"""Batches with teacher targets, and the objective that trains a student on them.

Evaluation does not change: a student is scored on the reference texts, as any language model is."""

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
"""Maps row indices and the number of predictions in each row to their targets, concatenated."""


@dataclass(frozen=True)
class DistillationBatch(Batch):
    """A batch with the teacher's targets for each of its predictions, row by row."""

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
            targets = TeacherTargets(targets.ids[taken], targets.log_probs[taken], targets.other_log_prob[taken])
        return DistillationBatch(plain.input_ids, plain.labels, plain.attention_mask, targets=targets)


class DistillationBatchSchedule(PromptedBatchSchedule):
    """A batch schedule that adds the teacher's targets to each batch."""

    def __init__(self, *args: Any, look_up_targets: TeacherTargetLookup, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.look_up_targets = look_up_targets

    def batch(self, step: int) -> Batch:
        plain = super().batch(step)
        counts = (plain.labels != IGNORE_INDEX).sum(1).tolist()
        targets = self.look_up_targets(self.indices(step).tolist(), counts)
        return DistillationBatch(plain.input_ids, plain.labels, plain.attention_mask, targets=targets)


class DistillationObjective(LanguageModelObjective):
    """Next-token prediction, plus the divergence from the teacher for batches that have its targets."""

    def __init__(self, loss_config: DistillationLossConfig | None = None) -> None:
        self.loss_config = loss_config

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        targets = batch.targets if isinstance(batch, DistillationBatch) else None
        if targets is None or self.loss_config is None:
            if not _has_hidden_states(model):
                return super().loss(model, batch)
            return chunked_linear_cross_entropy(*_select_predicted_hidden_states(model, batch))
        if _has_hidden_states(model):
            return compute_chunked_distillation_loss(
                *_select_predicted_hidden_states(model, batch), targets, self.loss_config
            )
        counted = batch.labels != IGNORE_INDEX
        logits = model(batch.input_ids, batch.attention_mask).logits[counted]
        return compute_distillation_losses(logits, batch.labels[counted], targets, self.loss_config).mean()

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
    """Return whether the output layer can be applied to selected positions only."""
    return isinstance(model, Transformer) or (isinstance(model, StudentModel) and model.is_output_linear())


def _select_predicted_hidden_states(model: Any, batch: Batch) -> tuple[nn.Linear, Tensor, Tensor]:
    """Return the output layer, and the hidden states and labels of the predicted positions."""
    output = model.compute_hidden_states(batch.input_ids, batch.attention_mask)
    hidden = output[0] if isinstance(output, tuple) else output
    counted = batch.labels != IGNORE_INDEX
    return model.output, hidden[counted], batch.labels[counted]


__all__ = ["DistillationBatch", "DistillationBatchSchedule", "DistillationObjective", "TeacherTargetLookup"]
