"""Projections: map hidden states to queries, keys and values. Keys and values may have fewer heads than queries."""

from itertools import pairwise

from jaxtyping import Float
from torch import Tensor, nn

from headtohead.errors import ModelError
from headtohead.nn.parts.base import ModelSizes, Part
from headtohead.nn.parts.registry import register_part

QueryHeads = Float[Tensor, "batch heads length head_dim"]
KeyValueHeads = Float[Tensor, "batch key_heads length head_dim"]


class Projection(Part):
    """Base class of projections."""

    def forward(self, x: Float[Tensor, "batch length width"]) -> tuple[QueryHeads, KeyValueHeads, KeyValueHeads]:
        raise NotImplementedError


def split_heads(x: Tensor, head_dim: int) -> Tensor:
    """Return (batch, length, heads * head_dim) as (batch, heads, length, head_dim)."""
    heads: Tensor = x.unflatten(-1, (-1, head_dim)).transpose(1, 2)
    return heads


@register_part("projection", "linear")
class LinearProjection(Projection):
    """One matrix each for queries, keys and values. With `key_heads`, several query heads share a key head.

    Grouped-query attention after Ainslie et al. 2023, arXiv:2305.13245; one key head is the multi-query attention of
    Shazeer 2019, arXiv:1911.02150."""

    def __init__(self, sizes: ModelSizes, *, bias: bool = False, key_heads: int | None = None) -> None:
        super().__init__(sizes)
        key_heads = key_heads or sizes.heads
        if sizes.heads % key_heads:
            raise ModelError(f"linear: key_heads must divide heads = {sizes.heads}, got {key_heads}")
        self.query = nn.Linear(sizes.width, sizes.heads * sizes.head_dim, bias=bias)
        self.key = nn.Linear(sizes.width, key_heads * sizes.head_dim, bias=bias)
        self.value = nn.Linear(sizes.width, key_heads * sizes.head_dim, bias=bias)

    def forward(self, x: Float[Tensor, "batch length width"]) -> tuple[QueryHeads, KeyValueHeads, KeyValueHeads]:
        dim = self.sizes.head_dim
        return split_heads(self.query(x), dim), split_heads(self.key(x), dim), split_heads(self.value(x), dim)


@register_part("projection", "mlp")
class MLPProjection(Projection):
    """ReLU networks with `depth` hidden layers for queries, keys and values."""

    def __init__(self, sizes: ModelSizes, *, depth: int = 1, hidden: int | None = None, bias: bool = True) -> None:
        super().__init__(sizes)
        if depth < 1:
            raise ModelError(f"mlp: depth counts hidden layers and must be at least 1, got {depth}; for 0 use linear")
        hidden_width = hidden or sizes.width
        self.query, self.key, self.value = (self._build_network(depth, hidden_width, bias) for _ in range(3))

    def _build_network(self, depth: int, hidden: int, bias: bool) -> nn.Sequential:
        """Return an MLP with `depth` hidden layers from width to heads * head_dim."""
        widths = [self.sizes.width, *[hidden] * depth]
        modules: list[nn.Module] = []
        for in_features, out_features in pairwise(widths):
            modules += [nn.Linear(in_features, out_features, bias=bias), nn.ReLU()]
        return nn.Sequential(*modules, nn.Linear(hidden, self.sizes.heads * self.sizes.head_dim, bias=bias))

    def forward(self, x: Float[Tensor, "batch length width"]) -> tuple[QueryHeads, KeyValueHeads, KeyValueHeads]:
        dim = self.sizes.head_dim
        return split_heads(self.query(x), dim), split_heads(self.key(x), dim), split_heads(self.value(x), dim)
