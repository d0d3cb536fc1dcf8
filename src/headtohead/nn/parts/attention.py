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
from headtohead.nn.parts.base import AttentionImplementation, Invariant, ModelSizes, Part
from headtohead.nn.parts.merge import Merge
from headtohead.nn.parts.pattern import CausalPattern, Pattern
from headtohead.nn.parts.position import Position
from headtohead.nn.parts.projection import Projection
from headtohead.nn.parts.registry import register_part

HiddenStates = Float[Tensor, "batch length width"]
AttentionWeights = Float[Tensor, "batch heads query key"]


class LayerKVCache:
    """One layer's share of a cache: keys and values so far, and what the merge carries. Owned by whoever decodes."""

    def __init__(self) -> None:
        self.length = 0
        self.room: Float[Tensor, "2 batch heads room head_dim"] | None = None
        """keys and values, with room to grow"""
        self.merge: Tensor | None = None

    def grow(self, num_new_tokens: int, reference: Float[Tensor, "batch heads new head_dim"]) -> Tensor:
        """Room for so many more. It is doubled when it runs out, so that a step does not copy the past."""
        end = self.length + num_new_tokens
        if self.room is None or end > self.room.shape[3]:
            batch, heads, _, head_dim = reference.shape
            grown = reference.new_empty(2, batch, heads, max(64, 2 * end), head_dim)
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

    def select(self, row_indices: Int[Tensor, " kept"]) -> None:
        """Keep these rows of the batch; one may be taken more than once."""
        if self.room is not None:
            self.room = self.room[:, row_indices]
        if self.merge is not None:
            self.merge = self.merge[row_indices]


@dataclass
class AttentionContext:
    """What the layers may see in one pass."""

    query_positions: Int[Tensor, "*b query"]
    key_positions: Int[Tensor, "*b key"]
    positions: Sequence[Position]
    attention_mask: Bool[Tensor, "batch key"] | None = None
    """False on padding"""
    attn_implementation: AttentionImplementation = "sdpa"
    maps: bool = False
    layer_caches: Sequence[LayerKVCache] | None = None
    _mask_cache: dict[int, tuple[Tensor | None, Tensor | None]] = field(default_factory=dict)
    _cached_is_contiguous: bool | None = None

    def get_mask_and_bias(self, pattern: Pattern) -> tuple[Tensor | None, Tensor | None]:
        """(allowed, bias), shaped to be broadcast over (batch, heads, query, key)."""
        if id(pattern) not in self._mask_cache:
            allowed, bias = self.between(pattern, self.query_positions, self.key_positions)
            allowed = allowed[..., None, :, :]
            if self.attention_mask is not None:
                allowed = allowed & self.attention_mask[:, None, None, :]
            self._mask_cache[id(pattern)] = (allowed, bias)
        return self._mask_cache[id(pattern)]

    def between(self, pattern: Pattern, query_positions: Tensor, key_positions: Tensor) -> tuple[Tensor, Tensor | None]:
        """What the pattern allows and what the positions add, between any positions."""
        biases = [b for p in self.positions if (b := p.bias(query_positions, key_positions)) is not None]
        bias = sum(biases[1:], biases[0]) if biases else None
        return pattern.allows(query_positions, key_positions), bias

    def is_plain_causal(self, pattern: Pattern) -> bool:
        return (
            isinstance(pattern, CausalPattern)
            and self.attention_mask is None
            and self.query_positions.shape == self.key_positions.shape
            and all(type(p).bias is Position.bias for p in self.positions)
        )

    def get_blocked_window(self, pattern: Pattern) -> tuple[int, int] | None:
        """The reach, when looking only that far is worth it: without a cache and with a text of several reaches."""
        back, ahead = pattern.reach
        if back is None or ahead is None or self.query_positions.shape != self.key_positions.shape:
            return None
        if self.query_positions.shape[-1] < 4 * max(back, ahead, 16) or not self._is_contiguous():
            return None
        return back, ahead

    def is_shift_invariant(self, pattern: Pattern) -> bool:
        """Positions one after the other, and nothing that asks for more than the distance between two of them."""
        biased = any(type(p).bias is not Position.bias for p in self.positions)
        return pattern.relative and self.query_positions.dim() == 1 and not biased

    def _is_contiguous(self) -> bool:
        """No padding between tokens: only then is what is near by position also near by index."""
        if self.attention_mask is None:
            return True
        if self._cached_is_contiguous is None:  # asked once a pass: the answer has to come back from the device
            begins = (self.attention_mask[:, 1:] & ~self.attention_mask[:, :-1]).sum(1) + self.attention_mask[:, 0]
            self._cached_is_contiguous = bool((begins <= 1).all())
        return self._cached_is_contiguous


