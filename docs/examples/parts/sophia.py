"""Sophia-G. After Liu et al. 2023, arXiv:2305.14342."""

import torch

from headtohead.parts import Optimizer, register_part


@register_part("optimizer", "sophia")
class Sophia(Optimizer):
    """Momentum divided by the diagonal of the Hessian, estimated every `every` steps, clipped to 1."""

    def __init__(
        self, parameters, *, lr: float = 6e-4, weight_decay: float = 0.1, gamma: float = 0.01, every: int = 10
    ):
        super().__init__(parameters, lr=lr, weight_decay=weight_decay)
        self.gamma, self.every = gamma, every

    def needs_hessian(self, context):
        return context.step % self.every == 0

    def update(self, parameter, gradient, state, context):
        momentum, hessian = (state.setdefault(key, torch.zeros_like(parameter)) for key in ("momentum", "hessian"))
        momentum.lerp_(gradient, 0.04)
        if context.hessian is not None:
            hessian.lerp_(context.hessian, 0.01)
        direction = (momentum / (self.gamma * hessian).clamp_min(1e-12)).clamp(-1, 1)
        parameter.mul_(1 - context.lr * context.weight_decay).sub_(context.lr * direction)
