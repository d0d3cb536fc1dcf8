"""Pattern: who may look at whom, computed from positions and not from indices."""

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from headtohead.errors import ModelError
from headtohead.nn.parts.base import Law, Part, Sizes
from headtohead.nn.parts.registry import part

Reach = tuple[int | None, int | None]
"""how far (behind, ahead) a query may look; None: any distance"""


class Pattern(Part):
    """The contract."""

    relative: bool = False
    """does it ask for nothing but the distance of query and key? The fast road then asks it once for all places"""

    @property
    def reach(self) -> Reach:
        """Tells the fast road how far it must look."""
        return (None, None)

    def allows(self, query_at: Int[Tensor, "*b query"], key_at: Int[Tensor, "*b key"]) -> Bool[Tensor, "*b query key"]:
        """True where the query may look at the key."""
        raise NotImplementedError

    @property
    def breaks(self) -> frozenset[Law]:
        ahead = self.reach[1]
        return frozenset({"causal", "cache"}) if self.sizes.causal and ahead != 0 else frozenset()

    def __and__(self, other: "Pattern") -> "Pattern":
        return Both(self, other)


def behind(query_at: Tensor, key_at: Tensor) -> Tensor:
    """How far the key lies behind the query."""
    return query_at[..., :, None] - key_at[..., None, :]


@part("pattern", "full")
class Full(Pattern):
    """Every position looks at every other."""

    relative = True

    def allows(self, query_at: Int[Tensor, "*b query"], key_at: Int[Tensor, "*b key"]) -> Bool[Tensor, "*b query key"]:
        return torch.ones_like(behind(query_at, key_at), dtype=torch.bool)


@part("pattern", "causal")
class Causal(Pattern):
    """A position looks at itself and at what came before."""

    relative = True

    @property
    def reach(self) -> Reach:
        return (None, 0)

    def allows(self, query_at: Int[Tensor, "*b query"], key_at: Int[Tensor, "*b key"]) -> Bool[Tensor, "*b query key"]:
        return behind(query_at, key_at) >= 0


@part("pattern", "window")
class Window(Pattern):
    """A position looks at the `size` nearest: itself and those behind it; in an encoder on both sides."""

    relative = True

    def __init__(self, sizes: Sizes, *, size: int) -> None:
        super().__init__(sizes)
        if size < 1:
            raise ModelError(f"window: size counts the token itself and is at least 1, not {size}")
        self.size = size

    @property
    def reach(self) -> Reach:
        return (self.size - 1, 0 if self.sizes.causal else self.size - 1)

    def allows(self, query_at: Int[Tensor, "*b query"], key_at: Int[Tensor, "*b key"]) -> Bool[Tensor, "*b query key"]:
        distance = behind(query_at, key_at)
        ahead = self.reach[1]
        assert ahead is not None
        return (distance < self.size) & (distance >= -ahead)


class Both(Pattern):
    """What two patterns both allow."""

    def __init__(self, one: Pattern, other: Pattern) -> None:
        super().__init__(one.sizes)
        self.one, self.other = one, other
        self.relative = one.relative and other.relative

    @property
    def reach(self) -> Reach:
        pairs = zip(self.one.reach, self.other.reach, strict=True)
        back, ahead = (min((r for r in pair if r is not None), default=None) for pair in pairs)
        return (back, ahead)

    def allows(self, query_at: Int[Tensor, "*b query"], key_at: Int[Tensor, "*b key"]) -> Bool[Tensor, "*b query key"]:
        return self.one.allows(query_at, key_at) & self.other.allows(query_at, key_at)
