"""Attention patterns: which key positions a query position may attend to.

Masks are computed from position ids, not from indices, so that padding, caching and blocking need no special case."""

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from headtohead.errors import ModelError
from headtohead.nn.parts.base import Invariant, ModelSizes, Part, declares_capability
from headtohead.nn.parts.context import ForwardContext
from headtohead.nn.parts.registry import register_part

WindowSize = tuple[int | None, int | None]
"""Largest distance (behind, ahead) at which a query may attend to a key. None means any distance."""
QueryPositions = Int[Tensor, "*b query"]
KeyPositions = Int[Tensor, "*b key"]
PatternMask = Bool[Tensor, "*b query key"]


class Pattern(Part):
    """Base class of attention patterns.

    The class attributes and `window_size` let attention skip work. They hold only for the class that declares them
    (`declares_capability`). A subclass that overrides `compute_mask` gets the full mask until it declares them, too."""

    is_relative: bool = False
    """Declares that the mask depends only on the distance between query and key. Blocks then share one mask."""
    is_plain_causal: bool = False
    """Declares that the mask is the lower triangle: PyTorch's `is_causal=True`, without a mask tensor."""

    @property
    def window_size(self) -> WindowSize:
        """Largest distance (behind, ahead) at which the mask may be True."""
        return (None, None)

    def compute_mask(
        self, query_positions: QueryPositions, key_positions: KeyPositions, context: ForwardContext
    ) -> PatternMask:
        """Return the mask of this attention pattern, (..., query, key): True where a query may attend to a key.

        The positions are those of the whole sequence, or of one block of it. Layers share the mask, so it must not
        depend on the layer.
        """
        raise NotImplementedError

    @property
    def violates(self) -> frozenset[Invariant]:
        ahead = self.window_size[1]
        return frozenset({"causality", "kv-cache"}) if self.sizes.is_causal and ahead != 0 else frozenset()

    def __and__(self, other: "Pattern") -> "Pattern":
        """Return the pattern that allows what both patterns allow."""
        return IntersectionPattern(self, other)


def compute_distances(query_positions: Tensor, key_positions: Tensor) -> Tensor:
    """Return query position minus key position, (*b, query, key)."""
    return query_positions[..., :, None] - key_positions[..., None, :]


@register_part("pattern", "full")
class FullPattern(Pattern):
    """Every position attends to all positions."""

    is_relative = True

    def compute_mask(
        self, query_positions: QueryPositions, key_positions: KeyPositions, context: ForwardContext
    ) -> PatternMask:
        return torch.ones_like(compute_distances(query_positions, key_positions), dtype=torch.bool)


@register_part("pattern", "causal")
class CausalPattern(Pattern):
    """A position attends to itself and to earlier positions."""

    is_relative = True
    is_plain_causal = True

    @property
    def window_size(self) -> WindowSize:
        return (None, 0)

    def compute_mask(
        self, query_positions: QueryPositions, key_positions: KeyPositions, context: ForwardContext
    ) -> PatternMask:
        return compute_distances(query_positions, key_positions) >= 0


@register_part("pattern", "window")
class SlidingWindowPattern(Pattern):
    """A position attends to the `size` nearest positions, itself included; an encoder looks both ways."""

    is_relative = True

    def __init__(self, sizes: ModelSizes, *, size: int) -> None:
        super().__init__(sizes)
        if size < 1:
            raise ModelError(f"window: size counts the token itself and must be at least 1, got {size}")
        self.size = size

    @property
    def window_size(self) -> WindowSize:
        return (self.size - 1, 0 if self.sizes.is_causal else self.size - 1)

    def compute_mask(
        self, query_positions: QueryPositions, key_positions: KeyPositions, context: ForwardContext
    ) -> PatternMask:
        """Allow the `size` nearest positions of a query, in an encoder on both sides."""
        distance = compute_distances(query_positions, key_positions)
        ahead = self.window_size[1]
        assert ahead is not None
        return (distance < self.size) & (distance >= -ahead)


class IntersectionPattern(Pattern):
    """Positions that two patterns both allow."""

    def __init__(self, first: Pattern, second: Pattern) -> None:
        super().__init__(first.sizes)
        self.first, self.second = first, second

    @property
    def is_relative(self) -> bool:  # type: ignore[override]
        return declares_capability(self.first, "is_relative") and declares_capability(self.second, "is_relative")

    @property
    def window_size(self) -> WindowSize:
        """The largest distances that both patterns may allow."""
        distance_pairs = zip(self.first.window_size, self.second.window_size, strict=True)
        behind, ahead = (
            min((distance for distance in pair if distance is not None), default=None) for pair in distance_pairs
        )
        return (behind, ahead)

    def compute_mask(
        self, query_positions: QueryPositions, key_positions: KeyPositions, context: ForwardContext
    ) -> PatternMask:
        """Allow the keys that both patterns allow."""
        first_mask, second_mask = (
            part.compute_mask(query_positions, key_positions, context) for part in (self.first, self.second)
        )
        return first_mask & second_mask
