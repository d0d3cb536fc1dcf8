"""Position parts: position embeddings, rotary embeddings of queries and keys, and biases of the attention scores.

A layer has a list of position parts. Position ids are passed in and never counted here, so that padding, caching and
offsets need no special case. They may have leading batch dimensions."""

import math
from collections.abc import Sequence
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from headtohead.errors import ModelError
from headtohead.nn.parts.base import ModelSizes, Part
from headtohead.nn.parts.context import ForwardContext
from headtohead.nn.parts.registry import register_part

Embeddings = Float[Tensor, "batch length width"]
Heads = Float[Tensor, "batch heads length head_dim"]
KeyHeads = Float[Tensor, "batch key_heads length head_dim"]


class Position(Part):
    """Base class of position parts. By default, its three methods do nothing; a part overrides what it needs."""

    is_absolute = False
    """True if the part adds absolute position embeddings. A model accepts at most one such part."""
    max_positions: int | None = None
    """Number of positions the part supports; None means any."""

    def add_positions(self, x: Embeddings, context: ForwardContext) -> Tensor:
        """Return the token embeddings plus position embeddings, (batch, length, width)."""
        return x

    def rotate(self, q: Heads, k: KeyHeads, context: ForwardContext) -> tuple[Tensor, Tensor]:
        """Return the queries and keys of this pass, at `context.query_positions`, rotated by position. Cached keys are
        already rotated.
        """
        return q, k

    def compute_bias(
        self, query_positions: Int[Tensor, "*b query"], key_positions: Int[Tensor, "*b key"], context: ForwardContext
    ) -> Tensor | None:
        """Return the position bias of the attention scores, (..., heads, query, key), or None if the part has none.

        The positions are those of the whole sequence, or of one block of it. Layers share the bias, so it must not
        depend on the layer.
        """
        return None


@register_part("position", "none")
class NoPosition(Position):
    """No position embeddings: a decoder can infer order from the causal pattern. After Haviv et al. 2022."""

    is_tokenwise = True


class _NormalEmbedding(nn.Embedding):
    """A table of position embeddings whose initial values have the given standard deviation."""

    def __init__(self, num_positions: int, width: int, *, std: float) -> None:
        self.std = std
        super().__init__(num_positions, width)

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=self.std)


@register_part("position", "learned")
class LearnedPosition(Position):
    """A learned vector for each position. Cannot extend beyond the training context."""

    is_tokenwise = True

    is_absolute = True

    def __init__(self, sizes: ModelSizes, *, std: float | None = None) -> None:
        """`std` is the standard deviation of the initial vectors; unset, 1 as in torch."""
        super().__init__(sizes)
        if std is not None and std <= 0:
            raise ModelError(f"learned: std is a standard deviation and must be above 0, got {std}")
        self.max_positions = sizes.context
        self.starts_differently = () if std is None else ("table.weight",)
        table_class = nn.Embedding if std is None else partial(_NormalEmbedding, std=std)
        self.table = table_class(sizes.context, sizes.width)

    def add_positions(self, x: Embeddings, context: ForwardContext) -> Tensor:
        position_embeddings: Tensor = self.table(context.query_positions)
        return x + position_embeddings


@register_part("position", "sinusoidal")
class SinusoidalPosition(Position):
    """Fixed sines and cosines of the position. After Vaswani et al. 2017, arXiv:1706.03762."""

    is_tokenwise = True

    is_absolute = True

    def __init__(self, sizes: ModelSizes, *, base: float = 10000.0) -> None:
        super().__init__(sizes)
        num_frequencies = (sizes.width + 1) // 2
        self.register_buffer("frequency", base ** (-2 * torch.arange(num_frequencies) / sizes.width), persistent=False)
        self.frequency: Tensor

    def add_positions(self, x: Embeddings, context: ForwardContext) -> Tensor:
        angle = context.query_positions[..., None] * self.frequency
        position_embeddings = torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2)
        return x + position_embeddings[..., : self.sizes.width].to(x.dtype)


def compute_alibi_slopes(num_heads: int) -> list[float]:
    """Return the slope of the ALiBi position bias for each head.

    For a power of two, the slopes are the paper's geometric series. For any other number of heads, they are the series
    of the next lower power, followed by every second slope of the next higher one, as in the authors' code.
    """
    lower_power = 2 ** math.floor(math.log2(num_heads))
    slopes = [2 ** (-8 * (i + 1) / lower_power) for i in range(lower_power)]
    if lower_power < num_heads:
        slopes += [2 ** (-8 * (i + 1) / (2 * lower_power)) for i in range(0, 2 * (num_heads - lower_power), 2)]
    return slopes


