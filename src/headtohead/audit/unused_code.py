"""Reject models with code that training would ignore: a loss, parameter groups or an attention pattern.

Training minimizes the task's objective with the optimizer from the experiment file. A variant that changes a loss or
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

from headtohead.audit.user_code import LIBRARY_PREFIXES
from headtohead.data.batches import IGNORE_INDEX, Batch
from headtohead.errors import ModelError
from headtohead.nn.custom_model import CustomModel, extract_logits
from headtohead.nn.parts.attention import MultiHeadAttention
from headtohead.nn.parts.context import ForwardContext
from headtohead.nn.random_state import fork_seeded_rng
from headtohead.nn.transformer import Transformer
from headtohead.training.optimization.scheduled_optimizer import ScheduledOptimizer

CHECK_BATCH_SIZE = 4
LOSS_TOLERANCE = 1e-3
"""largest relative difference between a network's own loss and the cross-entropy of its logits"""
LOSS_NAME_FRAGMENTS = ("loss", "aux", "penalty", "regular", "balance")
"""fragments of the names of tensors that networks store to add them to the loss"""
OPTIMIZER_METHODS = ("configure_optimizers", "get_optimizer", "get_param_groups", "parameter_groups", "param_groups")
NO_DECAY_ATTRIBUTES = ("_no_weight_decay", "no_weight_decay")
"""attributes with which some libraries exclude a parameter from weight decay"""


def check_unused_code(model: nn.Module, batch: Batch, optimizer: ScheduledOptimizer) -> None:
    """Raise ModelError if a network or part defines something that training ignores.

    Runs a forward pass in training mode, so `model` should not be trained afterwards. A network that raises an
    exception is not checked.
    """
    network = model.inner if isinstance(model, CustomModel) else model
    has_own_loss = isinstance(model, CustomModel) and model.has_training_loss
    batch = batch.slice_rows(0, CHECK_BATCH_SIZE)
    with fork_seeded_rng("unused code"), torch.enable_grad():
        for description in () if has_own_loss else _iter_unused_losses(network.train(), batch):
            raise ModelError(
                f"{description} would be ignored: training minimizes the cross-entropy of the logits. Remove it, or "
                "define training_loss(input_ids, labels) in a custom network. Models that you train yourself can be "
                "compared with `h2h judge`"
            )
        for description in _iter_unused_param_groups(network, optimizer, is_custom=isinstance(model, CustomModel)):
            raise ModelError(
                f"{description} would be ignored: [training.optimizer] sets learning rate and weight decay, the latter "
                "for matrices only. Remove it and set the optimizer in the experiment file, or define "
                "parameter_groups(lr) in a custom network"
            )
    if isinstance(model, Transformer) and _ignores_configured_pattern(model.eval(), batch.input_ids):
        raise ModelError(
            f"model.pattern would be ignored: attention part {str(model.model_config.attention)!r} gives the same "
            "logits with the default pattern. Apply the pattern that the part receives, or do not set model.pattern"
        )


def _iter_unused_losses(network: nn.Module, batch: Batch) -> Iterator[str]:
    """Yield a description of each loss of a user's network that training would ignore.

    These are all losses but the cross-entropy of the logits.
    """
    labels = batch.labels.masked_fill(batch.labels == IGNORE_INDEX, 0)
    forward_parameters = inspect.signature(network.forward).parameters
    label_arguments = {name: labels for name in ("targets", "labels") if name in forward_parameters}
    try:
        output = network(batch.input_ids, **label_arguments)
        logits = extract_logits(output)
    except Exception:  # noqa: BLE001  (training will report it)
        return
    cross_entropies = _compute_cross_entropies(logits, labels)
    losses = [*_iter_returned_losses(output), *_iter_losses_stored_by_forward(network)]
    owners = [] if label_arguments else network.modules() if isinstance(network, Transformer) else [network]
    method_losses = [
        (
            f"{type(owner).__name__}.{name}()",
            _call_loss_method(method, batch.input_ids, logits, labels, cross_entropies),
        )
        for owner in owners
        for name, method in _iter_user_methods(owner)
        if "loss" in name or name == "training_step"
    ]
    for description, loss in [*losses, *method_losses]:
        if loss is None:
            yield description
        elif not _is_close_to_any(loss, cross_entropies):
            yield f"{description} (value {float(loss.detach()):.4g}, cross-entropy {cross_entropies[0]:.4g})"
    for name, module in network.named_modules():
        is_plain = isinstance(module, nn.CrossEntropyLoss) and module.weight is None and not module.label_smoothing
        if isinstance(module, _Loss) and not is_plain:
            yield f"{name} ({type(module).__name__})"


def _compute_cross_entropies(logits: Tensor, labels: Tensor) -> list[float]:
    """Return the cross-entropies that a used loss may be equal to: plain, or of labels shifted by one."""
    logits = logits.detach()
    pairs = [(logits.flatten(0, -2), labels.flatten())]
    if logits.dim() == 3:
        pairs.append((logits[:, :-1].flatten(0, -2), labels[:, 1:].flatten()))
    return [float(F.cross_entropy(*pair)) for pair in pairs]


def _is_close_to_any(loss: Tensor, expected_losses: list[float]) -> bool:
    """Return whether a loss of the user's code is one of the losses that training minimizes."""
    return any(abs(float(loss.detach()) - expected) <= LOSS_TOLERANCE * expected for expected in expected_losses)


def _iter_returned_losses(output: object) -> Iterator[tuple[str, Tensor]]:
    """Yield the losses that a user's forward pass returned with the logits, which training leaves unused."""
    if isinstance(output, tuple | list):
        outputs = {f"output {index} of forward()": value for index, value in enumerate(output)}
    else:
        outputs = {f".{name} of the output of forward()": getattr(output, name, None) for name in ("loss", "aux_loss")}
    yield from ((description, value) for description, value in outputs.items() if _is_differentiable_scalar(value))


