"""Objectives of language models: predict the next token, or masked tokens."""

from typing import Any

import torch
from torch import Tensor, nn

from headtohead.data.batches import IGNORE_INDEX, Batch
from headtohead.nn.token_losses import compute_token_losses
from headtohead.nn.transformer import Transformer
from headtohead.pretrained.student_model import StudentModel
from headtohead.training.losses.chunked_cross_entropy import (
    LinearLayer,
    chunked_linear_cross_entropy,
    score_predictions,
)
from headtohead.training.task_objectives.base import ComposedObjective, add_auxiliary_losses

MASKED_COPIES = 256
"""Masked copies of sequences per forward pass, when pseudo-perplexity is computed."""


class LanguageModelObjective(ComposedObjective):
    """Predict the next token."""

    metric = "perplexity"
    predicts_every_position = True
    """Whether every position of a batch without padding is predicted."""

    def compute_loss(self, model: nn.Module, batch: Batch) -> Tensor:
        if self.loss_parts or not has_linear_output(model):
            return super().compute_loss(model, batch)
        output_layer, hidden_states, labels, losses = self.select_predicted_hidden_states(model, batch)
        return add_auxiliary_losses(chunked_linear_cross_entropy(output_layer, hidden_states, labels), losses)

    def score_batch(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Return the loss, the number of predictions and of correct ones of each row or, in packed rows, segment."""
        losses, is_correct = self.score_tokens(model, batch)
        is_predicted = batch.labels != IGNORE_INDEX
        columns = {"losses": losses, "counts": is_predicted, "correct": is_correct}
        if batch.segment_ids is None:
            return {name: values.sum(1) for name, values in columns.items()}
        segments, segment_indices = batch.segment_ids[is_predicted].unique(return_inverse=True)
        zeros = torch.zeros(len(segments), dtype=torch.float64, device=losses.device)
        return {
            name: zeros.index_add(0, segment_indices, values[is_predicted].double()) for name, values in columns.items()
        }

    def score_tokens(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the loss of each prediction and whether it is correct, both (batch, length).

        Positions without a prediction are 0.
        """
        is_predicted = batch.labels != IGNORE_INDEX
        losses = torch.zeros(batch.labels.shape, dtype=torch.float64, device=is_predicted.device)
        is_correct = torch.zeros_like(is_predicted)
        if has_linear_output(model):
            output_layer, hidden_states, labels, _ = self.select_predicted_hidden_states(model, batch)
            token_losses, token_is_correct = score_predictions(output_layer, hidden_states, labels)
            losses[is_predicted], is_correct[is_predicted] = token_losses.double(), token_is_correct
        else:
            logits = model(batch.input_ids, batch.attention_mask).logits[is_predicted]
            labels = batch.labels[is_predicted]
            losses[is_predicted] = compute_token_losses(logits, labels)
            is_correct[is_predicted] = logits.argmax(-1) == labels
        return losses, is_correct

    def select_predicted_hidden_states(
        self, model: Any, batch: Batch
    ) -> tuple[LinearLayer, Tensor, Tensor, dict[str, Tensor]]:
        """Return the output layer, the hidden states to predict from, (predictions, width), the labels,
        (predictions,), and auxiliary losses by name.
        """
        losses: dict[str, Tensor] = {}
        hidden_states = model.compute_hidden_states(batch.input_ids, batch.attention_mask)
        if isinstance(hidden_states, tuple):
            hidden_states, context = hidden_states
            losses = context.losses
        if batch.attention_mask is None and self.predicts_every_position:
            return model.output, hidden_states.flatten(0, 1), batch.labels.flatten(), losses
        is_predicted = batch.labels != IGNORE_INDEX
        return model.output, hidden_states[is_predicted], batch.labels[is_predicted], losses


class MaskedLanguageModelObjective(LanguageModelObjective):
    """Predict masked tokens; score by pseudo-perplexity, after Salazar et al. 2020, arXiv:1910.14659."""

    predicts_every_position = False

    def __init__(self, mask_id: int) -> None:
        self.mask_id = mask_id

    def score_batch(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Score each labeled token with only that token masked, using one copy of its row per token; sum losses per
        row.
        """
        row_indices, masked_positions = (batch.labels != IGNORE_INDEX).nonzero(as_tuple=True)
        totals = {
            name: torch.zeros(len(batch.labels), dtype=torch.float64, device=row_indices.device)
            for name in ("losses", "counts", "correct")
        }
        for chunk_rows, chunk_positions in zip(
            row_indices.split(MASKED_COPIES), masked_positions.split(MASKED_COPIES), strict=True
        ):
            copy_indices = torch.arange(len(chunk_rows), device=chunk_rows.device)
            input_ids, labels = batch.input_ids[chunk_rows], torch.full_like(batch.labels[chunk_rows], IGNORE_INDEX)
            labels[copy_indices, chunk_positions] = batch.labels[chunk_rows, chunk_positions]
            input_ids[copy_indices, chunk_positions] = self.mask_id
            attention_mask = None if batch.attention_mask is None else batch.attention_mask[chunk_rows]
            for name, values in super().score_batch(model, Batch(input_ids, labels, attention_mask)).items():
                totals[name].index_add_(0, chunk_rows, values.double())
        return totals


def has_linear_output(model: nn.Module) -> bool:
    """Return whether the logits of a language model are a linear function of its hidden states. The objective then
    computes them at predicted positions only, in chunks.
    """
    if isinstance(model, Transformer):
        return model.has_linear_output
    return isinstance(model, StudentModel) and model.has_linear_logits()
