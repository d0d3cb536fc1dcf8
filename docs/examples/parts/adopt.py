"""ADOPT: Adam that divides by the mean square of earlier gradients. After Taniguchi et al. 2024, arXiv:2411.02853."""

import torch

from headtohead.parts import Optimizer, register_part


@register_part("optimizer", "adopt")
class ADOPT(Optimizer):
    """The gradient is divided by the root mean square of the gradients before it and clipped, then averaged."""

    def __init__(self, parameters, *, lr: float = 1e-3, weight_decay: float = 0.0, beta: float = 0.9999):
        super().__init__(parameters, lr=lr, weight_decay=weight_decay)
        self.beta = beta

    def update(self, parameter, gradient, state, context):
        if "square" not in state:
            state["square"], state["mean"] = gradient.square(), torch.zeros_like(parameter)
            return
        limit = context.step**0.25
        normalized = (gradient / state["square"].sqrt().clamp_min(1e-6)).clamp(-limit, limit)
        state["mean"].lerp_(normalized, 0.1)
        parameter.sub_(context.lr * (state["mean"] + context.weight_decay * parameter))
        state["square"].lerp_(gradient.square(), 1 - self.beta)
