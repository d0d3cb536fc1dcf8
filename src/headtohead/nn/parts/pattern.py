"""Pattern: who may look at whom, computed from positions and not from indices."""

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from headtohead.errors import ModelError
from headtohead.nn.parts.base import Invariant, ModelSizes, Part
from headtohead.nn.parts.registry import register_part

WindowSize = tuple[int | None, int | None]
"""how far (behind, ahead) a query may look; None: any distance"""


class Pattern(Part):
    """The contract."""

    relative: bool = False
    """does it ask for nothing but the distance of query and key? The fast road then asks it once for all places"""

    @property
    def reach(self) -> WindowSize:
        """Tells the fast road how far it must look."""
        return (None, None)

    def allows(
        self, query_positions: Int[Tensor, "*b query"], key_positions: Int[Tensor, "*b key"]
    ) -> Bool[Tensor, "*b query key"]:
        """True where the query may look at the key."""
        raise NotImplementedError

    @property
    def violates(self) -> frozenset[Invariant]:
        ahead = self.reach[1]
        return frozenset({"causality", "kv-cache"}) if self.sizes.is_causal and ahead != 0 else frozenset()

    def __and__(self, other: "Pattern") -> "Pattern":
        return IntersectionPattern(self, other)


def compute_distances(query_positions: Tensor, key_positions: Tensor) -> Tensor:
    """How far the key lies behind the query."""
    return query_positions[..., :, None] - key_positions[..., None, :]


@register_part("pattern", "full")
class FullPattern(Pattern):
    """Every position looks at every other."""

    relative = True

    def allows(
        self, query_positions: Int[Tensor, "*b query"], key_positions: Int[Tensor, "*b key"]
    ) -> Bool[Tensor, "*b query key"]:
        return torch.ones_like(compute_distances(query_positions, key_positions), dtype=torch.bool)


@register_part("pattern", "causal")
class CausalPattern(Pattern):
    """A position looks at itself and at what came before."""

    relative = True

    @property
    def reach(self) -> WindowSize:
        return (None, 0)

    def allows(
        self, query_positions: Int[Tensor, "*b query"], key_positions: Int[Tensor, "*b key"]
    ) -> Bool[Tensor, "*b query key"]:
        return compute_distances(query_positions, key_positions) >= 0


@register_part("pattern", "window")
class SlidingWindowPattern(Pattern):
    """A position looks at the `size` nearest: itself and those behind it; in an encoder on both sides."""

    relative = True

    def __init__(self, sizes: ModelSizes, *, size: int) -> None:
        super().__init__(sizes)
        if size < 1:
            raise ModelError(f"window: size counts the token itself and is at least 1, not {size}")
        self.size = size

    @property
    def reach(self) -> WindowSize:
        return (self.size - 1, 0 if self.sizes.is_causal else self.size - 1)

    def allows(
        self, query_positions: Int[Tensor, "*b query"], key_positions: Int[Tensor, "*b key"]
    ) -> Bool[Tensor, "*b query key"]:
        distance = compute_distances(query_positions, key_positions)
        ahead = self.reach[1]
        assert ahead is not None
        return (distance < self.size) & (distance >= -ahead)


class IntersectionPattern(Pattern):
    """What two patterns both allow."""

    def __init__(self, first: Pattern, second: Pattern) -> None:
        super().__init__(first.sizes)
        self.one, self.other = first, second
        self.relative = first.relative and second.relative

    @property
    def reach(self) -> WindowSize:
        pairs = zip(self.one.reach, self.other.reach, strict=True)
        back, ahead = (min((r for r in pair if r is not None), default=None) for pair in pairs)
        return (back, ahead)

    def allows(
        self, query_positions: Int[Tensor, "*b query"], key_positions: Int[Tensor, "*b key"]
    ) -> Bool[Tensor, "*b query key"]:
        return self.one.allows(query_positions, key_positions) & self.other.allows(query_positions, key_positions)
