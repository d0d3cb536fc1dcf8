"""Pools: reduce the hidden states of a classifier to one vector per sequence, ignoring padding."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headtohead.nn.parts.base import ModelSizes, Part
from headtohead.nn.parts.context import ForwardContext
from headtohead.nn.parts.registry import register_part

HiddenStates = Float[Tensor, "batch length width"]
PooledStates = Float[Tensor, "batch width"]


class Pool(Part):
    """Base class of pools: (batch, length, width) to (batch, width)."""

    ignores_padding = False
    """True if the result does not depend on hidden states at padding, which is then not computed."""

    def forward(self, x: HiddenStates, context: ForwardContext) -> PooledStates:
        raise NotImplementedError


@register_part("pool", "mean")
class MeanPool(Pool):
    """Mean over positions."""

    ignores_padding = True

    def forward(self, x: HiddenStates, context: ForwardContext) -> PooledStates:
        weight = context.get_attention_mask().to(x.dtype)[:, :, None]
        return (x * weight).sum(1) / weight.sum(1).clamp_min(1)


@register_part("pool", "first")
class FirstTokenPool(Pool):
    """First position that is not padding."""

    ignores_padding = True

    def forward(self, x: HiddenStates, context: ForwardContext) -> PooledStates:
        first_index = context.get_attention_mask().to(torch.int8).argmax(1)
        return x[torch.arange(x.shape[0], device=x.device), first_index]


@register_part("pool", "max")
class MaxPool(Pool):
    """Maximum of each feature over positions."""

    ignores_padding = True

    def forward(self, x: HiddenStates, context: ForwardContext) -> PooledStates:
        lowest_value = torch.finfo(x.dtype).min
        return x.masked_fill(~context.get_attention_mask()[:, :, None], lowest_value).amax(1)


@register_part("pool", "attention")
class AttentionPool(Pool):
    """Weighted mean over positions, with weights from a learned query."""

    ignores_padding = True

    def __init__(self, sizes: ModelSizes) -> None:
        super().__init__(sizes)
        # No bias: softmax is invariant to it.
        self.score = nn.Linear(sizes.width, 1, bias=False)

    def forward(self, x: HiddenStates, context: ForwardContext) -> PooledStates:
        is_padding = ~context.get_attention_mask()
        scores: Tensor = self.score(x)[:, :, 0].masked_fill(is_padding, torch.finfo(x.dtype).min)
        return (scores.softmax(1)[:, :, None] * x).sum(1)
