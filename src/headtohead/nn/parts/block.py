"""Blocks: the order of attention, feed-forward layer, norms and residual additions in a layer.

A block contains the norms and the dropout. It receives attention and feed-forward layer as functions of the hidden
states."""

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor, nn

from headtohead.nn.parts.base import ModelSizes, Part
from headtohead.nn.parts.context import ForwardContext
from headtohead.nn.parts.norm import NoNorm, Norm
from headtohead.nn.parts.registry import register_part

HiddenStates = Float[Tensor, "batch length width"]
Sublayer = Callable[[Tensor], Tensor]
"""Attention or feed-forward layer, as a function of hidden states."""


class Block(Part):
    """Base class of blocks. `build_norm` returns a new norm; `self.drop` is the dropout of residual branches.

    To change one line of the default block, inherit from `TwoNormBlock`, which also has its norms.
    """

    def __init__(self, sizes: ModelSizes, build_norm: Callable[[], Norm], has_feedforward: bool) -> None:
        super().__init__(sizes)
        self.drop = nn.Dropout(sizes.dropout)

    def forward(
        self, x: HiddenStates, attend: Sublayer, feedforward: Sublayer | None, context: ForwardContext
    ) -> HiddenStates:
        """Return the residual stream after this layer. `feedforward` is None in attention-only models."""
        raise NotImplementedError


class TwoNormBlock(Block):
    """Base class of blocks with one norm per residual branch: `attention_norm` and `feed_norm`, as in block `pre`.

    Tensors of the same name start equal, so the norms of a subclass start equal to those of the baseline.
    """

    def __init__(self, sizes: ModelSizes, build_norm: Callable[[], Norm], has_feedforward: bool) -> None:
        super().__init__(sizes, build_norm, has_feedforward)
        self.attention_norm = build_norm()
        self.feed_norm = build_norm() if has_feedforward else NoNorm(sizes)


@register_part("block", "pre")
class PreNormBlock(TwoNormBlock):
    """Norm, sublayer, residual addition. After Xiong et al. 2020, arXiv:2002.04745."""

    is_tokenwise = True

    def __init__(
        self,
        sizes: ModelSizes,
        build_norm: Callable[[], Norm],
        has_feedforward: bool,
        *,
        attention_norm: bool = True,
    ) -> None:
        """Without `attention_norm`, attention receives the residual stream itself, as in the first layer of ModernBERT,
        which follows the norm of the embeddings (Warner et al. 2024, arXiv:2412.13663).
        """
        super().__init__(sizes, build_norm, has_feedforward)
        if not attention_norm:
            self.attention_norm = NoNorm(sizes)

    def forward(
        self, x: HiddenStates, attend: Sublayer, feedforward: Sublayer | None, context: ForwardContext
    ) -> HiddenStates:
        x = x + self.drop(attend(self.attention_norm(x, context)))
        return x if feedforward is None else x + self.drop(feedforward(self.feed_norm(x, context)))


@register_part("block", "post")
class PostNormBlock(TwoNormBlock):
    """Sublayer, residual addition, norm: the original transformer. After Vaswani et al. 2017, arXiv:1706.03762."""

    is_tokenwise = True

    def forward(
        self, x: HiddenStates, attend: Sublayer, feedforward: Sublayer | None, context: ForwardContext
    ) -> HiddenStates:
        x = self.attention_norm(x + self.drop(attend(x)), context)
        return x if feedforward is None else self.feed_norm(x + self.drop(feedforward(x)), context)


@register_part("block", "reordered")
class ReorderedNormBlock(TwoNormBlock):
    """Sublayer, norm, residual addition. After Liu et al. 2021, arXiv:2111.09883; in OLMo 2, arXiv:2501.00656."""

    is_tokenwise = True

    def forward(
        self, x: HiddenStates, attend: Sublayer, feedforward: Sublayer | None, context: ForwardContext
    ) -> HiddenStates:
        x = x + self.drop(self.attention_norm(attend(x), context))
        return x if feedforward is None else x + self.drop(self.feed_norm(feedforward(x), context))


@register_part("block", "sandwich")
class SandwichNormBlock(TwoNormBlock):
    """Norm before and after each sublayer. After Ding et al. 2021, arXiv:2105.13290; in Gemma 2, arXiv:2408.00118."""

    is_tokenwise = True

    def __init__(self, sizes: ModelSizes, build_norm: Callable[[], Norm], has_feedforward: bool) -> None:
        super().__init__(sizes, build_norm, has_feedforward)
        self.attention_output_norm = build_norm()
        self.feed_output_norm = build_norm() if has_feedforward else NoNorm(sizes)

    def forward(
        self, x: HiddenStates, attend: Sublayer, feedforward: Sublayer | None, context: ForwardContext
    ) -> HiddenStates:
        """Normalize before and after attention and feed-forward layer, then add the residual."""
        attention_output = attend(self.attention_norm(x, context))
        x = x + self.drop(self.attention_output_norm(attention_output, context))
        if feedforward is None:
            return x
        feedforward_output = feedforward(self.feed_norm(x, context))
        branch: Tensor = self.drop(self.feed_output_norm(feedforward_output, context))
        return x + branch


@register_part("block", "parallel")
class ParallelBlock(Block):
    """Attention and feed-forward in parallel, with one norm. After Wang and Komatsuzaki 2021 (GPT-J)."""

    is_tokenwise = True

    def __init__(
        self,
        sizes: ModelSizes,
        build_norm: Callable[[], Norm],
        has_feedforward: bool,
        *,
        separate_norms: bool = False,
    ) -> None:
        """With `separate_norms`, the feed-forward layer has its own norm, as in GPT-NeoX (Black et al. 2022,
        arXiv:2204.06745).
        """
        super().__init__(sizes, build_norm, has_feedforward)
        self.norm = build_norm()
        self.feed_norm = build_norm() if separate_norms and has_feedforward else None

    def forward(
        self, x: HiddenStates, attend: Sublayer, feedforward: Sublayer | None, context: ForwardContext
    ) -> HiddenStates:
        """Add attention and feed-forward output, both computed from the same input, to the residual."""
        normed: Tensor = self.norm(x, context)
        branches = attend(normed)
        if feedforward is not None:
            branches = branches + feedforward(normed if self.feed_norm is None else self.feed_norm(x, context))
        dropped: Tensor = self.drop(branches)
        return x + dropped
