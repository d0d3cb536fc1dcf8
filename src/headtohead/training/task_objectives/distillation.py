"""The objective of distillation: train a student on batches with teacher targets.

Evaluation does not use teacher targets: a student is scored on reference texts like any other language model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headtohead.data.batches import IGNORE_INDEX, Batch
from headtohead.data.sft import PromptedBatchSchedule
from headtohead.training.losses.distillation_loss import (
    DistillationLossConfig,
    TeacherTargets,
    compute_chunked_distillation_loss,
    compute_distillation_losses,
)
from headtohead.training.task_objectives.base import add_auxiliary_losses
from headtohead.training.task_objectives.language_modeling import LanguageModelObjective, has_linear_output

TeacherTargetLookup = Callable[[Sequence[int], Sequence[int]], TeacherTargets]
"""Maps row indices and the number of predictions in each row to their targets, concatenated."""


@dataclass(frozen=True)
class DistillationBatch(Batch):
    """A batch with teacher targets for each of its predictions, row by row."""

    targets: TeacherTargets | None = None

    def to(self, device: torch.device | str) -> DistillationBatch:
        """Return the batch with its teacher targets on a device."""
        batch = super().to(device)
        targets = None if self.targets is None else self.targets.to(device)
        return DistillationBatch(batch.input_ids, batch.labels, batch.attention_mask, targets=targets)

    def slice_rows(self, start: int, end: int) -> DistillationBatch:
        """Return a batch of the rows from `start` to `end` (exclusive) with their teacher targets."""
        batch, targets = super().slice_rows(start, end), self.targets
        if targets is not None:
            first_prediction = super().slice_rows(0, start).num_predictions
            targets = targets[first_prediction : first_prediction + batch.num_predictions]
        return DistillationBatch(batch.input_ids, batch.labels, batch.attention_mask, targets=targets)


class DistillationBatchSchedule(PromptedBatchSchedule):
    """A batch schedule that adds teacher targets to each batch."""

    def __init__(self, *args: Any, look_up_targets: TeacherTargetLookup, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.look_up_targets = look_up_targets

    def get_batch(self, step: int) -> Batch:
        """Return the batch of a step with its teacher targets."""
        batch = super().get_batch(step)
        predictions_per_row = (batch.labels != IGNORE_INDEX).sum(1).tolist()
        targets = self.look_up_targets(self.get_example_indices(step).tolist(), predictions_per_row)
        return DistillationBatch(batch.input_ids, batch.labels, batch.attention_mask, targets=targets)


class DistillationObjective(LanguageModelObjective):
    """Next-token prediction, plus the divergence from the teacher for batches with teacher targets."""

    def __init__(self, loss_config: DistillationLossConfig | None = None) -> None:
        self.loss_config = loss_config

    def compute_loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the distillation loss, or the language-model loss for batches without teacher targets."""
        targets = batch.targets if isinstance(batch, DistillationBatch) else None
        if targets is None or self.loss_config is None:
            return super().compute_loss(model, batch)
        if has_linear_output(model):
            output_layer, hidden_states, labels, auxiliary_losses = self.select_predicted_hidden_states(model, batch)
            loss = compute_chunked_distillation_loss(output_layer, hidden_states, labels, targets, self.loss_config)
            return add_auxiliary_losses(loss, auxiliary_losses)
        is_predicted = batch.labels != IGNORE_INDEX
        output = model(batch.input_ids, batch.attention_mask)
        labels = batch.labels[is_predicted]
        losses = compute_distillation_losses(output.logits[is_predicted], labels, targets, self.loss_config)
        return add_auxiliary_losses(losses.mean(), output.losses)
