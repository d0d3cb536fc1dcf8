"""Schedule-free AdamW. After Defazio et al. 2024, arXiv:2405.15682."""

import torch

from headtohead.parts import Optimizer, register_part


@register_part("optimizer", "schedule-free")
class ScheduleFreeAdamW(Optimizer):
    """AdamW steps of `z`; the mean of all `z` is evaluated, and gradients are computed between the two."""

    def __init__(self, parameters, *, lr: float = 2.5e-3, weight_decay: float = 0.0, beta: float = 0.9):
        super().__init__(parameters, lr=lr, weight_decay=weight_decay)
        self.beta = beta

    def update(self, parameter, gradient, state, context):
        z, mean = (state.setdefault(key, parameter.clone()) for key in ("z", "mean"))
        square = state.setdefault("square", torch.zeros_like(parameter))
        square.lerp_(gradient.square(), 0.001)
        update = gradient / ((square / (1 - 0.999 ** (context.step + 1))).sqrt() + 1e-8)
        z.sub_(context.lr * (update + context.weight_decay * parameter))
        total = state.setdefault("total", parameter.new_zeros(())).add_(context.lr**2)
        mean.lerp_(z, context.lr**2 / total.clamp_min(1e-30).item())
        parameter.copy_(z.lerp(mean, self.beta))

    def get_evaluation_weight(self, parameter, state):
        return state.get("mean", parameter)
