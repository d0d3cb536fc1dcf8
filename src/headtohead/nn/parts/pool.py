"""Pool: how an encoder's positions become one vector for the classifier. Padding is never looked at."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from headtohead.nn.parts.base import Part, Sizes
from headtohead.nn.parts.registry import part

Stream = Float[Tensor, "batch length width"]
Valid = Bool[Tensor, "batch length"]
Pooled = Float[Tensor, "batch width"]


class Pool(Part):
    """The contract."""

    def forward(self, x: Stream, valid: Valid) -> Pooled:
        raise NotImplementedError


@part("pool", "mean")
class Mean(Pool):
    """The mean over the positions that are not padding."""

    def forward(self, x: Stream, valid: Valid) -> Pooled:
        weight = valid.to(x.dtype)[:, :, None]
        return (x * weight).sum(1) / weight.sum(1).clamp_min(1)


@part("pool", "first")
class First(Pool):
    """The first position that is not padding."""

    def forward(self, x: Stream, valid: Valid) -> Pooled:
        first = valid.to(torch.int8).argmax(1)
        return x[torch.arange(len(x), device=x.device), first]


@part("pool", "max")
class Max(Pool):
    """The largest value of each feature over the positions that are not padding."""

    def forward(self, x: Stream, valid: Valid) -> Pooled:
        lowest = torch.finfo(x.dtype).min
        return x.masked_fill(~valid[:, :, None], lowest).amax(1)


@part("pool", "attention")
class Attention(Pool):
    """A learned query chooses what to look at."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        # No bias: the softmax would swallow it.
        self.score = nn.Linear(sizes.width, 1, bias=False)

    def forward(self, x: Stream, valid: Valid) -> Pooled:
        score: Tensor = self.score(x)[:, :, 0].masked_fill(~valid, torch.finfo(x.dtype).min)
        return (score.softmax(1)[:, :, None] * x).sum(1)
