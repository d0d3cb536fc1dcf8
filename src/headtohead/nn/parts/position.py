"""Position: how a model knows where a token stands. Added to the input, turned into the queries and keys, or added to
the scores; a model holds a list of them.

Positions are numbers given from outside (`at`), never counted here: padding, caching and offsets need no special case.
A leading batch axis on `at` is allowed everywhere.
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from headtohead.errors import ModelError
from headtohead.nn.parts.base import ModelSizes, Part
from headtohead.nn.parts.registry import register_part


class Position(Part):
    """The contract: three harmless defaults; a part writes only the one that it means."""

    absolute = False
    """adds a signal of its own to the input; a model takes one at most"""
    limit: int | None = None
    """the number of positions that it knows; None: any"""

    def embed(self, x: Float[Tensor, "batch length width"], position_ids: Int[Tensor, "*b length"]) -> Tensor:
        """The input with its positions added."""
        return x

    def rotate(self, x: Float[Tensor, "batch heads length head_dim"], position_ids: Int[Tensor, "*b length"]) -> Tensor:
        """Queries or keys, turned by position. Applied once to each: a cache is never rotated again."""
        return x

    def bias(self, query_positions: Int[Tensor, "*b query"], key_positions: Int[Tensor, "*b key"]) -> Tensor | None:
        """What is added to the scores: (heads, query, key), with the batch axis of `at` in front if it has one."""
        return None


@register_part("position", "none")
class NoPosition(Position):
    """No position signal: a decoder can still tell order from the causal pattern. After Haviv et al. 2022."""


class _PositionEmbedding(nn.Embedding):
    """An embedding that is drawn as small as asked."""

    def __init__(self, num_positions: int, width: int, init_std: float) -> None:
        self.start = init_std
        super().__init__(num_positions, width)

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=self.start)


@register_part("position", "learned")
class LearnedPosition(Position):
    """A vector for each position, learned. Cannot go beyond the context it was trained with."""

    absolute = True

    def __init__(self, sizes: ModelSizes, *, start: float = 1.0) -> None:
        """`start`: standard deviation of the vectors at step 0; 1 is what torch draws."""
        super().__init__(sizes)
        if start <= 0:
            raise ModelError(f"learned positions start with a standard deviation above 0, not {start}")
        self.limit = sizes.context
        self.table = _PositionEmbedding(sizes.context, sizes.width, start)

    def embed(self, x: Float[Tensor, "batch length width"], position_ids: Int[Tensor, "*b length"]) -> Tensor:
        signal: Tensor = self.table(position_ids)
        return x + signal


@register_part("position", "sinusoidal")
class SinusoidalPosition(Position):
    """Sines and cosines of the position, fixed. After Vaswani et al. 2017, arXiv:1706.03762."""

    absolute = True

    def __init__(self, sizes: ModelSizes, *, base: float = 10000.0) -> None:
        super().__init__(sizes)
        half = (sizes.width + 1) // 2
        self.register_buffer("frequency", base ** (-2 * torch.arange(half) / sizes.width), persistent=False)
        self.frequency: Tensor

    def embed(self, x: Float[Tensor, "batch length width"], position_ids: Int[Tensor, "*b length"]) -> Tensor:
        angle = position_ids[..., None] * self.frequency
        signal = torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2)
        return x + signal[..., : self.sizes.width].to(x.dtype)


def compute_alibi_slopes(num_heads: int) -> list[float]:
    """A slope for each head, for any number of heads: the paper's geometric series for powers of two, and for other
    numbers the series of the power below, filled up with every other one of the power above."""
    power = 2 ** math.floor(math.log2(num_heads))
    slopes = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    if power < num_heads:
        slopes += [2 ** (-8 * (i + 1) / (2 * power)) for i in range(0, 2 * (num_heads - power), 2)]
    return slopes


@register_part("position", "alibi")
class AlibiPosition(Position):
    """Scores fall linearly with distance, at a slope for each head. After Press et al. 2022, arXiv:2108.12409."""

    def __init__(self, sizes: ModelSizes, *, slope: float | None = None) -> None:
        super().__init__(sizes)
        slopes = compute_alibi_slopes(sizes.heads) if slope is None else [slope] * sizes.heads
        self.register_buffer("slopes", torch.tensor(slopes), persistent=False)
        self.slopes: Tensor

    def bias(self, query_positions: Int[Tensor, "*b query"], key_positions: Int[Tensor, "*b key"]) -> Tensor:
        # The distance is taken without its sign: symmetric for encoders; decoders never look ahead anyway.
        distance = (query_positions[..., :, None] - key_positions[..., None, :]).abs()
        return -self.slopes[:, None, None] * distance[..., None, :, :]


@register_part("position", "rope")
class RotaryPosition(Position):
    """Queries and keys turned by an angle that grows with position. After Su et al. 2021, arXiv:2104.09864."""

    def __init__(self, sizes: ModelSizes, *, base: float = 10000.0, fraction: float = 1.0) -> None:
        super().__init__(sizes)
        if not 0 < fraction <= 1:
            raise ModelError(f"rope: fraction is the share of a head that is rotated, in (0, 1], not {fraction}")
        self.turned = 2 * int(sizes.head_dim * fraction / 2)
        if self.turned == 0:
            raise ModelError(f"rope: a head of {sizes.head_dim} times {fraction} leaves nothing to rotate")
        frequency = base ** (-torch.arange(0, self.turned, 2) / self.turned)
        self.register_buffer("frequency", frequency, persistent=False)
        self.frequency: Tensor

    def rotate(self, x: Float[Tensor, "batch heads length head_dim"], position_ids: Int[Tensor, "*b length"]) -> Tensor:
        angle = (position_ids[..., None] * self.frequency).unsqueeze(-3)  # (*b, 1, length, turned / 2)
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        # Pairs are (i, i + half), as Llama and its kin store them, not neighbours as in the paper: the same up to an
        # order of the columns, and weights can be exchanged.
        first, second = x[..., : self.turned].chunk(2, dim=-1)
        turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
        return torch.cat((turned, x[..., self.turned :]), dim=-1) if self.turned < x.shape[-1] else turned
