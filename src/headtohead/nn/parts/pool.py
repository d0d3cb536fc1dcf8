"""Pools: reduce an encoder's hidden states to one vector per text, ignoring padding."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from headtohead.nn.parts.base import ModelSizes, Part
from headtohead.nn.parts.registry import register_part

HiddenStates = Float[Tensor, "batch length width"]
AttentionMask = Bool[Tensor, "batch length"]
PooledStates = Float[Tensor, "batch width"]


class Pool(Part):
    """Base class of pools."""

    def forward(self, x: HiddenStates, attention_mask: AttentionMask) -> PooledStates:
        raise NotImplementedError


@register_part("pool", "mean")
class MeanPool(Pool):
    """Mean over positions."""

    def forward(self, x: HiddenStates, attention_mask: AttentionMask) -> PooledStates:
        weight = attention_mask.to(x.dtype)[:, :, None]
        return (x * weight).sum(1) / weight.sum(1).clamp_min(1)


@register_part("pool", "first")
class FirstTokenPool(Pool):
    """First position that is not padding."""

    def forward(self, x: HiddenStates, attention_mask: AttentionMask) -> PooledStates:
        first = attention_mask.to(torch.int8).argmax(1)
        return x[torch.arange(len(x), device=x.device), first]


@register_part("pool", "max")
class MaxPool(Pool):
    """Maximum of each feature over positions."""

    def forward(self, x: HiddenStates, attention_mask: AttentionMask) -> PooledStates:
        lowest = torch.finfo(x.dtype).min
        return x.masked_fill(~attention_mask[:, :, None], lowest).amax(1)


@register_part("pool", "attention")
class AttentionPool(Pool):
    """Weighted mean over positions, with weights from a learned query."""

    def __init__(self, sizes: ModelSizes) -> None:
        super().__init__(sizes)
        # No bias: softmax is invariant to it.
        self.score = nn.Linear(sizes.width, 1, bias=False)

    def forward(self, x: HiddenStates, attention_mask: AttentionMask) -> PooledStates:
        score: Tensor = self.score(x)[:, :, 0].masked_fill(~attention_mask, torch.finfo(x.dtype).min)
        return (score.softmax(1)[:, :, None] * x).sum(1)
