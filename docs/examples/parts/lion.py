"""Lion. After Chen et al. 2023, arXiv:2302.06675."""

import torch

from headtohead.parts import Optimizer, register_part


@register_part("optimizer", "lion")
class Lion(Optimizer):
    """The sign of an interpolation between momentum and gradient."""

    def __init__(
        self, parameters, *, lr: float = 1e-4, betas: tuple[float, ...] = (0.9, 0.99), weight_decay: float = 0.1
    ):
        super().__init__(parameters, lr=lr, weight_decay=weight_decay)
        self.betas = betas

    def update(self, parameter, gradient, state, context):
        momentum = state.setdefault("momentum", torch.zeros_like(parameter))
        direction = momentum.lerp(gradient, 1 - self.betas[0]).sign()
        parameter.mul_(1 - context.lr * context.weight_decay).sub_(context.lr * direction)
        momentum.lerp_(gradient, 1 - self.betas[1])
