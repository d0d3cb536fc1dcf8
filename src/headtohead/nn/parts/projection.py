"""Projections: map hidden states to queries, keys and values. Keys and values may have fewer heads than queries.

A projection may be followed by steps that transform its queries, keys and values, as in `["linear", "qk-norm"]`."""

from itertools import pairwise
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headtohead.errors import ModelError
from headtohead.nn.parts.base import ModelSizes, Part
from headtohead.nn.parts.context import ForwardContext
from headtohead.nn.parts.registry import register_part

QueryHeads = Float[Tensor, "batch heads length head_dim"]
KeyValueHeads = Float[Tensor, "batch key_heads length head_dim"]
HeadTensors = tuple[QueryHeads, KeyValueHeads, KeyValueHeads]
HiddenStates = Float[Tensor, "batch length width"]


class Projection(Part):
    """Base class of projections. A part with fewer key and value heads than query heads sets `key_heads`."""

    def __init__(self, sizes: ModelSizes) -> None:
        super().__init__(sizes)
        self.key_heads = sizes.heads

    def forward(self, x: HiddenStates, context: ForwardContext) -> HeadTensors:
        """Return queries, keys and values, (batch, heads or key_heads, length, head_dim) each."""
        raise NotImplementedError


class ProjectionStep(Part):
    """Base class of parts that follow a projection in a list."""

    is_step = True

    def forward(
        self, q: QueryHeads, k: KeyValueHeads, v: KeyValueHeads, x: HiddenStates, context: ForwardContext
    ) -> HeadTensors:
        """Return the transformed queries, keys and values. `x` is the input of the projection."""
        raise NotImplementedError


def split_heads(x: Tensor, head_dim: int) -> Tensor:
    """Return projected hidden states, (batch, length, heads * head_dim), as (batch, heads, length, head_dim)."""
    heads: Tensor = x.unflatten(-1, (-1, head_dim)).transpose(1, 2)
    return heads


@register_part("projection", "linear")
class LinearProjection(Projection):
    """One matrix each for queries, keys and values. With `key_heads`, several query heads share a key head.

    Grouped-query attention after Ainslie et al. 2023, arXiv:2305.13245; one key head is the multi-query attention of
    Shazeer 2019, arXiv:1911.02150."""

    is_tokenwise = True

    def __init__(self, sizes: ModelSizes, *, bias: bool = False, key_heads: int | None = None) -> None:
        """Create linear layers for queries, keys and values."""
        super().__init__(sizes)
        self.key_heads = key_heads = key_heads or sizes.heads
        if sizes.heads % key_heads:
            raise ModelError(f"linear: key_heads must divide heads = {sizes.heads}, got {key_heads}")
        self.query = nn.Linear(sizes.width, sizes.heads * sizes.head_dim, bias=bias)
        self.key = nn.Linear(sizes.width, key_heads * sizes.head_dim, bias=bias)
        self.value = nn.Linear(sizes.width, key_heads * sizes.head_dim, bias=bias)

    def forward(self, x: HiddenStates, context: ForwardContext) -> HeadTensors:
        dim = self.sizes.head_dim
        return split_heads(self.query(x), dim), split_heads(self.key(x), dim), split_heads(self.value(x), dim)


@register_part("projection", "mlp")
class MLPProjection(Projection):
    """ReLU networks with `depth` hidden layers for queries, keys and values."""

    is_tokenwise = True

    def __init__(self, sizes: ModelSizes, *, depth: int = 1, hidden: int | None = None, bias: bool = True) -> None:
        """Create one MLP each for queries, keys and values."""
        super().__init__(sizes)
        if depth < 1:
            raise ModelError(f"mlp: depth counts hidden layers and must be at least 1, got {depth}; for 0 use linear")
        hidden_width = hidden or sizes.width
        self.query, self.key, self.value = (self._build_network(depth, hidden_width, bias) for _ in range(3))

    def _build_network(self, depth: int, hidden: int, bias: bool) -> nn.Sequential:
        """Return the MLP of a projection with `depth` hidden layers from width to heads * head_dim."""
        widths = [self.sizes.width, *[hidden] * depth]
        modules: list[nn.Module] = []
        for in_features, out_features in pairwise(widths):
            modules += [nn.Linear(in_features, out_features, bias=bias), nn.ReLU()]
        return nn.Sequential(*modules, nn.Linear(hidden, self.sizes.heads * self.sizes.head_dim, bias=bias))

    def forward(self, x: HiddenStates, context: ForwardContext) -> HeadTensors:
        dim = self.sizes.head_dim
        return split_heads(self.query(x), dim), split_heads(self.key(x), dim), split_heads(self.value(x), dim)


@register_part("projection", "qk-norm")
class QueryKeyNorm(ProjectionStep):
    """Normalize queries and keys. After Henry et al. 2020, arXiv:2010.04245; as in Qwen 3, OLMo 2 and Cohere."""

    is_tokenwise = True

    def __init__(
        self,
        sizes: ModelSizes,
        *,
        norm: Literal["rms", "layer"] = "rms",
        over: Literal["head", "all-heads"] = "head",
        scale: Literal["shared", "per-head"] = "shared",
        bias: bool = False,
        eps: float = 1e-6,
    ) -> None:
        """`over` is what is normalized together: each query or key head, or all heads of a token. The learned scale and
        bias are `shared` by all heads, or each head has its own, as always if all heads are normalized together.
        """
        super().__init__(sizes)
        self.norm, self.over, self.eps = norm, over, eps
        is_shared = scale == "shared" and over == "head"
        num_scales = (1, 1) if is_shared else (sizes.heads, sizes.key_heads or sizes.heads)
        self.query_scale, self.key_scale = (nn.Parameter(torch.ones(n, sizes.head_dim)) for n in num_scales)
        biases = [nn.Parameter(torch.zeros(n, sizes.head_dim)) if bias else None for n in num_scales]
        self.register_parameter("query_bias", biases[0])
        self.register_parameter("key_bias", biases[1])

    def forward(
        self, q: QueryHeads, k: KeyValueHeads, v: KeyValueHeads, x: HiddenStates, context: ForwardContext
    ) -> HeadTensors:
        """Return the projected queries and keys, normalized, and the values unchanged."""
        query_bias, key_bias = self._parameters["query_bias"], self._parameters["key_bias"]
        normed_q = self._normalize_heads(q, self.query_scale, query_bias)
        normed_k = self._normalize_heads(k, self.key_scale, key_bias)
        return normed_q, normed_k, v

    def _normalize_heads(self, x: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
        """Return projected queries or keys, (batch, heads, length, head_dim), normalized, with scale and bias."""
        axes = (1, 3) if self.over == "all-heads" else (3,)
        if self.norm == "layer":
            x = x - x.mean(axes, keepdim=True)
        normed = x * (x.square().mean(axes, keepdim=True) + self.eps).rsqrt()
        num_heads = x.shape[1]
        scaled: Tensor = normed * scale[:num_heads, None]
        return scaled if bias is None else scaled + bias[:num_heads, None]


@register_part("projection", "query-scale")
class ScaledQueries(ProjectionStep):
    """Multiply queries by `by`, besides the 1 / sqrt(head_dim) of attention scores, as in Gemma 2, arXiv:2408.00118."""

    is_tokenwise = True

    def __init__(self, sizes: ModelSizes, *, by: float) -> None:
        super().__init__(sizes)
        self.by = by

    def forward(
        self, q: QueryHeads, k: KeyValueHeads, v: KeyValueHeads, x: HiddenStates, context: ForwardContext
    ) -> HeadTensors:
        return q * self.by, k, v
