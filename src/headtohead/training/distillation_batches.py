"""Batches with teacher targets, and the objective that trains a student on them.

Evaluation is unchanged: a student is scored on reference texts, like any other language model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headtohead.data.batches import IGNORE_INDEX, Batch
from headtohead.data.sft import PromptedBatchSchedule
from headtohead.training.distillation_loss import (
    DistillationLossConfig,
    TeacherTargets,
    compute_chunked_distillation_loss,
    compute_distillation_losses,
)
from headtohead.training.objectives import LanguageModelObjective, has_linear_output

TeacherTargetLookup = Callable[[Sequence[int], Sequence[int]], TeacherTargets]
"""Maps row indices and the number of predictions in each row to their targets, concatenated."""


@dataclass(frozen=True)
class DistillationBatch(Batch):
    """A batch with teacher targets for each of its predictions, row by row."""

    targets: TeacherTargets | None = None

    def to(self, device: torch.device | str) -> DistillationBatch:
        batch = super().to(device)
        targets = None if self.targets is None else self.targets.to(device)
        return DistillationBatch(batch.input_ids, batch.labels, batch.attention_mask, targets=targets)

    def rows(self, start: int, end: int) -> DistillationBatch:
        """Return rows `start` to `end` with their teacher targets."""
        batch, targets = super().rows(start, end), self.targets
        if targets is not None:
            first_prediction = super().rows(0, start).num_predictions
            targets = targets[first_prediction : first_prediction + batch.num_predictions]
        return DistillationBatch(batch.input_ids, batch.labels, batch.attention_mask, targets=targets)


class DistillationBatchSchedule(PromptedBatchSchedule):
    """A batch schedule that adds teacher targets to each batch."""

    def __init__(self, *args: Any, look_up_targets: TeacherTargetLookup, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.look_up_targets = look_up_targets

    def batch(self, step: int) -> Batch:
        batch = super().batch(step)
        predictions_per_row = (batch.labels != IGNORE_INDEX).sum(1).tolist()
        targets = self.look_up_targets(self.indices(step).tolist(), predictions_per_row)
        return DistillationBatch(batch.input_ids, batch.labels, batch.attention_mask, targets=targets)


class DistillationObjective(LanguageModelObjective):
    """Next-token prediction, plus the divergence from the teacher for batches that have targets."""

    def __init__(self, loss_config: DistillationLossConfig | None = None) -> None:
        self.loss_config = loss_config

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the distillation loss, or the language-model loss for batches without teacher targets."""
        targets = batch.targets if isinstance(batch, DistillationBatch) else None
        if targets is None or self.loss_config is None:
            return super().loss(model, batch)
        if has_linear_output(model):
            predictions = self.select_predicted_hidden_states(model, batch)
            return compute_chunked_distillation_loss(*predictions, targets, self.loss_config)
        is_predicted = batch.labels != IGNORE_INDEX
        logits = model(batch.input_ids, batch.attention_mask).logits[is_predicted]
        return compute_distillation_losses(logits, batch.labels[is_predicted], targets, self.loss_config).mean()