def _iter_losses_stored_by_forward(network: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the losses that a user's forward pass stored in attributes such as `aux_loss`, unused by training."""
    for prefix, module in network.named_modules():
        for name, value in vars(module).items():
            candidates = value if isinstance(value, list | tuple) else [value]
            if any(fragment in name.lower() for fragment in LOSS_NAME_FRAGMENTS):
                yield from (
                    (f"attribute {prefix}.{name}".replace(" .", " "), candidate)
                    for candidate in candidates
                    if _is_differentiable_scalar(candidate)
                )


def _is_differentiable_scalar(value: object) -> bool:
    """Return whether a value from a user's forward pass may be a loss."""
    return isinstance(value, Tensor) and value.numel() == 1 and value.grad_fn is not None


def _iter_user_methods(module: nn.Module) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the methods of a module that the user's files define, some of which training may leave unused."""
    for defining_class in type(module).__mro__:
        file = Path(getattr(sys.modules.get(defining_class.__module__), "__file__", None) or sys.prefix)
        is_library = "site-packages" in file.parts or str(file).startswith(LIBRARY_PREFIXES)
        if not is_library and defining_class.__module__ != "builtins":
            names = [name for name, value in vars(defining_class).items() if inspect.isfunction(value)]
            yield from ((name, getattr(module, name)) for name in names)


def _call_loss_method(
    method: Callable[..., Any], input_ids: Tensor, logits: Tensor, labels: Tensor, cross_entropies: list[float]
) -> Tensor | None:
    """Call a loss method that training leaves unused, with the usual combinations of arguments; None if it rejects all.

    If it accepts several, prefer the result that is the cross-entropy.
    """
    results = []
    for method_arguments in (
        (logits, labels),
        (logits.flatten(0, -2), labels.flatten()),
        (input_ids, labels),
        ((input_ids, labels), 0),
    ):
        try:
            results.append(method(*method_arguments))
        except Exception:  # noqa: BLE001  (the method has a different signature)
            continue
    losses = [result for result in results if isinstance(result, Tensor) and result.numel() == 1]
    return next((loss for loss in losses if _is_close_to_any(loss, cross_entropies)), losses[0] if losses else None)


def _iter_unused_param_groups(network: nn.Module, optimizer: ScheduledOptimizer, *, is_custom: bool) -> Iterator[str]:
    """Yield a description of each user method or attribute that sets a learning rate or weight decay and is ignored."""
    used_settings = _collect_param_settings(optimizer.optimizers)
    lr, weight_decay = (max((settings[index] for settings in used_settings.values()), default=0.0) for index in (0, 1))
    for name, method in _iter_user_methods(network):
        if name in OPTIMIZER_METHODS and not (is_custom and name == "parameter_groups"):
            known_arguments = {"lr": lr, "learning_rate": lr, "weight_decay": weight_decay, "betas": (0.9, 0.999)}
            known_arguments |= {"device_type": "cpu", "device": "cpu"}
            parameters = inspect.signature(method).parameters
            try:
                requested_settings = _collect_param_settings(
                    method(**{name: value for name, value in known_arguments.items() if name in parameters})
                )
            except Exception:  # noqa: BLE001  (the method has a different signature)
                requested_settings = {}
            if requested_settings != used_settings:
                yield f"{type(network).__name__}.{name}()"
    for name, parameter in network.named_parameters():
        is_marked = any(getattr(parameter, attribute, False) for attribute in NO_DECAY_ATTRIBUTES)
        if is_marked and used_settings.get(id(parameter), (0.0, 0.0))[1] > 0:
            yield f"the exclusion of {name} from weight decay"


def _collect_param_settings(configured: Any) -> dict[int, tuple[float, float]]:
    """Return the settings of parameter groups that training may leave unused: {id(parameter): (lr, weight decay)}.

    `configured` are optimizers or parameter groups, in any form that user code returns.
    """
    if isinstance(configured, dict) and "params" not in configured:
        configured = configured["optimizer"]
    if isinstance(configured, list | tuple):
        merged_settings: dict[int, tuple[float, float]] = {}
        for element in configured:
            merged_settings |= _collect_param_settings(element)
        return merged_settings
    param_groups = [configured] if isinstance(configured, dict) else getattr(configured, "param_groups", [])
    return {
        id(parameter): (float(group["lr"]), float(group["weight_decay"]))
        for group in param_groups
        for parameter in group["params"]
    }


@torch.no_grad()
def _ignores_configured_pattern(model: Transformer, input_ids: Tensor) -> bool:
    """Return whether a user's attention part leaves model.pattern of the experiment file unused.

    It does if the default pattern has different masks, but gives the same logits.
    """
    config = model.model_config
    is_builtin = all(type(layer.attention) is MultiHeadAttention for layer in model.layers)
    if config.pattern is None or is_builtin:
        return False
    sizes = model.sizes
    default_model = Transformer(
        config.model_copy(update={"pattern": None}), sizes.vocab_size, model.num_classes, is_causal=sizes.is_causal
    )
    default_model.eval().load_state_dict(model.state_dict(), strict=False)
    context = ForwardContext.create(input_ids)
    positions = context.query_positions
    masks = [
        [network.build_pattern(layer).compute_mask(positions, positions, context) for layer in range(config.layers)]
        for network in (model, default_model)
    ]
    is_same_mask = all(torch.equal(*mask_pair) for mask_pair in zip(*masks, strict=True))
    return not is_same_mask and torch.equal(model(input_ids).logits, default_model(input_ids).logits)
