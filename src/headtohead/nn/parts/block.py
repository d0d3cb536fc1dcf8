"""Blocks: the order of attention, feed-forward, norms and residual additions in a layer.

A block owns the norms and the dropout. It receives attention and feed-forward as functions of the hidden states."""

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor, nn

from headtohead.nn.parts.base import ModelSizes, Part
from headtohead.nn.parts.registry import register_part

HiddenStates = Float[Tensor, "batch length width"]
Sublayer = Callable[[Tensor], Tensor]


class Block(Part):
    """Base class of blocks. `build_norm` returns a new norm."""

    def __init__(self, sizes: ModelSizes, build_norm: Callable[[], nn.Module], has_feed_forward: bool) -> None:
        super().__init__(sizes)
        self.drop = nn.Dropout(sizes.dropout)

    def forward(self, x: HiddenStates, attend: Sublayer, feed_forward: Sublayer | None) -> HiddenStates:
        raise NotImplementedError


class TwoNormBlock(Block):
    """Base class of blocks with one norm per residual branch."""

    def __init__(self, sizes: ModelSizes, build_norm: Callable[[], nn.Module], has_feed_forward: bool) -> None:
        super().__init__(sizes, build_norm, has_feed_forward)
        self.attention_norm = build_norm()
        self.feed_norm = build_norm() if has_feed_forward else nn.Identity()


@register_part("block", "pre")
class PreNormBlock(TwoNormBlock):
    """Norm, sublayer, residual addition. After Xiong et al. 2020, arXiv:2002.04745."""

    def forward(self, x: HiddenStates, attend: Sublayer, feed_forward: Sublayer | None) -> HiddenStates:
        x = x + self.drop(attend(self.attention_norm(x)))
        return x if feed_forward is None else x + self.drop(feed_forward(self.feed_norm(x)))


@register_part("block", "post")
class PostNormBlock(TwoNormBlock):
    """Sublayer, residual addition, norm: the original transformer. After Vaswani et al. 2017, arXiv:1706.03762."""

    def forward(self, x: HiddenStates, attend: Sublayer, feed_forward: Sublayer | None) -> HiddenStates:
        x = self.attention_norm(x + self.drop(attend(x)))
        return x if feed_forward is None else self.feed_norm(x + self.drop(feed_forward(x)))


@register_part("block", "parallel")
class ParallelBlock(Block):
    """Attention and feed-forward in parallel, with one norm. After Wang and Komatsuzaki 2021 (GPT-J)."""

    def __init__(self, sizes: ModelSizes, build_norm: Callable[[], nn.Module], has_feed_forward: bool) -> None:
        super().__init__(sizes, build_norm, has_feed_forward)
        self.norm = build_norm()

    def forward(self, x: HiddenStates, attend: Sublayer, feed_forward: Sublayer | None) -> HiddenStates:
        normed: Tensor = self.norm(x)
        out = attend(normed) if feed_forward is None else attend(normed) + feed_forward(normed)
        dropped: Tensor = self.drop(out)
        return x + dropped
