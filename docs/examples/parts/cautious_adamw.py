"""Cautious AdamW. After Liang et al. 2024, arXiv:2411.16085; cautious decay: Chen et al. 2025, arXiv:2510.12402."""

import torch

from headtohead.parts import Optimizer, register_part


@register_part("optimizer", "cautious-adamw")
class CautiousAdamW(Optimizer):
    """AdamW that skips components whose update and gradient differ in sign; with `cautious_decay`, it does not decay
    weights that the update moves away from 0."""

    def __init__(self, parameters, *, lr: float = 1e-3, weight_decay: float = 0.01, cautious_decay: bool = False):
        super().__init__(parameters, lr=lr, weight_decay=weight_decay)
        self.cautious_decay = cautious_decay

    def update(self, parameter, gradient, state, context):
        mean, square = (state.setdefault(key, torch.zeros_like(parameter)) for key in ("mean", "square"))
        mean.lerp_(gradient, 0.1)
        square.lerp_(gradient.square(), 0.001)
        step = context.step + 1
        update = mean / (1 - 0.9**step) / ((square / (1 - 0.999**step)).sqrt() + 1e-8)
        agrees = (update * gradient > 0).to(update.dtype)
        decays = (update * parameter >= 0).to(update.dtype) if self.cautious_decay else 1.0
        update = update * agrees / agrees.mean().clamp_min(1e-3)
        parameter.sub_(context.lr * (update + context.weight_decay * decays * parameter))
