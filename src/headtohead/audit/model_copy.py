"""Copies of a model for checks: adapt any nn.Module to the model protocol, deep-copy it, and perturb its weights."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import torch
from torch import Tensor, nn

from headtohead.config.model import CustomModelConfig
from headtohead.errors import ModelError
from headtohead.nn.custom_model import CustomModel


class ModuleAdapter(CustomModel):
    """Adapts any `nn.Module` that maps token ids to logits to this package's model interface."""

    def __init__(self, module: nn.Module, vocab_size: int, num_classes: int | None, context: int) -> None:
        nn.Module.__init__(self)
        self.model_config = CustomModelConfig.model_construct(module=type(module).__name__, context=context, options={})
        self.context, self.classes, self.vocab_size, self.inner = context, num_classes, vocab_size, module
        self._forward_parameters = frozenset(inspect.signature(module.forward).parameters)


def adapt_module(model: nn.Module, vocab_size: int, num_classes: int | None, context: int) -> nn.Module:
    """Return the model, adapted to the protocol if it does not implement it."""
    names = set(inspect.signature(model.forward).parameters)
    is_protocol_model = {"cache", "output_attentions"} <= names
    return model if is_protocol_model else ModuleAdapter(model, vocab_size, num_classes, context)


def find_supported_arguments(model: nn.Module) -> frozenset[str]:
    """Return the optional protocol arguments that the model supports."""
    is_custom = isinstance(model, CustomModel)
    names = {"attention_mask"} if is_custom else {"attention_mask", "output_attentions", "attn_implementation"}
    forward = model.inner.forward if isinstance(model, CustomModel) else model.forward
    return frozenset(names & set(inspect.signature(forward).parameters))


def copy_model(model: nn.Module) -> nn.Module:
    """Return a deep copy. Non-leaf tensors stored in modules, such as attention weights for plots, are detached."""
    memo: dict[int, Any] = {}
    for module in model.modules():
        for value in vars(module).values():
            for item in value if isinstance(value, list | tuple) else (value,):
                if isinstance(item, Tensor) and not item.is_leaf:
                    memo[id(item)] = item.detach().clone()
    try:
        copied = copy.deepcopy(model, memo)
    except Exception as error:
        raise ModelError(f"audits run on a copy of the model, and copying it failed: {error}") from error
    # MPS does not support float64.
    return copied.cpu() if any(parameter.device.type == "mps" for parameter in copied.parameters()) else copied


def perturb_parameters(module: nn.Module) -> None:
    """Add normal noise to every trainable parameter, drawn from the current RNG state."""
    for parameter in module.parameters():
        if parameter.requires_grad:
            parameter.add_(torch.randn_like(parameter), alpha=0.05)
