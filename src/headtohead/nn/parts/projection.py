"""Projection: from the stream to queries, keys and values. Keys and values may have fewer heads than queries."""

from itertools import pairwise

from jaxtyping import Float
from torch import Tensor, nn

from headtohead.errors import ModelError
from headtohead.nn.parts.base import ModelSizes, Part
from headtohead.nn.parts.registry import register_part

QueryHeads = Float[Tensor, "batch heads length head_dim"]
KeyValueHeads = Float[Tensor, "batch key_heads length head_dim"]


class Projection(Part):
    """The contract."""

    def forward(self, x: Float[Tensor, "batch length width"]) -> tuple[QueryHeads, KeyValueHeads, KeyValueHeads]:
        raise NotImplementedError


def split_heads(x: Tensor, head_dim: int) -> Tensor:
    """(batch, length, heads * head_dim) to (batch, heads, length, head_dim)."""
    heads: Tensor = x.unflatten(-1, (-1, head_dim)).transpose(1, 2)
    return heads


@register_part("projection", "linear")
class LinearProjection(Projection):
    """One matrix each for queries, keys and values; with `key_heads`, several queries share a key. Ainslie et al.
    2023, arXiv:2305.13245; one key head is Shazeer's multi-query, arXiv:1911.02150."""

    def __init__(self, sizes: ModelSizes, *, bias: bool = False, key_heads: int | None = None) -> None:
        super().__init__(sizes)
        key_heads = key_heads or sizes.heads
        if sizes.heads % key_heads:
            raise ModelError(f"linear: {sizes.heads} query heads cannot share {key_heads} key heads evenly")
        self.query = nn.Linear(sizes.width, sizes.heads * sizes.head_dim, bias=bias)
        self.key = nn.Linear(sizes.width, key_heads * sizes.head_dim, bias=bias)
        self.value = nn.Linear(sizes.width, key_heads * sizes.head_dim, bias=bias)

    def forward(self, x: Float[Tensor, "batch length width"]) -> tuple[QueryHeads, KeyValueHeads, KeyValueHeads]:
        dim = self.sizes.head_dim
        return split_heads(self.query(x), dim), split_heads(self.key(x), dim), split_heads(self.value(x), dim)


@register_part("projection", "mlp")
class MLPProjection(Projection):
    """Queries, keys and values from small ReLU networks with `depth` hidden layers (report D)."""

    def __init__(self, sizes: ModelSizes, *, depth: int = 1, hidden: int | None = None, bias: bool = True) -> None:
        super().__init__(sizes)
        if depth < 1:
            raise ModelError(f"mlp: depth counts hidden layers and is at least 1, not {depth}; for 0 take linear")
        wide = hidden or sizes.width
        self.query, self.key, self.value = (self._build_network(depth, wide, bias) for _ in range(3))

    def _build_network(self, depth: int, hidden: int, bias: bool) -> nn.Sequential:
        sizes = [self.sizes.width, *[hidden] * depth]
        steps: list[nn.Module] = []
        for before, after in pairwise(sizes):
            steps += [nn.Linear(before, after, bias=bias), nn.ReLU()]
        return nn.Sequential(*steps, nn.Linear(hidden, self.sizes.heads * self.sizes.head_dim, bias=bias))

    def forward(self, x: Float[Tensor, "batch length width"]) -> tuple[QueryHeads, KeyValueHeads, KeyValueHeads]:
        dim = self.sizes.head_dim
        return split_heads(self.query(x), dim), split_heads(self.key(x), dim), split_heads(self.value(x), dim)
