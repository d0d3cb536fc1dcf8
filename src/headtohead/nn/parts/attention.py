"""Attention: a slot of its own, so that an idea that does not decompose has a home; by default composed of parts.

What a layer may see in one pass is handed to it as a `Sight`: positions, padding, the caller's cache, and which road to
take. Masks and biases are computed once a pass and shared by the layers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from headtohead.nn.parts import attention_functions
from headtohead.nn.parts.base import Law, Part, Road, Sizes
from headtohead.nn.parts.merge import Merge
from headtohead.nn.parts.pattern import Causal, Pattern
from headtohead.nn.parts.position import Position
from headtohead.nn.parts.projection import Projection
from headtohead.nn.parts.registry import part

Stream = Float[Tensor, "batch length width"]
Maps = Float[Tensor, "batch heads query key"]


class Memory:
    """One layer's share of a cache: keys and values so far, and what the merge carries. Owned by whoever decodes."""

    def __init__(self) -> None:
        self.length = 0
        self.room: Float[Tensor, "2 batch heads room head_dim"] | None = None
        """keys and values, with room to grow"""
        self.merge: Tensor | None = None

    def grow(self, more: int, like: Float[Tensor, "batch heads new head_dim"]) -> Tensor:
        """Room for so many more. It is doubled when it runs out, so that a step does not copy the past."""
        end = self.length + more
        if self.room is None or end > self.room.shape[3]:
            batch, heads, _, head_dim = like.shape
            grown = like.new_empty(2, batch, heads, max(64, 2 * end), head_dim)
            if self.room is not None:
                grown[:, :, :, : self.length] = self.room[:, :, :, : self.length]
            self.room = grown
        return self.room

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append, and give all."""
        room, end = self.grow(keys.shape[2], keys), self.length + keys.shape[2]
        room[0, :, :, self.length : end] = keys
        room[1, :, :, self.length : end] = values
        self.length = end
        return room[0, :, :, :end], room[1, :, :, :end]

    def select(self, rows: Int[Tensor, " kept"]) -> None:
        """Keep these rows of the batch; one may be taken more than once."""
        if self.room is not None:
            self.room = self.room[:, rows]
        if self.merge is not None:
            self.merge = self.merge[rows]


@dataclass
class Sight:
    """What the layers may see in one pass."""

    query_at: Int[Tensor, "*b query"]
    key_at: Int[Tensor, "*b key"]
    positions: Sequence[Position]
    valid: Bool[Tensor, "batch key"] | None = None
    """False on padding"""
    road: Road = "fused"
    maps: bool = False
    memories: Sequence[Memory] | None = None
    _masks: dict[int, tuple[Tensor | None, Tensor | None]] = field(default_factory=dict)
    _one_piece: bool | None = None

    def mask(self, pattern: Pattern) -> tuple[Tensor | None, Tensor | None]:
        """(allowed, bias), shaped to be broadcast over (batch, heads, query, key)."""
        if id(pattern) not in self._masks:
            allowed, bias = self.between(pattern, self.query_at, self.key_at)
            allowed = allowed[..., None, :, :]
            if self.valid is not None:
                allowed = allowed & self.valid[:, None, None, :]
            self._masks[id(pattern)] = (allowed, bias)
        return self._masks[id(pattern)]

    def between(self, pattern: Pattern, query_at: Tensor, key_at: Tensor) -> tuple[Tensor, Tensor | None]:
        """What the pattern allows and what the positions add, between any positions."""
        biases = [b for p in self.positions if (b := p.bias(query_at, key_at)) is not None]
        bias = sum(biases[1:], biases[0]) if biases else None
        return pattern.allows(query_at, key_at), bias

    def is_plain_triangle(self, pattern: Pattern) -> bool:
        return (
            isinstance(pattern, Causal)
            and self.valid is None
            and self.query_at.shape == self.key_at.shape
            and all(type(p).bias is Position.bias for p in self.positions)
        )

    def is_band(self, pattern: Pattern) -> tuple[int, int] | None:
        """The reach, when looking only that far is worth it: without a cache and with a text of several reaches."""
        back, ahead = pattern.reach
        if back is None or ahead is None or self.query_at.shape != self.key_at.shape:
            return None
        if self.query_at.shape[-1] < 4 * max(back, ahead, 16) or not self._in_one_piece():
            return None
        return back, ahead

    def is_alike_everywhere(self, pattern: Pattern) -> bool:
        """Positions one after the other, and nothing that asks for more than the distance between two of them."""
        biased = any(type(p).bias is not Position.bias for p in self.positions)
        return pattern.relative and self.query_at.dim() == 1 and not biased

    def _in_one_piece(self) -> bool:
        """No padding between tokens: only then is what is near by position also near by index."""
        if self.valid is None:
            return True
        if self._one_piece is None:  # asked once a pass: the answer has to come back from the device
            begins = (self.valid[:, 1:] & ~self.valid[:, :-1]).sum(1) + self.valid[:, 0]
            self._one_piece = bool((begins <= 1).all())
        return self._one_piece


class Attention(Part):
    """The contract."""

    def __init__(
        self,
        sizes: Sizes,
        projection: Projection,
        pattern: Pattern,
        merge: Merge,
        positions: Sequence[Position],
    ) -> None:
        super().__init__(sizes)

    def forward(self, x: Stream, sight: Sight, layer: int) -> tuple[Stream, Maps | None]:
        raise NotImplementedError


@part("attention", "composed")
class Composed(Attention):
    """Projection, positions, pattern and merge in a row, then an output matrix."""

    def __init__(
        self,
        sizes: Sizes,
        projection: Projection,
        pattern: Pattern,
        merge: Merge,
        positions: Sequence[Position],
        *,
        output_bias: bool = True,
    ) -> None:
        super().__init__(sizes, projection, pattern, merge, positions)
        self.projection, self.pattern, self.merge = projection, pattern, merge
        self.output = nn.Linear(sizes.heads * sizes.head_dim, sizes.width, bias=output_bias)

    @property
    def breaks(self) -> frozenset[Law]:
        return self.projection.breaks | self.pattern.breaks | self.merge.breaks

    def forward(self, x: Stream, sight: Sight, layer: int) -> tuple[Stream, Maps | None]:
        q, k, v = self.projection(x)
        for position in sight.positions:
            q, k = position.rotate(q, sight.query_at), position.rotate(k, sight.query_at)
        memory = sight.memories[layer] if sight.memories is not None else None
        if memory is not None:
            k, v = memory.extend(k, v)
        if k.shape[1] < q.shape[1]:  # several queries share a key
            shared = q.shape[1] // k.shape[1]
            k, v = k.repeat_interleave(shared, dim=1), v.repeat_interleave(shared, dim=1)
        heads, maps = self._attend(q, k, v, sight)
        # Whose positions are these? Only the queries': with a cache, padding is known for all keys.
        valid = None if sight.valid is None else sight.valid[:, -q.shape[2] :]
        heads, carried = self.merge(heads, valid, memory.merge if memory is not None else None)
        if memory is not None:
            memory.merge = carried
        out: Tensor = self.output(heads.transpose(1, 2).flatten(2))
        return out, maps

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, sight: Sight) -> tuple[Tensor, Tensor | None]:
        dropout = self.sizes.dropout if self.training else 0.0
        if sight.road == "explicit" or sight.maps:
            heads, maps = attention_functions.explicit(q, k, v, *sight.mask(self.pattern), dropout)
            return heads, maps if sight.maps else None
        if sight.is_plain_triangle(self.pattern):
            return attention_functions.fused_causal(q, k, v, dropout), None
        if reach := sight.is_band(self.pattern):
            between = partial(sight.between, self.pattern)
            alike = sight.is_alike_everywhere(self.pattern)
            return attention_functions.banded(
                q, k, v, sight.query_at, reach, between, sight.valid, dropout, alike=alike
            ), None
        return attention_functions.fused(q, k, v, *sight.mask(self.pattern), dropout), None
