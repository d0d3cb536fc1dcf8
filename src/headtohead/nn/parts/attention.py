"""The attention slot, and the inputs that all layers share: position ids, padding, cache and implementation.

Attention is a separate slot for mechanisms that cannot be composed from smaller parts. The default composes a
projection, position parts, a pattern and a merge. Masks and biases are computed once per forward pass and shared by the
layers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from headtohead.nn.parts import attention_functions
from headtohead.nn.parts.base import AttentionImplementation, Invariant, ModelSizes, Part, declares
from headtohead.nn.parts.merge import Merge
from headtohead.nn.parts.pattern import Pattern
from headtohead.nn.parts.position import Position
from headtohead.nn.parts.projection import Projection
from headtohead.nn.parts.registry import register_part

HiddenStates = Float[Tensor, "batch length width"]
AttentionWeights = Float[Tensor, "batch heads query key"]


class LayerKVCache:
    """One layer's keys and values, and the state of its merge. The decoder owns it, not the model."""

    def __init__(self) -> None:
        self.length = 0
        self.buffer: Float[Tensor, "2 batch heads capacity head_dim"] | None = None
        """Keys and values, with unused capacity at the end."""
        self.merge_state: Tensor | None = None

    def reserve(self, num_new_tokens: int, reference: Float[Tensor, "batch heads new head_dim"]) -> Tensor:
        """Return the buffer with capacity for more tokens. Capacity doubles, so that most steps copy nothing."""
        end = self.length + num_new_tokens
        if self.buffer is None or end > self.buffer.shape[3]:
            batch, heads, _, head_dim = reference.shape
            grown = reference.new_empty(2, batch, heads, max(64, 2 * end), head_dim)
            if self.buffer is not None:
                grown[:, :, :, : self.length] = self.buffer[:, :, :, : self.length]
            self.buffer = grown
        return self.buffer

    def update(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append keys and values; return all of them, (batch, heads, length, head_dim) each."""
        buffer, end = self.reserve(keys.shape[2], keys), self.length + keys.shape[2]
        buffer[0, :, :, self.length : end] = keys
        buffer[1, :, :, self.length : end] = values
        self.length = end
        return buffer[0, :, :, :end], buffer[1, :, :, :end]

    def select_rows(self, row_indices: Int[Tensor, " kept"]) -> None:
        """Keep these batch rows, in this order. Indices may repeat."""
        if self.buffer is not None:
            self.buffer = self.buffer[:, row_indices]
        if self.merge_state is not None:
            self.merge_state = self.merge_state[row_indices]


@dataclass
class AttentionContext:
    """Inputs to one forward pass that all layers share."""

    query_positions: Int[Tensor, "*b query"]
    key_positions: Int[Tensor, "*b key"]
    position_parts: Sequence[Position]
    attention_mask: Bool[Tensor, "batch key"] | None = None
    """False on padding."""
    attn_implementation: AttentionImplementation = "sdpa"
    output_attentions: bool = False
    layer_caches: Sequence[LayerKVCache] | None = None
    _mask_cache: dict[int, tuple[Tensor | None, Tensor | None]] = field(default_factory=dict)
    _cached_is_contiguous: bool | None = None

    def get_mask_and_bias(self, pattern: Pattern) -> tuple[Tensor | None, Tensor | None]:
        """Return (mask, bias), broadcastable to (batch, heads, query, key). Masked pairs are False."""
        if id(pattern) not in self._mask_cache:
            mask, bias = self.compute_mask_and_bias(pattern, self.query_positions, self.key_positions)
            mask = mask[..., None, :, :]
            if self.attention_mask is not None:
                mask = mask & self.attention_mask[:, None, None, :]
            self._mask_cache[id(pattern)] = (mask, bias)
        return self._mask_cache[id(pattern)]

    def compute_mask_and_bias(
        self, pattern: Pattern, query_positions: Tensor, key_positions: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """Return the pattern's mask and the summed position biases between any two sets of positions."""
        biases = [b for p in self.position_parts if (b := p.compute_bias(query_positions, key_positions)) is not None]
        bias = sum(biases[1:], biases[0]) if biases else None
        return pattern.compute_mask(query_positions, key_positions), bias

    def is_plain_causal(self, pattern: Pattern) -> bool:
        """Return whether PyTorch's `is_causal=True` gives the same result as the mask."""
        return (
            declares(pattern, "is_plain_causal")
            and self.attention_mask is None
            and self.query_positions.shape == self.key_positions.shape
            and not self._has_bias()
        )

    def get_blocked_window(self, pattern: Pattern) -> tuple[int, int] | None:
        """Return the pattern's window if blocked attention applies and pays off: without a cache, for a long enough
        text.
        """
        back, ahead = pattern.window_size
        if back is None or ahead is None or self.query_positions.shape != self.key_positions.shape:
            return None
        if self.query_positions.shape[-1] < 4 * max(back, ahead, 16) or not declares(pattern, "window_size"):
            return None
        return (back, ahead) if self._is_contiguous() else None

    def is_shift_invariant(self, pattern: Pattern) -> bool:
        """Return whether the mask and the bias depend only on the distance between positions."""
        return declares(pattern, "is_relative") and self.query_positions.dim() == 1 and not self._has_bias()

    def _has_bias(self) -> bool:
        return any(type(part).compute_bias is not Position.compute_bias for part in self.position_parts)

    def _is_contiguous(self) -> bool:
        """Return whether no padding lies between tokens: only then are adjacent positions at adjacent indices."""
        if self.attention_mask is None:
            return True
        if self._cached_is_contiguous is None:  # computed once per pass, because it synchronises with the device
            starts = (self.attention_mask[:, 1:] & ~self.attention_mask[:, :-1]).sum(1) + self.attention_mask[:, 0]
            self._cached_is_contiguous = bool((starts <= 1).all())
        return self._cached_is_contiguous


class Attention(Part):
    """Base class of attention parts."""

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
        """Return the attention output, and the weights if `attention_context.output_attentions` is set."""
        raise NotImplementedError


@register_part("attention", "composed")
class MultiHeadAttention(Attention):
    """Projection, position parts, pattern and merge in sequence, then an output matrix."""

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
        """Project, rotate, attend and merge heads; return the output, (batch, length, width), and the attention
        weights.
        """
        q, k, v = self.projection(x)
        position_ids = attention_context.query_positions
        for part in attention_context.position_parts:
            q, k = part.rotate(q, position_ids), part.rotate(k, position_ids)
        cache = attention_context.layer_caches[layer_index] if attention_context.layer_caches is not None else None
        if cache is not None:
            k, v = cache.update(k, v)
        if k.shape[1] < q.shape[1]:  # grouped-query attention: several query heads share a key head
            queries_per_key = q.shape[1] // k.shape[1]
            k, v = k.repeat_interleave(queries_per_key, dim=1), v.repeat_interleave(queries_per_key, dim=1)
        heads, weights = self._attend(q, k, v, attention_context)
        # The merge sees query positions only. With a cache, the mask covers all keys; its last entries belong to the
        # queries.
        mask = attention_context.attention_mask
        query_mask = None if mask is None else mask[:, -q.shape[2] :]
        heads, merge_state = self.merge(heads, query_mask, cache.merge_state if cache is not None else None)
        if cache is not None:
            cache.merge_state = merge_state
        out: Tensor = self.output(heads.transpose(1, 2).flatten(2))
        return out, weights

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, attention_context: AttentionContext
    ) -> tuple[Tensor, Tensor | None]:
        """Return (heads, weights), computed by the fastest implementation that applies."""
        dropout, pattern = self.sizes.dropout if self.training else 0.0, self.pattern
        if attention_context.attn_implementation == "eager" or attention_context.output_attentions:
            mask, bias = attention_context.get_mask_and_bias(pattern)
            heads, weights = attention_functions.eager_attention(q, k, v, mask, bias, dropout)
            return heads, weights if attention_context.output_attentions else None
        if attention_context.is_plain_causal(pattern):
            return attention_functions.causal_sdpa_attention(q, k, v, dropout), None
        if window_size := attention_context.get_blocked_window(pattern):
            return attention_functions.blocked_attention(
                q,
                k,
                v,
                attention_context.query_positions,
                window_size,
                partial(attention_context.compute_mask_and_bias, pattern),
                attention_context.attention_mask,
                dropout,
                is_shift_invariant=attention_context.is_shift_invariant(pattern),
            ), None
        mask, bias = attention_context.get_mask_and_bias(pattern)
        return attention_functions.sdpa_attention(q, k, v, mask, bias, dropout), None
