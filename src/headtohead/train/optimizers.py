"""Optimizers and schedules by name. Each function's keyword-only arguments are its options.

Weight decay is applied to matrices only, never to biases, norms and the like.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .. import spec
from ..errors import DeviceError, Fault, nearest
from ..parts.registry import fit
from .devices import bfloat16_works

Named = Iterable[tuple[str, nn.Parameter]]
Groups = list[dict[str, Any]]


def _groups(named: Named, decay: float) -> Groups:
    """Matrices, which decay, and the rest, which does not."""
    trained = [p for _, p in named if p.requires_grad]
    matrices, rest = [p for p in trained if p.dim() > 1], [p for p in trained if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": decay}, {"params": rest, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def _is_fused(named: Named) -> bool:
    return all(p.device.type in ("cpu", "cuda") for _, p in named)


def adamw(
    named: Named,
    *,
    rate: float = 1e-3,
    betas: tuple[float, ...] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.01,
) -> list[Optimizer]:
    """Loshchilov and Hutter 2019, arXiv:1711.05101."""
    named = list(named)
    first, second = betas
    groups = _groups(named, weight_decay)
    return [torch.optim.AdamW(groups, lr=rate, betas=(first, second), eps=eps, fused=_is_fused(named))]


def adam(
    named: Named,
    *,
    rate: float = 1e-3,
    betas: tuple[float, ...] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
) -> list[Optimizer]:
    """Kingma and Ba 2015, arXiv:1412.6980."""
    named = list(named)
    first, second = betas
    groups = _groups(named, weight_decay)
    return [torch.optim.Adam(groups, lr=rate, betas=(first, second), eps=eps, fused=_is_fused(named))]


def sgd(named: Named, *, rate: float = 0.1, momentum: float = 0.0, weight_decay: float = 0.0) -> list[Optimizer]:
    """Plain gradient descent, with momentum if asked."""
    named = list(named)
    return [torch.optim.SGD(_groups(named, weight_decay), lr=rate, momentum=momentum, fused=_is_fused(named))]


def adagrad(named: Named, *, rate: float = 0.01, eps: float = 1e-10, weight_decay: float = 0.0) -> list[Optimizer]:
    """Duchi et al. 2011."""
    return [torch.optim.Adagrad(_groups(named, weight_decay), lr=rate, eps=eps)]


def muon(
    named: Named,
    *,
    rate: float = 0.02,
    momentum: float = 0.95,
    weight_decay: float = 0.1,
    adamw_rate: float = 1e-3,
) -> list[Optimizer]:
    """Orthogonalised momentum for the matrices inside the layers, AdamW for the rest. After Jordan 2024."""
    named = [(name, p) for name, p in named if p.requires_grad]
    if any(p.device.type == "cpu" for _, p in named) and not bfloat16_works():
        raise DeviceError(
            "muon multiplies in bfloat16, which kills the process on this machine; set "
            "ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 before starting (`h2h doctor` says more)"
        )
    if not hasattr(torch.optim, "Muon"):
        raise DeviceError(f"muon needs torch 2.9 or newer; this is {torch.__version__}")
    # The outer layers are matrices too, but not of the kind that Muon is made for: rows are looked up, not mixed.
    inner = [(n, p) for n, p in named if p.dim() == 2 and n.startswith("layers.")]
    outer = [(n, p) for n, p in named if not (p.dim() == 2 and n.startswith("layers."))]
    matrices = torch.optim.Muon([p for _, p in inner], lr=rate, momentum=momentum, weight_decay=weight_decay)
    return [matrices, *adamw(outer, rate=adamw_rate)]


OPTIMIZERS: dict[str, Callable[..., list[Optimizer]]] = {f.__name__: f for f in (adamw, adam, sgd, adagrad, muon)}


def constant(step: int, steps: int, *, warmup: int = 0) -> float:
    """The full rate, after a linear warm-up."""
    return min(1.0, (step + 1) / (warmup + 1))


def cosine(step: int, steps: int, *, warmup: int = 0, final: float = 0.0) -> float:
    """Down along half a cosine to `final` of the full rate."""
    left = 0.5 * (1 + math.cos(math.pi * _gone(step, steps, warmup)))
    return constant(step, steps, warmup=warmup) * (final + (1 - final) * left)


def linear(step: int, steps: int, *, warmup: int = 0, final: float = 0.0) -> float:
    """Down along a line to `final` of the full rate."""
    return constant(step, steps, warmup=warmup) * (final + (1 - final) * (1 - _gone(step, steps, warmup)))


def _gone(step: int, steps: int, warmup: int) -> float:
    """What share of the way after the warm-up is behind us."""
    return min(1.0, max(0, step - warmup) / max(1, steps - warmup))


SCHEDULES: dict[str, Callable[..., float]] = {f.__name__: f for f in (constant, cosine, linear)}


class Descent:
    """The optimizers of one model with their schedule: what the loop steps."""

    def __init__(self, model: nn.Module, training: spec.Training, steps: int) -> None:
        self.inner = OPTIMIZERS[training.optimizer.kind](model.named_parameters(), **training.optimizer.options)
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.rates = [[group["lr"] for group in optimizer.param_groups] for optimizer in self.inner]
        self.schedule, self.options = SCHEDULES[training.schedule.kind], training.schedule.options
        self.clip, self.steps = training.clip, steps

    def step(self, step: int) -> None:
        """Go down, at the rate of this step, and forget the gradients."""
        if self.clip is not None:
            nn.utils.clip_grad_norm_(self.parameters, self.clip)
        factor = self.schedule(step, self.steps, **self.options)
        for optimizer, rates in zip(self.inner, self.rates, strict=True):
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * factor
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def tensors(self) -> dict[str, Tensor]:
        """The state as named tensors, for a checkpoint."""
        found = {}
        for i, optimizer in enumerate(self.inner):
            for index, state in optimizer.state_dict()["state"].items():
                for name, value in state.items():
                    if value is not None:
                        found[f"{i}.{index}.{name}"] = torch.as_tensor(value)
        return found

    def restore(self, tensors: dict[str, Tensor]) -> None:
        for i, optimizer in enumerate(self.inner):
            state: dict[int, dict[str, Tensor]] = {}
            for place, value in tensors.items():
                which, index, name = place.split(".", 2)
                if int(which) == i:
                    state.setdefault(int(index), {})[name] = value
            optimizer.load_state_dict({**optimizer.state_dict(), "state": state})


def check(training: dict[str, Any]) -> list[Fault]:
    """Do the optimizer and the schedule of an experiment file exist, and do their options fit?"""
    faults = []
    tables: tuple[tuple[str, dict[str, Callable[..., Any]]], ...] = (
        ("optimizer", OPTIMIZERS),
        ("schedule", SCHEDULES),
    )
    for slot, known in tables:
        if slot not in training:
            continue
        try:
            choice = spec.Choice.model_validate(training[slot])
        except ValueError:
            continue
        if choice.kind not in known:
            message, allowed = f"there is no {slot} {choice.kind!r}", tuple(known)
            faults.append(Fault(f"training.{slot}", message, allowed, nearest(choice.kind, allowed)))
        else:
            faults += fit(known[choice.kind], choice.options, f"training.{slot}")
    return faults
