"""Reject models with code that training would ignore: a loss, parameter groups or an attention pattern.

Training minimises the task's objective with the optimizer from the experiment file. A variant that changes a loss or
parameter groups inside its network would be trained exactly like the baseline.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.loss import _Loss

from headtohead.audit.user_code import LIBRARY_FOLDERS, fork_all_rngs
from headtohead.data.batches import IGNORE_INDEX, Batch
from headtohead.errors import ModelError
from headtohead.nn.custom_model import CustomModel, extract_logits
from headtohead.nn.parts.attention import MultiHeadAttention
from headtohead.nn.transformer import Transformer
from headtohead.training.optimizers import ScheduledOptimizer

NUM_ROWS = 4
TOLERANCE = 1e-3
"""largest relative difference between a network's own loss and the cross-entropy of its logits"""
LOSS_NAMES = ("loss", "aux", "penalty", "regular", "balance")
"""parts of the names of tensors that networks keep to add them to the loss"""
OPTIMIZER_METHODS = ("configure_optimizers", "get_optimizer", "get_param_groups", "parameter_groups", "param_groups")
NO_DECAY_MARKS = ("_no_weight_decay", "no_weight_decay")
"""attributes with which some libraries exclude a parameter from weight decay"""


def check_unused_code(model: nn.Module, batch: Batch, optimizer: ScheduledOptimizer) -> None:
    """Raise ModelError if a network or part defines something that training ignores.

    Runs a forward pass in training mode, so `model` should not be trained afterwards. A network that raises an
    exception is not checked.
    """
    network = model.inner if isinstance(model, CustomModel) else model
    batch = batch.rows(0, NUM_ROWS)
    with fork_all_rngs("unused code"), torch.enable_grad():
        for description in _iter_unused_losses(network.train(), batch):
            raise ModelError(
                f"{description} would be ignored: training minimises the cross-entropy of the logits. Remove it. To "
                "compare models with losses of their own, train them yourself and give their scores to `h2h judge`"
            )
        for description in _iter_unused_groups(network, optimizer):
            raise ModelError(
                f"{description} would be ignored: [training.optimizer] sets learning rate and weight decay, the latter "
                "for matrices only. Remove it, and set the optimizer in the experiment file"
            )
    if isinstance(model, Transformer) and _ignores_pattern(model.eval(), batch.input_ids):
        raise ModelError(
            f"model.pattern would be ignored: attention part {model.model_config.attention.kind!r} gives the same "
            "logits with the default pattern. Apply the pattern that the part receives, or do not set model.pattern"
        )


def _iter_unused_losses(network: nn.Module, batch: Batch) -> Iterator[str]:
    """Yield a description of each loss that is not the cross-entropy of the logits."""
    labels = batch.labels.masked_fill(batch.labels == IGNORE_INDEX, 0)
    parameters = inspect.signature(network.forward).parameters
    arguments = {name: labels for name in ("targets", "labels") if name in parameters}
    try:
        output = network(batch.input_ids, **arguments)
        logits = extract_logits(output)
    except Exception:  # noqa: BLE001  (training will report it)
        return
    expected = _compute_cross_entropies(logits, labels)
    losses = [*_iter_returned_losses(output), *_iter_stored_losses(network)]
    owners = [] if arguments else network.modules() if isinstance(network, Transformer) else [network]
    methods = [
        (f"{type(owner).__name__}.{name}()", _call_loss_method(method, batch.input_ids, logits, labels, expected))
        for owner in owners
        for name, method in _iter_user_methods(owner)
        if "loss" in name or name == "training_step"
    ]
    for label, loss in [*losses, *methods]:
        if not _is_close_to_any(loss, expected):
            value = "" if loss is None else f" (value {float(loss.detach()):.4g}, cross-entropy {expected[0]:.4g})"
            yield f"{label}{value}"
    for name, module in network.named_modules():
        is_plain = isinstance(module, nn.CrossEntropyLoss) and module.weight is None and not module.label_smoothing
        if isinstance(module, _Loss) and not is_plain:
            yield f"{name} ({type(module).__name__})"


def _compute_cross_entropies(logits: Tensor, labels: Tensor) -> list[float]:
    """Return the cross-entropy for these labels, and for labels shifted as transformers models do internally."""
    logits = logits.detach()
    pairs = [(logits.flatten(0, -2), labels.flatten())]
    if logits.dim() == 3:
        pairs.append((logits[:, :-1].flatten(0, -2), labels[:, 1:].flatten()))
    return [float(F.cross_entropy(*pair)) for pair in pairs]


def _is_close_to_any(loss: Tensor | None, expected: list[float]) -> bool:
    return loss is not None and any(abs(float(loss.detach()) - value) <= TOLERANCE * value for value in expected)


def _iter_returned_losses(output: object) -> Iterator[tuple[str, Tensor]]:
    """Yield the differentiable scalars that a forward pass returned in addition to the logits."""
    if isinstance(output, tuple | list):
        values = {f"output {index} of forward()": value for index, value in enumerate(output)}
    else:
        values = {f".{name} of the output of forward()": getattr(output, name, None) for name in ("loss", "aux_loss")}
    yield from ((label, value) for label, value in values.items() if _is_differentiable_scalar(value))


