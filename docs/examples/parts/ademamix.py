"""AdEMAMix: Adam with a second, slow momentum. After Pagliardini et al. 2024, arXiv:2409.03137."""

import math

import torch

from headtohead.parts import Optimizer, register_part


@register_part("optimizer", "ademamix")
class AdEMAMix(Optimizer):
    """Adam whose momentum is added to `alpha` times a slow one; alpha and the slow decay grow during training."""

    def __init__(
        self, parameters, *, lr: float = 1e-3, weight_decay: float = 0.01, alpha: float = 5.0, slow: float = 0.9999
    ):
        super().__init__(parameters, lr=lr, weight_decay=weight_decay)
        self.alpha, self.slow = alpha, slow

    def update(self, parameter, gradient, state, context):
        fast_mean, slow_mean, square = (state.setdefault(key, torch.zeros_like(parameter)) for key in ("m1", "m2", "v"))
        step, share = context.step + 1, min(1.0, (context.step + 1) / context.total_steps)
        log_fast, log_slow = math.log(0.9), math.log(self.slow)
        decay = min(self.slow, math.exp(log_fast * log_slow / ((1 - share) * log_slow + share * log_fast)))
        fast_mean.lerp_(gradient, 0.1)
        slow_mean.lerp_(gradient, 1 - decay)
        square.lerp_(gradient.square(), 0.001)
        update = fast_mean / (1 - 0.9**step) + self.alpha * share * slow_mean
        update = update / ((square / (1 - 0.999**step)).sqrt() + 1e-8)
        parameter.sub_(context.lr * (update + context.weight_decay * parameter))
