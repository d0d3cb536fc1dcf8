"""Block: in which order a layer attends, feeds forward, normalises and adds.

A block owns the norms and the dropout; attending and feeding are handed to it as functions of the stream.
"""

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor, nn

from headtohead.nn.parts.base import ModelSizes, Part
from headtohead.nn.parts.registry import register_part

HiddenStates = Float[Tensor, "batch length width"]
Sublayer = Callable[[Tensor], Tensor]


class Block(Part):
    """The contract. `norm` makes a norm; `feeds` says whether there is a feed-forward at all."""

    def __init__(self, sizes: ModelSizes, build_norm: Callable[[], nn.Module], has_feed_forward: bool) -> None:
        super().__init__(sizes)
        self.drop = nn.Dropout(sizes.dropout)

    def forward(self, x: HiddenStates, attend: Sublayer, feed_forward: Sublayer | None) -> HiddenStates:
        raise NotImplementedError


class TwoNormBlock(Block):
    """What pre and post share: a norm for each branch."""

    def __init__(self, sizes: ModelSizes, build_norm: Callable[[], nn.Module], has_feed_forward: bool) -> None:
        super().__init__(sizes, build_norm, has_feed_forward)
        self.attention_norm = build_norm()
        self.feed_norm = build_norm() if has_feed_forward else nn.Identity()


@register_part("block", "pre")
class PreNormBlock(TwoNormBlock):
    """Normalise, compute, add. After Xiong et al. 2020, arXiv:2002.04745."""

    def forward(self, x: HiddenStates, attend: Sublayer, feed_forward: Sublayer | None) -> HiddenStates:
        x = x + self.drop(attend(self.attention_norm(x)))
        return x if feed_forward is None else x + self.drop(feed_forward(self.feed_norm(x)))


@register_part("block", "post")
class PostNormBlock(TwoNormBlock):
    """Compute, add, normalise, as in the first transformer. After Vaswani et al. 2017, arXiv:1706.03762."""

    def forward(self, x: HiddenStates, attend: Sublayer, feed_forward: Sublayer | None) -> HiddenStates:
        x = self.attention_norm(x + self.drop(attend(x)))
        return x if feed_forward is None else self.feed_norm(x + self.drop(feed_forward(x)))


@register_part("block", "parallel")
class ParallelBlock(Block):
    """Attention and feed-forward side by side from one norm. After Wang and Komatsuzaki 2021 (GPT-J)."""

    def __init__(self, sizes: ModelSizes, build_norm: Callable[[], nn.Module], has_feed_forward: bool) -> None:
        super().__init__(sizes, build_norm, has_feed_forward)
        self.norm = build_norm()

    def forward(self, x: HiddenStates, attend: Sublayer, feed_forward: Sublayer | None) -> HiddenStates:
        seen: Tensor = self.norm(x)
        both: Tensor = self.drop(attend(seen) if feed_forward is None else attend(seen) + feed_forward(seen))
        return x + both
