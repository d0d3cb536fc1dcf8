"""Warmup, constant learning rate, then cooldown. After Hägele et al. 2024, arXiv:2405.18392."""

import math

from headtohead.parts import Schedule, register_part


@register_part("schedule", "wsd")
class WarmupStableDecay(Schedule):
    """Constant after a warmup, then 1 - sqrt over the last part of the steps."""

    def __init__(self, *, warmup: int = 0, cooldown: float = 0.2):
        self.warmup, self.cooldown = warmup, cooldown

    def get_factor(self, context):
        decay = max(0.0, context.progress - (1 - self.cooldown)) / self.cooldown
        return min(1.0, (context.step + 1) / (self.warmup + 1)) * (1 - math.sqrt(min(1.0, decay)))
