"""Parts of the slot `schedule`: learning-rate schedules, which multiply the learning rate by a factor at each step."""

import math

from headtohead.nn.parts.base import Component
from headtohead.nn.parts.context import TrainingContext
from headtohead.nn.parts.registry import register_part


class Schedule(Component):
    """Base class of learning-rate schedules."""

    def get_factor(self, context: TrainingContext) -> float:
        """Return the factor of the learning rate at this step, which is 0 or more."""
        raise NotImplementedError


class WarmupSchedule(Schedule):
    """Base class of schedules that begin with `warmup` steps in which the learning rate rises linearly."""

    def __init__(self, *, warmup: int = 0) -> None:
        self.warmup = warmup

    def get_warmup_factor(self, context: TrainingContext) -> float:
        """Return the factor of the linear warmup at this step; 1 after the warmup."""
        return min(1.0, (context.step + 1) / (self.warmup + 1))

    def get_decay_progress(self, context: TrainingContext) -> float:
        """Return the completed fraction of the steps after the warmup."""
        return min(1.0, max(0, context.step - self.warmup) / max(1, context.total_steps - self.warmup))


@register_part("schedule", "constant")
class ConstantSchedule(WarmupSchedule):
    """Constant after a linear warmup."""

    def get_factor(self, context: TrainingContext) -> float:
        return self.get_warmup_factor(context)


@register_part("schedule", "cosine")
class CosineSchedule(WarmupSchedule):
    """Decay along half a cosine to the fraction `final`, after a linear warmup."""

    def __init__(self, *, warmup: int = 0, final: float = 0.0) -> None:
        super().__init__(warmup=warmup)
        self.final = final

    def get_factor(self, context: TrainingContext) -> float:
        decay_factor = 0.5 * (1 + math.cos(math.pi * self.get_decay_progress(context)))
        return self.get_warmup_factor(context) * (self.final + (1 - self.final) * decay_factor)


@register_part("schedule", "linear")
class LinearSchedule(WarmupSchedule):
    """Decay linearly to the fraction `final`, after a linear warmup."""

    def __init__(self, *, warmup: int = 0, final: float = 0.0) -> None:
        super().__init__(warmup=warmup)
        self.final = final

    def get_factor(self, context: TrainingContext) -> float:
        decay_factor = 1 - self.get_decay_progress(context)
        return self.get_warmup_factor(context) * (self.final + (1 - self.final) * decay_factor)
