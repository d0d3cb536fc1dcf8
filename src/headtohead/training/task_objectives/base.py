"""The interface of task objectives, and the training loss composed of parts of the slot `objective`."""

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from torch import Tensor, nn

from headtohead.config.base import ComponentConfig
from headtohead.data.batches import Batch
from headtohead.errors import RequestError
from headtohead.nn.custom_model import CustomModel
from headtohead.nn.parts import registry
from headtohead.nn.parts.base import ModelSizes
from headtohead.nn.parts.context import ForwardContext
from headtohead.nn.seeded_init import init_parameters
from headtohead.nn.torch_rng import fork_seeded_rng
from headtohead.nn.transformer import Transformer
from headtohead.training.parts.objective import Objective, compute_cross_entropy

UNKNOWN_SIZES = ModelSizes(width=0, heads=0, head_dim=0, layers=0, context=0, vocab_size=0, is_causal=False)
"""Sizes that parts of the slot `objective` receive if the model is not composed of parts."""
OBJECTIVE_MODULE = "training_objective"
"""Name of the module that holds the parameters of objective parts in the model during training."""


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


def attach_objective_parts(model: nn.Module, part_configs: Sequence[ComponentConfig], seed: int) -> list[Objective]:
    """Build the parts of a task's training loss and add their parameters to the model.

    The parameters remain part of the model, and are trained and saved in checkpoints, until `remove_objective_parts` is
    called.

    Args:
        model: The model to train.
        part_configs: Names and options of the parts.
        seed: Seed of their initial parameters.

    Returns:
        The parts; an empty list for the plain cross entropy.
    """
    if list(part_configs) == [ComponentConfig(kind="cross-entropy")]:
        return []
    if isinstance(model, CustomModel) and model.has_training_loss:
        raise RequestError("training.objective: the network defines training_loss(), which would be used instead")
    sizes = model.sizes if isinstance(model, Transformer) else UNKNOWN_SIZES
    with fork_seeded_rng(seed, "initial", OBJECTIVE_MODULE):
        parts: list[Objective] = [registry.build_part("objective", part_config, sizes) for part_config in part_configs]
    named_parts = registry.build_step_modules(parts)
    parent = nn.Module()
    parent.add_module(OBJECTIVE_MODULE, named_parts)
    init_parameters(parent, seed)  # from (seed, module name), as in the model
    if named_parts.state_dict():
        model.add_module(OBJECTIVE_MODULE, named_parts)
    return parts


def remove_objective_parts(model: nn.Module) -> None:
    """Remove the parameters of objective parts from the model."""
    if OBJECTIVE_MODULE in dict(model.named_children()):
        delattr(model, OBJECTIVE_MODULE)
