"""Parts of the slot `average`: averages over the weights of past steps, which are evaluated and kept instead of the
latest weights."""

import torch
from torch import Tensor

from headtohead.errors import RequestError
from headtohead.nn.parts.base import Component
from headtohead.nn.parts.context import TrainingContext
from headtohead.nn.parts.registry import register_part

TensorState = dict[str, Tensor]
"""Tensors that belong to one parameter, by name. They are part of checkpoints."""


class Average(Component):
    """Base class of weight averages. Both methods are called for each parameter separately."""

    def update(self, weight: Tensor, state: TensorState, context: TrainingContext) -> None:
        """Take the weight after an optimizer step into account. `state` is empty at the first step."""
        raise NotImplementedError

    def compute(self, weight: Tensor, state: TensorState, context: TrainingContext) -> Tensor:
        """Return the averaged weight, with the shape of `weight`."""
        raise NotImplementedError


@register_part("average", "ema")
class ExponentialAverage(Average):
    """Exponential moving average, in which each step has the weight 1 - `decay`.

    The decay rises from 0 to `decay`, so that early weights are forgotten soon, as in torch_ema and TensorFlow."""

    def __init__(self, *, decay: float = 0.999) -> None:
        if not 0 <= decay < 1:
            raise RequestError(f"ema: decay must be in [0, 1), got {decay}")
        self.decay = decay

    def update(self, weight: Tensor, state: TensorState, context: TrainingContext) -> None:
        decay = min(self.decay, (1 + context.step) / (10 + context.step))
        state.setdefault("mean", weight.clone()).lerp_(weight, 1 - decay)

    def compute(self, weight: Tensor, state: TensorState, context: TrainingContext) -> Tensor:
        return state.get("mean", weight)


@register_part("average", "lawa")
class LatestAverage(Average):
    """Mean of the latest `count` weights, taken every `every` steps. After Kaddour 2022, arXiv:2209.14981."""

    def __init__(self, *, every: int = 100, count: int = 6) -> None:
        if every < 1 or count < 1:
            raise RequestError(f"lawa: every and count must be at least 1, got {every} and {count}")
        self.every, self.count = every, count

    def update(self, weight: Tensor, state: TensorState, context: TrainingContext) -> None:
        if (context.step + 1) % self.every == 0:
            latest_weights = weight[None] if "latest" not in state else torch.cat((state["latest"], weight[None]))
            state["latest"] = latest_weights[-self.count :].clone()

    def compute(self, weight: Tensor, state: TensorState, context: TrainingContext) -> Tensor:
        return state["latest"].mean(0) if "latest" in state else weight
