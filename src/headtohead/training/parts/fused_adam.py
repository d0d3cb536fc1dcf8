"""Adam and AdamW with PyTorch's fused kernel, called once per parameter group and step.

For small models, torch.optim spends more time on checking tensors than in the kernel; it also imports torch._dynamo,
which takes as long as fifty steps. Parameters and state are bit-identical to those of torch.optim, and checkpoints are
interchangeable. The kernel is private to PyTorch; without it, `create_adam` falls back to torch.optim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from headtohead.errors import RequestError

ParamGroup = dict[str, Any]
AdamState = dict[int, dict[str, Tensor]]
"""The tensors step, exp_avg and exp_avg_sq of each parameter, by its index."""


@dataclass(frozen=True)
class _FusedGroup:
    """The parameters in one group that have a gradient and the same device, dtype and step count."""

    param_group: ParamGroup
    parameters: list[Tensor]
    exp_avgs: list[Tensor]
    exp_avg_sqs: list[Tensor]
    state_steps: list[Tensor]
    """One shared step counter, repeated for each parameter."""


def create_adam(
    param_groups: Iterable[ParamGroup], *, betas: tuple[float, float], eps: float, decoupled_weight_decay: bool = False
) -> FusedAdam | Optimizer:
    """Return a FusedAdam, or torch.optim.Adam or AdamW if this version of PyTorch lacks the kernel.

    Args:
        param_groups: Parameter groups with lr and weight_decay.
        betas: Decay rates of the running averages.
        eps: Term added to the denominator.
        decoupled_weight_decay: Use AdamW instead of Adam.
    """
    param_groups = list(param_groups)
    _check_hyperparameters(param_groups, betas, eps)
    kernel_name = "_fused_adamw_" if decoupled_weight_decay else "_fused_adam_"
    if hasattr(torch, kernel_name):
        return FusedAdam(param_groups, betas=betas, eps=eps, kernel=getattr(torch, kernel_name))
    optimizer_class = torch.optim.AdamW if decoupled_weight_decay else torch.optim.Adam
    return optimizer_class(param_groups, betas=betas, eps=eps)


def _check_hyperparameters(param_groups: list[ParamGroup], betas: tuple[float, float], eps: float) -> None:
    """Raise RequestError for Adam hyperparameters that torch.optim rejects."""
    nonnegative_values = [("eps", eps)]
    for group in param_groups:
        nonnegative_values += [("lr", group["lr"]), ("weight_decay", group["weight_decay"])]
    errors = [f"{name} must be 0 or more, got {value:g}" for name, value in nonnegative_values if not value >= 0]
    errors += [f"betas must be in [0, 1), got {beta:g}" for beta in betas if not 0 <= beta < 1]
    if errors:
        raise RequestError(f"training.optimizer: {'; '.join(dict.fromkeys(errors))}")


class FusedAdam:
    """Adam with the part of torch.optim's interface used by the training loop: parameter groups with an lr each."""

    def __init__(
        self, param_groups: list[ParamGroup], *, betas: tuple[float, float], eps: float, kernel: Callable[..., None]
    ) -> None:
        self.param_groups, self.betas, self.eps, self._kernel = param_groups, betas, eps, kernel
        self._parameters: list[Tensor] = [parameter for group in self.param_groups for parameter in group["params"]]
        self._state: AdamState = {}
        self._fused_groups: list[_FusedGroup] = []
        """Built when every parameter has a gradient, and reused as long as all of them have one."""

    @torch.no_grad()
    def step(self) -> None:
        """Apply one update at the current lr of each group. Parameters without a gradient are skipped."""
        has_all_gradients = all(parameter.grad is not None for parameter in self._parameters)
        if not has_all_gradients or not self._fused_groups:
            self._fused_groups = self._build_fused_groups()
        for fused_group in self._fused_groups:
            fused_group.state_steps[0].add_(1)
            self._kernel(
                fused_group.parameters,
                [parameter.grad for parameter in fused_group.parameters if parameter.grad is not None],
                fused_group.exp_avgs,
                fused_group.exp_avg_sqs,
                [],
                fused_group.state_steps,
                lr=fused_group.param_group["lr"],
                beta1=self.betas[0],
                beta2=self.betas[1],
                weight_decay=fused_group.param_group["weight_decay"],
                eps=self.eps,
                amsgrad=False,
                maximize=False,
            )
        if not has_all_gradients:
            self._fused_groups = []

    def zero_grad(self) -> None:
        """Set the gradients of all parameters to None."""
        for parameter in self._parameters:
            parameter.grad = None

    def _build_fused_groups(self) -> list[_FusedGroup]:
        """Group the parameters with a gradient for the kernel. Each group shares one step counter."""
        fused_groups: dict[tuple[Any, ...], _FusedGroup] = {}
        index = 0
        for group_index, group in enumerate(self.param_groups):
            for parameter in group["params"]:
                if parameter.grad is not None:
                    state = self._get_or_create_state(index, parameter)
                    key = group_index, parameter.device, parameter.dtype, float(state["step"])
                    fused_group = fused_groups.setdefault(key, _FusedGroup(group, [], [], [], []))
                    step = fused_group.state_steps[0] if fused_group.state_steps else state["step"].clone()
                    state["step"] = step
                    fused_group.parameters.append(parameter)
                    fused_group.exp_avgs.append(state["exp_avg"])
                    fused_group.exp_avg_sqs.append(state["exp_avg_sq"])
                    fused_group.state_steps.append(step)
                index += 1
        return list(fused_groups.values())

    def _get_or_create_state(self, index: int, parameter: Tensor) -> dict[str, Tensor]:
        """Return the state of a parameter, created at the first step on the training device."""
        if index not in self._state:
            moments = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
            self._state[index] = {"step": torch.zeros((), device=parameter.device), **moments}
        return self._state[index]

    def state_dict(self) -> dict[str, Any]:
        """Return the state in the format of torch.optim. Step counters, which parameters share, are copied."""
        return {"state": {index: {**state, "step": state["step"].clone()} for index, state in self._state.items()}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state in the format of torch.optim. Groups are rebuilt at the next step."""
        self._fused_groups = []
        self._state = {
            index: {name: value.clone().to(self._parameters[index].device) for name, value in state.items()}
            for index, state in state_dict["state"].items()
        }
