"""Copies of a model to audit: adapt any nn.Module to the model protocol, deep-copy it, and perturb its weights."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import torch
from torch import Tensor, nn

from headtohead.config.tables.model import CustomModelConfig
from headtohead.errors import ModelError
from headtohead.nn.custom_model import CustomModel


class ModuleAdapter(CustomModel):
    """Adapts any `nn.Module` that maps token ids to logits to this package's model interface."""

    def __init__(self, module: nn.Module, vocab_size: int, num_classes: int | None, context: int) -> None:
        nn.Module.__init__(self)
        self.model_config = CustomModelConfig.model_construct(module=type(module).__name__, context=context, options={})
        self.context, self.num_classes, self.vocab_size, self.inner = context, num_classes, vocab_size, module
        self._forward_parameters = frozenset(inspect.signature(module.forward).parameters)


def adapt_module(model: nn.Module, vocab_size: int, num_classes: int | None, context: int) -> nn.Module:
    """Return the model, adapted to the model protocol if it does not implement it."""
    parameter_names = set(inspect.signature(model.forward).parameters)
    is_protocol_model = {"cache", "output_attentions"} <= parameter_names
    return model if is_protocol_model else ModuleAdapter(model, vocab_size, num_classes, context)


def find_supported_forward_arguments(model: nn.Module) -> frozenset[str]:
    """Return the optional arguments of the model protocol that the forward method of a copied model accepts."""
    optional_arguments = {"attention_mask", "output_attentions", "attn_implementation"}
    forward = model.forward
    if isinstance(model, CustomModel):
        optional_arguments, forward = {"attention_mask"}, model.inner.forward
    return frozenset(optional_arguments & set(inspect.signature(forward).parameters))


def copy_model(model: nn.Module) -> nn.Module:
    """Return a deep copy of a model.

    Non-leaf tensors that it stores, such as attention weights for plots, are detached.
    """
    memo: dict[int, Any] = {}
    for module in model.modules():
        for value in vars(module).values():
            for stored in value if isinstance(value, list | tuple) else (value,):
                if isinstance(stored, Tensor) and not stored.is_leaf:
                    memo[id(stored)] = stored.detach().clone()
    try:
        model_copy = copy.deepcopy(model, memo)
    except Exception as error:
        raise ModelError(f"audits run on a copy of the model, and copying it failed: {error}") from error
    # MPS does not support float64.
    return (
        model_copy.cpu() if any(parameter.device.type == "mps" for parameter in model_copy.parameters()) else model_copy
    )


def perturb_parameters(module: nn.Module) -> None:
    """Add normal noise to every trainable parameter, drawn from the current RNG state."""
    for parameter in module.parameters():
        if parameter.requires_grad:
            parameter.add_(torch.randn_like(parameter), alpha=0.05)
