"""Adam and AdamW by torch's fused kernel, called once a group and step.

torch's own class looks at every tensor before it calls the same kernel: has it a gradient, where does it lie, what type
is it; and it raises a counter for each. For a small model that takes longer than the kernel. It also imports torch's
compiler, which takes as long as fifty steps. Here the answers that never change are asked once. Weights and state
are those of torch.optim, bit for bit, and a checkpoint of one can be read by the other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headtohead.errors import RequestError

ParamGroup = dict[str, Any]
AdamState = dict[int, dict[str, Tensor]]
"""by the number of the tensor: step, exp_avg, exp_avg_sq"""


@dataclass(frozen=True)
class _FusedGroup:
    """Tensors of one group that lie on one device in one type, have taken equally many steps and have a gradient."""

    group: ParamGroup
    parameters: list[Tensor]
    exp_avgs: list[Tensor]
    exp_avg_sqs: list[Tensor]
    counts: list[Tensor]
    """one counter of steps, once for each tensor"""


class FusedAdam:
    """What the loop steps: a rate of its own for each group, as in torch.optim."""

    def __init__(
        self,
        param_groups: Iterable[ParamGroup],
        *,
        betas: tuple[float, float],
        eps: float,
        decoupled_weight_decay: bool = False,
    ) -> None:
        """With `decoupled`, weights decay beside the gradient (AdamW), and not within it."""
        self.param_groups = list(param_groups)
        self.betas, self.eps = betas, eps
        self._check()
        self._kernel = torch._fused_adamw_ if decoupled_weight_decay else torch._fused_adam_
        self._parameters: list[Tensor] = [p for group in self.param_groups for p in group["params"]]
        self._state: AdamState = {}
        self._fused_groups: list[_FusedGroup] = []
        """made at a step at which every tensor has a gradient, for the steps that follow"""

    def _check(self) -> None:
        """What torch would refuse is refused, in words."""
        given = [("eps", self.eps)]
        for group in self.param_groups:
            given += [("lr", group["lr"]), ("weight_decay", group["weight_decay"])]
        wrong = [f"{name} must be 0 or more, not {value:g}" for name, value in given if not value >= 0]
        wrong += [f"betas must lie from 0 to below 1, not {beta:g}" for beta in self.betas if not 0 <= beta < 1]
        if wrong:
            raise RequestError(f"training.optimizer: {'; '.join(dict.fromkeys(wrong))}")

    @torch.no_grad()
    def step(self) -> None:
        everything = all(p.grad is not None for p in self._parameters)
        if not everything or not self._fused_groups:
            self._fused_groups = self._build_fused_groups()
        for alike in self._fused_groups:
            alike.counts[0].add_(1)
            self._kernel(
                alike.parameters,
                [p.grad for p in alike.parameters if p.grad is not None],
                alike.exp_avgs,
                alike.exp_avg_sqs,
                [],
                alike.counts,
                lr=alike.group["lr"],
                beta1=self.betas[0],
                beta2=self.betas[1],
                weight_decay=alike.group["weight_decay"],
                eps=self.eps,
                amsgrad=False,
                maximize=False,
            )
        if not everything:
            self._fused_groups = []

    def zero_grad(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None

    def _build_fused_groups(self) -> list[_FusedGroup]:
        """Tensors that have a gradient, in lists for the kernel. Those of one list share a counter."""
        found: dict[tuple[Any, ...], _FusedGroup] = {}
        number = 0
        for at, group in enumerate(self.param_groups):
            for parameter in group["params"]:
                if parameter.grad is not None:
                    state = self._get_or_create_state(number, parameter)
                    key = at, parameter.device, parameter.dtype, float(state["step"])
                    alike = found.setdefault(key, _FusedGroup(group, [], [], [], []))
                    count = alike.counts[0] if alike.counts else state["step"].clone()
                    state["step"] = count
                    for one, many in (
                        (parameter, alike.parameters),
                        (state["exp_avg"], alike.exp_avgs),
                        (state["exp_avg_sq"], alike.exp_avg_sqs),
                        (count, alike.counts),
                    ):
                        many.append(one)
                number += 1
        return list(found.values())

    def _get_or_create_state(self, index: int, parameter: Tensor) -> dict[str, Tensor]:
        """Made at the first step, when the model is where it is trained."""
        if index not in self._state:
            made = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
            self._state[index] = {"step": torch.zeros((), device=parameter.device), **made}
        return self._state[index]

    def state_dict(self) -> dict[str, Any]:
        """As torch.optim has it. A counter is copied: several tensors share it."""
        state = {at: {**one, "step": one["step"].clone()} for at, one in self._state.items()}
        return {"state": state}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._fused_groups = []
        self._state = {
            at: {name: value.clone().to(self._parameters[at].device) for name, value in one.items()}
            for at, one in state_dict["state"].items()
        }
