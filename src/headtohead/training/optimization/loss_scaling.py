"""Dynamic loss scaling for float16, after Micikevicius et al. 2018, arXiv:1710.03740.

float16 cannot represent values below 6e-8, so small gradients would underflow to 0. The loss is multiplied by a scale
before the backward pass, and the gradients are divided by it. If a gradient overflows, the step is skipped and the
scale is halved; after GROWTH_INTERVAL steps without overflow, it is doubled.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

INITIAL_SCALE = 2.0**16
GROWTH_INTERVAL = 2000
"""Steps without overflow after which the scale is doubled."""


class LossScaler:
    """A loss scale and the number of steps since it last changed, which checkpoints store."""

    def __init__(self) -> None:
        self.factor = INITIAL_SCALE
        self.steps_since_change = 0

    def scale_loss(self, loss: Tensor) -> Tensor:
        """Return the loss times the scale."""
        return loss * self.factor

    @torch.no_grad()
    def unscale_gradients(self, parameters: Sequence[nn.Parameter]) -> bool:
        """Divide the gradients by the scale and return True.

        If one is not finite, clear all of them and return False.
        """
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        if not gradients:
            return True
        torch._foreach_mul_(gradients, 1 / self.factor)
        is_finite = bool(torch.stack(torch._foreach_norm(gradients, float("inf"))).isfinite().all())
        self.steps_since_change += 1
        if not is_finite:
            self.factor, self.steps_since_change = self.factor / 2, 0
            for parameter in parameters:
                parameter.grad = None
        elif self.steps_since_change == GROWTH_INTERVAL:
            self.factor, self.steps_since_change = self.factor * 2, 0
        return is_finite

    def collect_state_tensors(self) -> dict[str, Tensor]:
        """Return the scale and the steps since its last change as named tensors, for a checkpoint."""
        return {
            "loss_scale": torch.tensor(self.factor, dtype=torch.float64),
            "loss_scale_steps": torch.tensor(self.steps_since_change),
        }

    def pop_state_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Load the state that `collect_state_tensors` returned and remove it from `tensors`."""
        self.factor = float(tensors.pop("loss_scale"))
        self.steps_since_change = int(tensors.pop("loss_scale_steps"))
