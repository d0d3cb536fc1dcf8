"""Position parts: add position information to the embeddings, to queries and keys, or to the attention scores.

A model holds a list of position parts. Position ids are passed in and never counted here, so that padding, caching and
offsets need no special case. They may have leading batch dimensions."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from headtohead.errors import ModelError
from headtohead.nn.parts.base import ModelSizes, Part
from headtohead.nn.parts.registry import register_part

Embeddings = Float[Tensor, "batch length width"]
Heads = Float[Tensor, "batch heads length head_dim"]
PositionIds = Int[Tensor, "*b length"]


class Position(Part):
    """Base class of position parts. All three methods default to doing nothing; a part overrides what it needs."""

    is_absolute = False
    """True if the part adds absolute positions to the embeddings. A model accepts at most one such part."""
    max_positions: int | None = None
    """Number of positions the part supports; None means any."""

    def add_positions(self, x: Embeddings, position_ids: PositionIds) -> Tensor:
        """Return the token embeddings with position information added."""
        return x

    def rotate(self, x: Heads, position_ids: PositionIds) -> Tensor:
        """Return queries or keys rotated by position. Cached keys are already rotated."""
        return x

    def compute_bias(
        self, query_positions: Int[Tensor, "*b query"], key_positions: Int[Tensor, "*b key"]
    ) -> Tensor | None:
        """Return the bias to add to the attention scores, (*b, heads, query, key), or None."""
        return None


@register_part("position", "none")
class NoPosition(Position):
    """No position signal: a decoder can infer order from the causal pattern. After Haviv et al. 2022."""


class _PositionEmbedding(nn.Embedding):
    """An embedding initialised from a normal distribution with the given standard deviation."""

    def __init__(self, num_positions: int, width: int, init_std: float) -> None:
        self.init_std = init_std
        super().__init__(num_positions, width)

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=self.init_std)


@register_part("position", "learned")
class LearnedPosition(Position):
    """A learned vector for each position. Cannot extend beyond the training context."""

    is_absolute = True

    def __init__(self, sizes: ModelSizes, *, start: float = 1.0) -> None:
        """`start` is the standard deviation of the initial vectors; 1 is PyTorch's default."""
        super().__init__(sizes)
        if start <= 0:
            raise ModelError(f"learned: start is a standard deviation and must be above 0, got {start}")
        self.max_positions = sizes.context
        self.table = _PositionEmbedding(sizes.context, sizes.width, start)

    def add_positions(self, x: Embeddings, position_ids: PositionIds) -> Tensor:
        signal: Tensor = self.table(position_ids)
        return x + signal


@register_part("position", "sinusoidal")
class SinusoidalPosition(Position):
    """Fixed sines and cosines of the position. After Vaswani et al. 2017, arXiv:1706.03762."""

    is_absolute = True

    def __init__(self, sizes: ModelSizes, *, base: float = 10000.0) -> None:
        super().__init__(sizes)
        half = (sizes.width + 1) // 2
        self.register_buffer("frequency", base ** (-2 * torch.arange(half) / sizes.width), persistent=False)
        self.frequency: Tensor

    def add_positions(self, x: Embeddings, position_ids: PositionIds) -> Tensor:
        angle = position_ids[..., None] * self.frequency
        signal = torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2)
        return x + signal[..., : self.sizes.width].to(x.dtype)


def compute_alibi_slopes(num_heads: int) -> list[float]:
    """Return one slope per head.

    A power of two uses the paper's geometric series. Any other number of heads uses the series for the next lower
    power, followed by every second slope for the next higher one, as in the authors' code.
    """
    power = 2 ** math.floor(math.log2(num_heads))
    slopes = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    if power < num_heads:
        slopes += [2 ** (-8 * (i + 1) / (2 * power)) for i in range(0, 2 * (num_heads - power), 2)]
    return slopes


@register_part("position", "alibi")
class AlibiPosition(Position):
    """Scores decrease linearly with distance, with one slope per head. After Press et al. 2022, arXiv:2108.12409."""

    def __init__(self, sizes: ModelSizes, *, slope: float | None = None) -> None:
        super().__init__(sizes)
        slopes = compute_alibi_slopes(sizes.heads) if slope is None else [slope] * sizes.heads
        self.register_buffer("slopes", torch.tensor(slopes), persistent=False)
        self.slopes: Tensor

    def compute_bias(self, query_positions: Int[Tensor, "*b query"], key_positions: Int[Tensor, "*b key"]) -> Tensor:
        # The absolute distance makes the bias symmetric for encoders; decoders never attend to later positions.
        distance = (query_positions[..., :, None] - key_positions[..., None, :]).abs()
        return -self.slopes[:, None, None] * distance[..., None, :, :]


@register_part("position", "rope")
class RotaryPosition(Position):
    """Rotate queries and keys by an angle proportional to position. After Su et al. 2021, arXiv:2104.09864."""

    def __init__(self, sizes: ModelSizes, *, base: float = 10000.0, fraction: float = 1.0) -> None:
        super().__init__(sizes)
        if not 0 < fraction <= 1:
            raise ModelError(f"rope: fraction is the share of a head to rotate and must be in (0, 1], got {fraction}")
        self.rotary_dim = 2 * int(sizes.head_dim * fraction / 2)
        if self.rotary_dim == 0:
            raise ModelError(f"rope: fraction {fraction} of head_dim {sizes.head_dim} leaves no dimensions to rotate")
        frequency = base ** (-torch.arange(0, self.rotary_dim, 2) / self.rotary_dim)
        self.register_buffer("frequency", frequency, persistent=False)
        self.frequency: Tensor

    def rotate(self, x: Heads, position_ids: PositionIds) -> Tensor:
        """Rotate pairs of dimensions of queries or keys by angles proportional to their positions."""
        angle = (position_ids[..., None] * self.frequency).unsqueeze(-3)  # (*b, 1, length, rotary_dim / 2)
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        # Dimension i is paired with i + rotary_dim / 2, as in Llama, not with its neighbour as in the paper. The two
        # differ by a permutation of columns, and this pairing lets weights be exchanged with transformers.
        first, second = x[..., : self.rotary_dim].chunk(2, dim=-1)
        rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
        return torch.cat((rotated, x[..., self.rotary_dim :]), dim=-1) if self.rotary_dim < x.shape[-1] else rotated
