"""The interface of task objectives, and the training loss composed of parts of the slot `objective`."""

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from torch import Tensor, nn

from headtohead.data.batches import Batch
from headtohead.nn.custom_model import CustomModel
from headtohead.nn.parts.context import ForwardContext
from headtohead.training.parts.objective import Objective, compute_cross_entropy


@runtime_checkable
class TaskObjective(Protocol):
    """What the training loop needs from a task: its training loss, and its scores."""

    metric: str
    """The metric in metrics.jsonl besides the loss: "perplexity" or "accuracy"."""
    loss_parts: Sequence[Objective]
    """Parts of the training loss; empty for the cross entropy."""

    def compute_loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean loss of a batch."""

    def score_batch(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Return the columns of an `Evaluation`, one value for each of `batch.score_indices`."""


class ComposedObjective:
    """Base class of objectives whose loss is composed of parts in the slot `objective`."""

    loss_parts: Sequence[Objective] = ()
    """Empty for the cross entropy."""

    def compute_loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean loss of a batch for a task: the sum of its objective parts and of auxiliary losses.

        If a custom network defines a training loss, return that instead.
        """
        if isinstance(model, CustomModel) and model.has_training_loss:
            return model.compute_training_loss(batch.input_ids, batch.labels, batch.attention_mask)
        output = model(batch.input_ids, batch.attention_mask)
        if not self.loss_parts:
            return add_auxiliary_losses(compute_cross_entropy(output.logits, batch.labels), output.losses)
        context = ForwardContext.create(batch.input_ids, batch.attention_mask, is_training=model.training)
        losses: list[Tensor] = [part(model, output, batch.labels, context) for part in self.loss_parts]
        return add_auxiliary_losses(sum(losses[1:], losses[0]), {**output.losses, **context.losses})


def add_auxiliary_losses(loss: Tensor, auxiliary_losses: Mapping[str, Tensor]) -> Tensor:
    """Return the sum of the loss of a task and the auxiliary losses of the model, such as load balancing."""
    for auxiliary_loss in auxiliary_losses.values():
        loss = loss + auxiliary_loss
    return loss
