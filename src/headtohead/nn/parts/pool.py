"""Pool: how an encoder's positions become one vector for the classifier. Padding is never looked at."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from headtohead.nn.parts.base import ModelSizes, Part
from headtohead.nn.parts.registry import register_part

HiddenStates = Float[Tensor, "batch length width"]
AttentionMask = Bool[Tensor, "batch length"]
PooledStates = Float[Tensor, "batch width"]


class Pool(Part):
    """The contract."""

    def forward(self, x: HiddenStates, attention_mask: AttentionMask) -> PooledStates:
        raise NotImplementedError


@register_part("pool", "mean")
class MeanPool(Pool):
    """The mean over the positions that are not padding."""

    def forward(self, x: HiddenStates, attention_mask: AttentionMask) -> PooledStates:
        weight = attention_mask.to(x.dtype)[:, :, None]
        return (x * weight).sum(1) / weight.sum(1).clamp_min(1)


@register_part("pool", "first")
class FirstTokenPool(Pool):
    """The first position that is not padding."""

    def forward(self, x: HiddenStates, attention_mask: AttentionMask) -> PooledStates:
        first = attention_mask.to(torch.int8).argmax(1)
        return x[torch.arange(len(x), device=x.device), first]


@register_part("pool", "max")
class MaxPool(Pool):
    """The largest value of each feature over the positions that are not padding."""

    def forward(self, x: HiddenStates, attention_mask: AttentionMask) -> PooledStates:
        lowest = torch.finfo(x.dtype).min
        return x.masked_fill(~attention_mask[:, :, None], lowest).amax(1)


@register_part("pool", "attention")
class AttentionPool(Pool):
    """A learned query chooses what to look at."""

    def __init__(self, sizes: ModelSizes) -> None:
        super().__init__(sizes)
        # No bias: the softmax would swallow it.
        self.score = nn.Linear(sizes.width, 1, bias=False)

    def forward(self, x: HiddenStates, attention_mask: AttentionMask) -> PooledStates:
        score: Tensor = self.score(x)[:, :, 0].masked_fill(~attention_mask, torch.finfo(x.dtype).min)
        return (score.softmax(1)[:, :, None] * x).sum(1)
