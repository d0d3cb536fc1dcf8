"""Reject user code that would invalidate a comparison before it starts.

Forbidden are unregistered weights, a forward pass that overwrites its input, creates weights, disables gradients or
returns probabilities, and weights that change before the step of the optimizer. `torch_globals` rejects changes to
torch itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from headtohead.data.batches import Batch
from headtohead.errors import ModelError
from headtohead.nn.custom_model import CustomModel
from headtohead.nn.random_state import fork_seeded_rng

TrainingLoss = Callable[[nn.Module, Batch], Tensor]
CHECK_BATCH_SIZE = 4
PROBABILITY_TOLERANCE = 1e-3
"""how far the sum of outputs may be from 1 for them to be probabilities"""
WEIGHT_TOLERANCE = 1e-6
"""largest change of a weight that may be a rounding error, relative to the largest weight of its tensor"""


def check_forbidden_code(
    model: nn.Module, batch: Batch, compute_loss: TrainingLoss, optimized: Sequence[nn.Parameter]
) -> None:
    """Raise ModelError if a network's or part's code is certain to spoil its scores.

    Runs passes in each mode, so `model` should not be trained afterwards. Passes that fail are not checked.

    Args:
        model: The model at step 0.
        batch: A training batch.
        compute_loss: Returns the training loss of a model and a batch.
        optimized: The parameters that the optimizer trains.
    """
    network = model.inner if isinstance(model, CustomModel) else model
    for description in _iter_unregistered_weights(network):
        raise ModelError(
            f"{description} would be neither trained nor saved, because it is not registered. Use nn.ModuleList, "
            "nn.ModuleDict, nn.ParameterList or nn.Parameter"
        )
    batch = batch.slice_rows(0, CHECK_BATCH_SIZE)
    with fork_seeded_rng("code checks"):
        for is_training in (True, False):
            try:
                _check_forward_passes(network, model.train(is_training), batch)
                _check_parameters(network, optimized)
                if is_training:
                    _check_backward_pass(network, model, batch, compute_loss)
            except ModelError:
                raise
            except Exception:  # noqa: BLE001  (training or scoring will report it)
                continue


def _check_forward_passes(network: nn.Module, model: nn.Module, batch: Batch) -> None:
    """Raise ModelError if a user's forward pass is forbidden: it overwrites its input, trains or returns a softmax.

    The mode of `model`, training or evaluation, is the caller's.
    """
    with torch.enable_grad():
        _run_checked_forward(network, model, batch)
        # Constraints such as nn.Embedding(max_norm=1) change weights in the first pass, but not in the second.
        weights = copy_trainable_weights(network)
        logits = _run_checked_forward(network, model, batch)
    if changed_names := list_weights_changed_by_forward(network, weights):
        mode = "training" if model.training else "evaluation"
        raise ModelError(
            f"{type(network).__name__}.forward() changes its weights in {mode} mode ({changed_names[0]}). Only the "
            "optimizer of the experiment file may train them: remove the update, or keep its values in a buffer"
        )
    if _are_probabilities(logits):
        raise ModelError(
            f"{type(network).__name__}.forward() returns probabilities, but the loss applies softmax itself. Return "
            "logits"
        )


def _check_parameters(network: nn.Module, optimized: Sequence[nn.Parameter]) -> None:
    """Raise ModelError if a forward pass of the user's code created parameters, which the optimizer does not have."""
    optimized_ids = {id(parameter) for parameter in optimized}
    for name, parameter in network.named_parameters():
        if parameter.requires_grad and id(parameter) not in optimized_ids:
            raise ModelError(
                f"{type(network).__name__}.forward() creates or unfreezes {name}, which would not be trained. Create "
                "layers and parameters in the constructor"
            )


def _check_backward_pass(network: nn.Module, model: nn.Module, batch: Batch, compute_loss: TrainingLoss) -> None:
    """Raise ModelError if the training loss or its backward pass changes weights before the optimizer does."""
    weights = copy_trainable_weights(network)
    with torch.enable_grad():
        compute_loss(model, replace(batch, input_ids=batch.input_ids.clone(), labels=batch.labels.clone())).backward()
    if changed_names := list_weights_changed_by_forward(network, weights):
        raise ModelError(
            f"{type(network).__name__} changes its weights in a training pass ({changed_names[0]}), in training_loss() "
            "or in a hook. Only the optimizer of the experiment file may train them: remove the update"
        )


def _run_checked_forward(network: nn.Module, model: nn.Module, batch: Batch) -> Tensor:
    """Return the logits of a user's forward pass; raise ModelError if its code does something forbidden to its input.

    `model` is `network` or wraps it.
    """
    input_ids = batch.input_ids.clone()
    mask = None if batch.attention_mask is None else batch.attention_mask.clone()
    logits: Tensor = model(input_ids, mask).logits.detach()
    if not torch.is_grad_enabled():
        raise ModelError(
            f"{type(network).__name__}.forward() disables gradients globally; use a context manager: "
            "with torch.no_grad()"
        )
    if not torch.equal(input_ids, batch.input_ids):
        raise ModelError(
            f"{type(network).__name__}.forward() overwrites its input_ids, so inputs and labels would not belong "
            "together. Work on a copy: input_ids = input_ids.clone()"
        )
    return logits


def copy_trainable_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return a copy of every trainable parameter by name, for `list_weights_changed_by_forward`."""
    return {name: weight.detach().clone() for name, weight in model.named_parameters() if weight.requires_grad}


def list_weights_changed_by_forward(model: nn.Module, weights: Mapping[str, Tensor]) -> list[str]:
    """Return the parameters that forward passes have changed since `weights` were copied, which is forbidden.

    Only the optimizer may train a model. Changes as small as rounding errors do not count.
    """
    parameters = dict(model.named_parameters())
    return [
        name
        for name, weight in weights.items()
        if (parameters[name] - weight).norm(math.inf) > WEIGHT_TOLERANCE * weight.norm(math.inf)
    ]


def _iter_unregistered_weights(network: nn.Module) -> Iterator[str]:
    """Yield a description of each weight that a network's code does not register, which is forbidden.

    Such weights are stored in a plain attribute, list or dictionary.
    """
    registered_ids = {id(parameter) for parameter in network.parameters()}
    for prefix, module in network.named_modules():
        for name, value in vars(module).items():
            label = f"{type(network).__name__}.{prefix}.{name}".replace("..", ".")
            if name in ("_parameters", "_modules", "_buffers"):
                continue
            stored = (
                value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else [value]
            )
            for candidate in stored:
                weights = list(candidate.parameters()) if isinstance(candidate, nn.Module) else [candidate]
                tensors = [weight for weight in weights if isinstance(weight, Tensor)]
                if any(
                    tensor.is_leaf and tensor.requires_grad and id(tensor) not in registered_ids for tensor in tensors
                ):
                    container = "" if candidate is value else f" in a {type(value).__name__}"
                    yield f"{label} ({type(candidate).__name__}{container})"
                    break


def _are_probabilities(logits: Tensor) -> bool:
    """Return whether outputs (..., classes) are nonnegative and sum to 1 for every prediction."""
    sums = logits.double().sum(-1)
    return bool((logits >= 0).all()) and bool(((sums - 1).abs() <= PROBABILITY_TOLERANCE).all())