class Attention(Part):
    """The contract."""

    def __init__(
        self,
        sizes: ModelSizes,
        projection: Projection,
        pattern: Pattern,
        merge: Merge,
        position_parts: Sequence[Position],
    ) -> None:
        super().__init__(sizes)

    def forward(
        self, x: HiddenStates, attention_context: AttentionContext, layer_index: int
    ) -> tuple[HiddenStates, AttentionWeights | None]:
        raise NotImplementedError


@register_part("attention", "composed")
class MultiHeadAttention(Attention):
    """Projection, positions, pattern and merge in a row, then an output matrix."""

    def __init__(
        self,
        sizes: ModelSizes,
        projection: Projection,
        pattern: Pattern,
        merge: Merge,
        position_parts: Sequence[Position],
        *,
        output_bias: bool = True,
    ) -> None:
        super().__init__(sizes, projection, pattern, merge, position_parts)
        self.projection, self.pattern, self.merge = projection, pattern, merge
        self.output = nn.Linear(sizes.heads * sizes.head_dim, sizes.width, bias=output_bias)

    @property
    def violates(self) -> frozenset[Invariant]:
        return self.projection.violates | self.pattern.violates | self.merge.violates

    def forward(
        self, x: HiddenStates, attention_context: AttentionContext, layer_index: int
    ) -> tuple[HiddenStates, AttentionWeights | None]:
        q, k, v = self.projection(x)
        for position in attention_context.positions:
            q, k = (
                position.rotate(q, attention_context.query_positions),
                position.rotate(k, attention_context.query_positions),
            )
        memory = attention_context.layer_caches[layer_index] if attention_context.layer_caches is not None else None
        if memory is not None:
            k, v = memory.extend(k, v)
        if k.shape[1] < q.shape[1]:  # several queries share a key
            shared = q.shape[1] // k.shape[1]
            k, v = k.repeat_interleave(shared, dim=1), v.repeat_interleave(shared, dim=1)
        heads, maps = self._attend(q, k, v, attention_context)
        # Whose positions are these? Only the queries': with a cache, padding is known for all keys.
        valid = None if attention_context.attention_mask is None else attention_context.attention_mask[:, -q.shape[2] :]
        heads, carried = self.merge(heads, valid, memory.merge if memory is not None else None)
        if memory is not None:
            memory.merge = carried
        out: Tensor = self.output(heads.transpose(1, 2).flatten(2))
        return out, maps

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, attention_context: AttentionContext
    ) -> tuple[Tensor, Tensor | None]:
        dropout = self.sizes.dropout if self.training else 0.0
        if attention_context.attn_implementation == "eager" or attention_context.maps:
            heads, maps = attention_functions.eager_attention(
                q, k, v, *attention_context.get_mask_and_bias(self.pattern), dropout
            )
            return heads, maps if attention_context.maps else None
        if attention_context.is_plain_causal(self.pattern):
            return attention_functions.causal_sdpa_attention(q, k, v, dropout), None
        if reach := attention_context.get_blocked_window(self.pattern):
            between = partial(attention_context.between, self.pattern)
            alike = attention_context.is_shift_invariant(self.pattern)
            return attention_functions.blocked_attention(
                q,
                k,
                v,
                attention_context.query_positions,
                reach,
                between,
                attention_context.attention_mask,
                dropout,
                is_shift_invariant=alike,
            ), None
        return attention_functions.sdpa_attention(
            q, k, v, *attention_context.get_mask_and_bias(self.pattern), dropout
        ), None