@register_part("position", "alibi")
class AlibiPosition(Position):
    """Scores decrease linearly with distance, with one slope per head. After Press et al. 2022, arXiv:2108.12409."""

    is_tokenwise = True

    def __init__(self, sizes: ModelSizes, *, slope: float | None = None, slopes: Sequence[float] | None = None) -> None:
        """`slope` is used for every head, `slopes` has one per head. If both are unset, they are those of the paper."""
        super().__init__(sizes)
        if slope is not None and slopes is not None:
            raise ModelError("alibi: set slope or slopes, not both")
        if slopes is None:
            slopes = compute_alibi_slopes(sizes.heads) if slope is None else [slope] * sizes.heads
        if len(slopes) != sizes.heads:
            raise ModelError(
                f"alibi: slopes must have one number for each of the {sizes.heads} heads, got {len(slopes)}"
            )
        self.register_buffer("slopes", torch.tensor(slopes), persistent=False)
        self.slopes: Tensor

    def compute_bias(
        self, query_positions: Int[Tensor, "*b query"], key_positions: Int[Tensor, "*b key"], context: ForwardContext
    ) -> Tensor:
        """Return the ALiBi position bias, the distance times the slope of each head, (..., heads, query, key)."""
        # The absolute distance makes the bias symmetric for encoders; decoders never attend to later positions.
        distance = (query_positions[..., :, None] - key_positions[..., None, :]).abs()
        return -self.slopes[:, None, None] * distance[..., None, :, :]


@register_part("position", "rope")
class RotaryPosition(Position):
    """Rotate queries and keys by an angle proportional to position. After Su et al. 2021, arXiv:2104.09864."""

    is_tokenwise = True

    def __init__(
        self,
        sizes: ModelSizes,
        *,
        base: float = 10000.0,
        fraction: float = 1.0,
        frequencies: Sequence[float] | None = None,
    ) -> None:
        """Pair i of the rotated dimensions turns by base^(-2i / rotated dimensions) per token, or by `frequencies[i]`,
        as in models whose context was extended.
        """
        super().__init__(sizes)
        if not 0 < fraction <= 1:
            raise ModelError(f"rope: fraction is the share of a head to rotate and must be in (0, 1], got {fraction}")
        self.rotary_dim = 2 * int(sizes.head_dim * fraction / 2)
        if self.rotary_dim == 0:
            raise ModelError(f"rope: fraction {fraction} of head_dim {sizes.head_dim} leaves no dimensions to rotate")
        frequency = base ** (-torch.arange(0, self.rotary_dim, 2) / self.rotary_dim)
        if frequencies is not None:
            if len(frequencies) != len(frequency):
                raise ModelError(f"rope: frequencies must have {len(frequency)} numbers, got {len(frequencies)}")
            frequency = torch.tensor(frequencies, dtype=torch.float32)
        self.register_buffer("frequency", frequency, persistent=False)
        self.frequency: Tensor

    def rotate(self, q: Heads, k: KeyHeads, context: ForwardContext) -> tuple[Tensor, Tensor]:
        """Rotate pairs of dimensions by angles proportional to their positions."""
        angle = (context.query_positions[..., None] * self.frequency).unsqueeze(-3)  # (*b, 1, length, rotary_dim / 2)
        cos, sin = angle.cos().to(q.dtype), angle.sin().to(q.dtype)
        return self._rotate_heads(q, cos, sin), self._rotate_heads(k, cos, sin)

    def _rotate_heads(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return queries or keys, (batch, heads, length, head_dim), with the first `rotary_dim` dimensions rotated."""
        # Dimension i is paired with i + rotary_dim / 2, as in Llama, not with its neighbor as in the paper. The two
        # differ by a permutation of columns, and this pairing lets weights be exchanged with transformers.
        first, second = x[..., : self.rotary_dim].chunk(2, dim=-1)
        rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
        return torch.cat((rotated, x[..., self.rotary_dim :]), dim=-1) if self.rotary_dim < x.shape[-1] else rotated


@register_part("position", "relative")
class RelativePosition(Position):
    """A learned bias per head for each range of distances. After Raffel et al. 2020, arXiv:1910.10683 (T5)."""

    is_tokenwise = True

    def __init__(self, sizes: ModelSizes, *, buckets: int = 32, max_distance: int = 128) -> None:
        """Half of the buckets hold one distance each, the others hold ranges that grow up to `max_distance`; the last
        one also holds all larger distances. An encoder uses half of the `buckets` for each direction.
        """
        super().__init__(sizes)
        self.buckets, self.max_distance = buckets, max_distance
        self.buckets_per_direction = buckets if sizes.is_causal else buckets // 2
        self.num_exact_buckets = self.buckets_per_direction // 2
        if self.num_exact_buckets < 1 or max_distance <= self.num_exact_buckets:
            raise ModelError(
                f"relative: {buckets} buckets and max_distance {max_distance} leave no distances; use at least "
                "4 buckets, and a max_distance above half of them"
            )
        self.table = nn.Embedding(buckets, sizes.heads)

    def compute_bias(
        self, query_positions: Int[Tensor, "*b query"], key_positions: Int[Tensor, "*b key"], context: ForwardContext
    ) -> Tensor:
        """Return the learned position bias of each distance bucket, (..., heads, query, key)."""
        ahead = key_positions[..., None, :] - query_positions[..., :, None]
        distance = (-ahead).clamp_min(0) if self.sizes.is_causal else ahead.abs()
        num_ranges = self.buckets_per_direction - self.num_exact_buckets
        log_distance = (distance.clamp_min(1).float() / self.num_exact_buckets).log()
        log_fraction = log_distance / math.log(self.max_distance / self.num_exact_buckets)
        range_bucket = self.num_exact_buckets + (log_fraction * num_ranges).long().clamp_max(num_ranges - 1)
        bucket = torch.where(distance < self.num_exact_buckets, distance, range_bucket)
        if not self.sizes.is_causal:
            bucket = bucket + (ahead > 0) * self.buckets_per_direction
        bias: Tensor = self.table(bucket).movedim(-1, -3)
        return bias