def _iter_stored_losses(network: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the differentiable scalars that a forward pass stored in attributes such as `aux_loss`."""
    for prefix, module in network.named_modules():
        for name, value in vars(module).items():
            values = value if isinstance(value, list | tuple) else [value]
            if any(part in name.lower() for part in LOSS_NAMES):
                yield from (
                    (f"attribute {prefix}.{name}".replace(" .", " "), item)
                    for item in values
                    if _is_differentiable_scalar(item)
                )


def _is_differentiable_scalar(value: object) -> bool:
    return isinstance(value, Tensor) and value.numel() == 1 and value.grad_fn is not None


def _iter_user_methods(module: nn.Module) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the methods that are defined in the user's files."""
    for defining_class in type(module).__mro__:
        file = Path(getattr(sys.modules.get(defining_class.__module__), "__file__", None) or sys.prefix)
        is_library = "site-packages" in file.parts or any(file.is_relative_to(folder) for folder in LIBRARY_FOLDERS)
        if not is_library and not file.is_relative_to(sys.prefix) and defining_class.__module__ != "builtins":
            names = [name for name, value in vars(defining_class).items() if inspect.isfunction(value)]
            yield from ((name, getattr(module, name)) for name in names)


def _call_loss_method(
    method: Callable[..., Any], input_ids: Tensor, logits: Tensor, labels: Tensor, expected: list[float]
) -> Tensor | None:
    """Call the method with the usual combinations of arguments; return None if it rejects all of them."""
    losses = []
    for arguments in (
        (logits, labels),
        (logits.flatten(0, -2), labels.flatten()),
        (input_ids, labels),
        ((input_ids, labels), 0),
    ):
        try:
            losses.append(method(*arguments))
        except Exception:  # noqa: BLE001  (the method has a different signature)
            continue
    scalars = [loss for loss in losses if isinstance(loss, Tensor) and loss.numel() == 1]
    return next((loss for loss in scalars if _is_close_to_any(loss, expected)), scalars[0] if scalars else None)


def _iter_unused_groups(network: nn.Module, optimizer: ScheduledOptimizer) -> Iterator[str]:
    """Yield methods and attributes that request a different learning rate or weight decay than the optimizer's."""
    groups = _collect_groups(optimizer.optimizers)
    lr, decay = (max((group[index] for group in groups.values()), default=0.0) for index in (0, 1))
    for name, method in _iter_user_methods(network):
        if name in OPTIMIZER_METHODS:
            available = {"lr": lr, "learning_rate": lr, "weight_decay": decay, "betas": (0.9, 0.999)}
            available |= {"device_type": "cpu", "device": "cpu"}
            parameters = inspect.signature(method).parameters
            try:
                own_groups = _collect_groups(
                    method(**{key: value for key, value in available.items() if key in parameters})
                )
            except Exception:  # noqa: BLE001  (the method has a different signature)
                own_groups = {}
            if own_groups != groups:
                yield f"{type(network).__name__}.{name}()"
    for name, parameter in network.named_parameters():
        is_marked = any(getattr(parameter, mark, False) for mark in NO_DECAY_MARKS)
        if is_marked and groups.get(id(parameter), (0.0, 0.0))[1] > 0:
            yield f"the exclusion of {name} from weight decay"


def _collect_groups(configured: Any) -> dict[int, tuple[float, float]]:
    """Return the learning rate and weight decay per parameter in an optimizer or groups built by user code."""
    if isinstance(configured, dict) and "params" not in configured:
        configured = configured["optimizer"]
    if isinstance(configured, list | tuple):
        merged: dict[int, tuple[float, float]] = {}
        for item in configured:
            merged |= _collect_groups(item)
        return merged
    groups = [configured] if isinstance(configured, dict) else getattr(configured, "param_groups", [])
    settings = [(group["params"], float(group["lr"]), float(group["weight_decay"])) for group in groups]
    return {id(parameter): (lr, decay) for parameters, lr, decay in settings for parameter in parameters}


@torch.no_grad()
def _ignores_pattern(model: Transformer, input_ids: Tensor) -> bool:
    """Return whether the model ignores model.pattern: the default's masks differ, but its logits are the same."""
    config = model.model_config
    is_builtin = all(type(layer.attention) is MultiHeadAttention for layer in model.layers)
    if config.pattern is None or is_builtin:
        return False
    sizes = model.sizes
    default = Transformer(
        config.model_copy(update={"pattern": None}), sizes.vocab_size, model.classes, is_causal=sizes.is_causal
    )
    default.eval().load_state_dict(model.state_dict(), strict=False)
    positions = torch.arange(input_ids.shape[1])
    masks = [
        [network.build_pattern(layer).compute_mask(positions, positions) for layer in range(config.layers)]
        for network in (model, default)
    ]
    is_same_mask = all(torch.equal(*pair) for pair in zip(*masks, strict=True))
    return not is_same_mask and torch.equal(model(input_ids).logits, default(input_ids).logits)
