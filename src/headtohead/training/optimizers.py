"""Optimizers and schedules by name. Each function's keyword-only arguments are its options.

Weight decay is applied to matrices only, never to biases, norms and the like. Tensors may have a share of the rate of
their own (layer-wise rates): they go into groups of their own, for every optimizer.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from headtohead.config import base, training
from headtohead.errors import DeviceError, ValidationIssue, suggest
from headtohead.nn.parts.registry import validate_options
from headtohead.pretrained.classifier import EncoderClassifier
from headtohead.training.devices import is_bfloat16_usable
from headtohead.training.fused_adam import FusedAdam

NamedParameters = Iterable[tuple[str, nn.Parameter]]
LrMultipliers = Mapping[str, float]
"""what share of the rate a tensor is trained with, by name; full unless named"""
ParamGroups = list[dict[str, Any]]
AnyOptimizer = Optimizer | FusedAdam
NO_LR_MULTIPLIERS: LrMultipliers = {}
LAYER_PARAMETER_PATTERN = re.compile(r"(^|\.)(layers?|blocks?|h)\.\d+\.")
"""the names of what lies inside the layers, ours and those of the libraries"""


def _build_param_groups(
    named_parameters: NamedParameters, lr_multipliers: LrMultipliers, lr: float, weight_decay: float
) -> ParamGroups:
    """Matrices, which decay, and the rest, which does not; one pair for each share of the rate."""
    by_share: dict[float, tuple[list[nn.Parameter], list[nn.Parameter]]] = {}
    for name, parameter in named_parameters:
        if parameter.requires_grad:
            matrices, rest = by_share.setdefault(lr_multipliers.get(name, 1.0), ([], []))
            (matrices if parameter.dim() > 1 else rest).append(parameter)
    groups = []
    for share, (matrices, rest) in by_share.items():
        groups.append({"params": matrices, "weight_decay": weight_decay, "lr": lr * share})
        groups.append({"params": rest, "weight_decay": 0.0, "lr": lr * share})
    return [group for group in groups if group["params"]]


def _can_use_fused_kernel(named_parameters: NamedParameters) -> bool:
    return all(p.device.type in ("cpu", "cuda") for _, p in named_parameters)


def adamw(
    named_parameters: NamedParameters,
    lr_multipliers: LrMultipliers = NO_LR_MULTIPLIERS,
    *,
    lr: float = 1e-3,
    betas: tuple[float, ...] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.01,
) -> list[AnyOptimizer]:
    """Loshchilov and Hutter 2019, arXiv:1711.05101."""
    first, second = betas
    groups = _build_param_groups(named_parameters, lr_multipliers, lr, weight_decay)
    return [FusedAdam(groups, betas=(first, second), eps=eps, decoupled_weight_decay=True)]


def adam(
    named_parameters: NamedParameters,
    lr_multipliers: LrMultipliers = NO_LR_MULTIPLIERS,
    *,
    lr: float = 1e-3,
    betas: tuple[float, ...] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
) -> list[AnyOptimizer]:
    """Kingma and Ba 2015, arXiv:1412.6980."""
    first, second = betas
    groups = _build_param_groups(named_parameters, lr_multipliers, lr, weight_decay)
    return [FusedAdam(groups, betas=(first, second), eps=eps)]


def sgd(
    named_parameters: NamedParameters,
    lr_multipliers: LrMultipliers = NO_LR_MULTIPLIERS,
    *,
    lr: float = 0.1,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
) -> list[AnyOptimizer]:
    """Plain gradient descent, with momentum if asked."""
    named_parameters = list(named_parameters)
    groups = _build_param_groups(named_parameters, lr_multipliers, lr, weight_decay)
    return [torch.optim.SGD(groups, lr=lr, momentum=momentum, fused=_can_use_fused_kernel(named_parameters))]


def adagrad(
    named_parameters: NamedParameters,
    lr_multipliers: LrMultipliers = NO_LR_MULTIPLIERS,
    *,
    lr: float = 0.01,
    eps: float = 1e-10,
    weight_decay: float = 0.0,
) -> list[AnyOptimizer]:
    """Duchi et al. 2011."""
    return [
        torch.optim.Adagrad(_build_param_groups(named_parameters, lr_multipliers, lr, weight_decay), lr=lr, eps=eps)
    ]


def muon(
    named_parameters: NamedParameters,
    lr_multipliers: LrMultipliers = NO_LR_MULTIPLIERS,
    *,
    lr: float = 0.02,
    momentum: float = 0.95,
    weight_decay: float = 0.1,
    adamw_lr: float = 1e-3,
) -> list[AnyOptimizer]:
    """Orthogonalised momentum for the matrices inside the layers, AdamW for the rest. After Jordan 2024."""
    named_parameters = [(name, p) for name, p in named_parameters if p.requires_grad]
    if not hasattr(torch.optim, "Muon"):
        raise DeviceError(f"muon needs torch 2.9 or newer; this is {torch.__version__}")
    # The outer layers are matrices too, but not of the kind that Muon is made for: rows are looked up, not mixed.
    inner = [(n, p) for n, p in named_parameters if p.dim() == 2 and LAYER_PARAMETER_PATTERN.search(n)]
    outer = [(n, p) for n, p in named_parameters if not (p.dim() == 2 and LAYER_PARAMETER_PATTERN.search(n))]
    rest = adamw(outer, lr_multipliers, lr=adamw_lr) if outer else []
    if not inner:  # the layers are frozen
        return rest
    groups = _build_param_groups(inner, lr_multipliers, lr, weight_decay)
    return [torch.optim.Muon(groups, lr=lr, momentum=momentum, weight_decay=weight_decay), *rest]


OPTIMIZERS: dict[str, Callable[..., list[AnyOptimizer]]] = {f.__name__: f for f in (adamw, adam, sgd, adagrad, muon)}


def constant(step: int, total_steps: int, *, warmup: int = 0) -> float:
    """The full rate, after a linear warm-up."""
    return min(1.0, (step + 1) / (warmup + 1))


def cosine(step: int, total_steps: int, *, warmup: int = 0, final: float = 0.0) -> float:
    """Down along half a cosine to `final` of the full rate."""
    left = 0.5 * (1 + math.cos(math.pi * _compute_decay_progress(step, total_steps, warmup)))
    return constant(step, total_steps, warmup=warmup) * (final + (1 - final) * left)


def linear(step: int, total_steps: int, *, warmup: int = 0, final: float = 0.0) -> float:
    """Down along a line to `final` of the full rate."""
    return constant(step, total_steps, warmup=warmup) * (
        final + (1 - final) * (1 - _compute_decay_progress(step, total_steps, warmup))
    )


def _compute_decay_progress(step: int, total_steps: int, warmup: int) -> float:
    """What share of the way after the warm-up is behind us."""
    return min(1.0, max(0, step - warmup) / max(1, total_steps - warmup))


LR_SCHEDULES: dict[str, Callable[..., float]] = {f.__name__: f for f in (constant, cosine, linear)}


class ScheduledOptimizer:
    """The optimizers of one model with their schedule: what the loop steps."""

    def __init__(self, model: nn.Module, training: training.TrainingConfig, total_steps: int) -> None:
        shares = model.shares() if isinstance(model, EncoderClassifier) else NO_LR_MULTIPLIERS
        make = OPTIMIZERS[training.optimizer.kind]
        self.inner = make(model.named_parameters(), shares, **training.optimizer.options)
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.base_lrs = [[group["lr"] for group in optimizer.param_groups] for optimizer in self.inner]
        self.schedule, self.options = LR_SCHEDULES[training.schedule.kind], training.schedule.options
        self.clip, self.steps = training.max_grad_norm, total_steps
        self._unsure = training.optimizer.kind == "muon"

    def _check_bfloat16(self) -> None:
        """Asked before the first step and not before: workers are given an environment in which it works."""
        if any(p.device.type == "cpu" for p in self.parameters) and not is_bfloat16_usable():
            raise DeviceError(
                "muon multiplies in bfloat16, which kills the process on this machine; set "
                "ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 before starting (`h2h doctor` says more)"
            )
        self._unsure = False

    def step(self, step: int) -> None:
        """Go down, at the rate of this step, and forget the gradients."""
        if self._unsure:
            self._check_bfloat16()
        if self.clip is not None:
            nn.utils.clip_grad_norm_(self.parameters, self.clip)
        factor = self.schedule(step, self.steps, **self.options)
        for optimizer, rates in zip(self.inner, self.base_lrs, strict=True):
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * factor
            optimizer.step()
            optimizer.zero_grad()

    def tensors(self) -> dict[str, Tensor]:
        """The state as named tensors, for a checkpoint."""
        found = {}
        for i, optimizer in enumerate(self.inner):
            for index, state in optimizer.state_dict()["state"].items():
                for name, value in state.items():
                    if value is not None:
                        found[f"{i}.{index}.{name}"] = torch.as_tensor(value)
        return found

    def load_state_tensors(self, tensors: dict[str, Tensor]) -> None:
        for i, optimizer in enumerate(self.inner):
            state: dict[int, dict[str, Tensor]] = {}
            for place, value in tensors.items():
                which, index, name = place.split(".", 2)
                if int(which) == i:
                    state.setdefault(int(index), {})[name] = value
            optimizer.load_state_dict({**optimizer.state_dict(), "state": state})


def check_training_options(training: dict[str, Any]) -> list[ValidationIssue]:
    """Do the optimizer and the schedule of an experiment file exist, and do their options fit?"""
    faults = []
    tables: tuple[tuple[str, dict[str, Callable[..., Any]]], ...] = (
        ("optimizer", OPTIMIZERS),
        ("schedule", LR_SCHEDULES),
    )
    for slot, known in tables:
        if slot not in training:
            continue
        try:
            choice = base.ComponentConfig.model_validate(training[slot])
        except ValueError:
            continue
        if choice.kind not in known:
            message, allowed = f"unknown {slot} {choice.kind!r}", tuple(known)
            faults.append(ValidationIssue(f"training.{slot}", message, allowed, suggest(choice.kind, allowed)))
        else:
            faults += validate_options(known[choice.kind], choice.options, f"training.{slot}")
    return faults
