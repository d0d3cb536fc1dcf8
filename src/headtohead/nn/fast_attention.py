"""Attention in fast decoding: one query per sequence, with the keys and values of the KV cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from headtohead.nn.fast_parts import (
    ContextHolder,
    RopeFactors,
    build_all_fast_forms,
    build_projection,
    build_residual_linear,
    find_fast_form,
    register_fast_form,
)
from headtohead.nn.kv_cache import LayerKVCache
from headtohead.nn.parts import merge, pattern
from headtohead.nn.parts.attention import MultiHeadAttention
from headtohead.nn.parts.base import ModelSizes
from headtohead.nn.parts.norm import Norm
from headtohead.nn.parts.position import Position

TokenStates = Float[Tensor, "batch width"]
"""Hidden states of the new token of each sequence."""


@runtime_checkable
class TransformerModules(Protocol):
    """The attributes of `Transformer` that fast decoding reads."""

    training: bool
    sizes: ModelSizes
    embedding: nn.Module
    embedding_steps: nn.ModuleDict
    embedding_projection: nn.Module
    embedding_norm: Norm
    layers: nn.ModuleList
    stack: nn.Module
    final_norm: Norm
    output: nn.Module
    output_steps: nn.ModuleDict

    @property
    def position_parts(self) -> list[Position]: ...
    @property
    def max_positions(self) -> int | None: ...
    def check_length(self, num_positions: int) -> None: ...


class FastPositions:
    """The position parts of a model, grouped by what a decoding step has to compute for them.

    Parts are applied in the order of the model. The fast forms of additive parts are only used if each of them has one;
    the same holds for rotary parts. Otherwise, the parts are called as modules: `adding_parts`, `rotating_parts`.
    """

    def __init__(self, model: TransformerModules, context_holder: ContextHolder) -> None:
        """Collect the position parts of a model, by how they act on attention during fast decoding."""
        parts = model.position_parts
        self.parts = tuple(parts)
        additive_parts = [part for part in parts if type(part).add_positions is not Position.add_positions]
        rotary_parts = [part for part in parts if type(part).rotate is not Position.rotate]
        self.bias_parts = [part for part in parts if type(part).compute_bias is not Position.compute_bias]
        self.position_tables: list[Tensor] | None = build_all_fast_forms(additive_parts)
        self.adding_parts = additive_parts if self.position_tables is None else []
        self.rope_factors: list[RopeFactors] | None = build_all_fast_forms(rotary_parts)
        self.rotating_parts = rotary_parts if self.rope_factors is None else []
        self.has_rotary_parts = bool(rotary_parts)
        if self.adding_parts or self.rotating_parts or self.bias_parts:
            context_holder.require()


@dataclass
class DecodingStepContext:
    """What all layers share in one decoding step."""

    cache_views: Iterator[tuple[Tensor, Tensor, Tensor]]
    """For each layer: the slot for the new key and value, all keys, all values."""
    is_mask_free: bool = True
    """True without padding and without parts that need position ids."""
    position_ids: Int[Tensor, "*b 1"] | None = None
    key_positions: Int[Tensor, "*b key"] | None = None
    padding_bias: Float[Tensor, "batch 1 1 key"] | None = None
    """Minus infinity on padding, 0 elsewhere; None without padding."""
    rope_factors: Sequence[tuple[Tensor, Tensor, int]] = ()
    """For each rotary part: cosines, sines and the number of rotated dimensions."""
    score_biases: dict[int, Tensor | None] = field(default_factory=dict)
    """Summed biases of the attention scores, by the id of a layer's pattern."""

    def require_position_ids(self) -> Tensor:
        """Return the position ids of the new tokens, which are set because a part needs them."""
        assert self.position_ids is not None
        return self.position_ids


def build_mask_bias(is_masked: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the bias to add to attention scores: minus infinity where `is_masked` is True, 0 elsewhere."""
    return torch.zeros(is_masked.shape, dtype=dtype, device=is_masked.device).masked_fill_(is_masked, -torch.inf)


# The fast form of a pattern is the number of latest tokens that a new token attends to, None for all of them: keys and
# values are sliced instead of masked.
register_fast_form(pattern.CausalPattern)(lambda part: None)
register_fast_form(pattern.SlidingWindowPattern)(lambda part: part.size)
# Head outputs are adjacent in memory, so concatenating them needs no computation.
register_fast_form(merge.ConcatHeads)(lambda part: None)


class FastAttention:
    """Multi-head attention for one query per sequence."""

    def __init__(
        self,
        model: TransformerModules,
        part: MultiHeadAttention,
        positions: FastPositions,
        layer_cache: LayerKVCache,
        context_holder: ContextHolder,
    ) -> None:
        """Collect what a layer's attention needs to process one query per sequence."""
        self.layer_cache, self.pattern, self.context_holder = layer_cache, part.pattern, context_holder
        self.heads, self.head_dim = model.sizes.heads, model.sizes.head_dim
        self.scale, self.dtype = self.head_dim**-0.5, part.output.weight.dtype
        self.project, self.key_heads = build_projection(part, context_holder), part.projection.key_heads
        self.queries_per_key = self.heads // self.key_heads
        get_window_size = find_fast_form(part.pattern)
        self.is_pattern_mask_free = get_window_size is not None
        self.window_size: int | None = None if get_window_size is None else get_window_size(part.pattern)
        self.rotating_parts, self.bias_parts = positions.rotating_parts, positions.bias_parts
        self.has_rotary_parts = positions.has_rotary_parts
        merge_parts = [part.merge, *part.merge_steps.values()]
        self.merge_parts = [merge_part for merge_part in merge_parts if find_fast_form(merge_part) is None]
        self.output = build_residual_linear(part.output.weight, part.output.bias)
        self.needs_key_positions = bool(self.bias_parts) or not self.is_pattern_mask_free
        if self.merge_parts or not self.is_pattern_mask_free:
            context_holder.require()

    def __call__(self, x: TokenStates, step_context: DecodingStepContext, residual: TokenStates) -> TokenStates:
        """Append the new keys and values to the cache; return the attention output plus `residual`, (batch, width)."""
        heads, key_heads, head_dim = self.heads, self.key_heads, self.head_dim
        qkv = self.project(x)  # (batch, (heads + 2 key_heads) * head_dim)
        if self.has_rotary_parts:
            qkv = self._rotate_queries_and_keys(qkv, step_context)
        batch_size, width = qkv.shape[0], heads * head_dim
        queries, new_keys_values = qkv.split_with_sizes((width, 2 * key_heads * head_dim), 1)
        queries = queries.view(batch_size, key_heads, self.queries_per_key, head_dim)
        if batch_size == 1:
            new_keys_values = new_keys_values.view(2, 1, key_heads, 1, head_dim)
        else:
            new_keys_values = new_keys_values.view(batch_size, 2, key_heads, 1, head_dim).transpose(0, 1)
        cache_slot, keys, values = next(step_context.cache_views)
        cache_slot.copy_(new_keys_values)
        key_start, bias = 0, None
        if self.window_size is not None and (key_start := max(0, keys.shape[2] - self.window_size)):
            keys, values = keys[:, :, key_start:], values[:, :, key_start:]
        if not step_context.is_mask_free:
            bias = self._get_score_bias(step_context, key_start)
        head_outputs = self._attend_to_cache(queries, keys, values, bias)
        if self.merge_parts:
            head_outputs = head_outputs.reshape(batch_size, heads, 1, head_dim)
            for merge_part in self.merge_parts:
                head_outputs = merge_part(head_outputs, x[:, None], self.context_holder.context)
        return self.output(head_outputs.reshape(batch_size, width), residual)

    def _rotate_queries_and_keys(self, qkv: Tensor, step_context: DecodingStepContext) -> Tensor:
        """Apply all rotary parts to the queries and keys in `qkv`, (batch, (heads + 2 key_heads) * head_dim)."""
        num_rotated = self.heads + self.key_heads
        heads = qkv.view(qkv.shape[0], -1, self.head_dim)
        rotated, values = heads[:, :num_rotated], heads[:, num_rotated:]
        for cos, sin, rotary_dim in step_context.rope_factors:
            first_half, second_half = rotated[..., :rotary_dim].chunk(2, dim=-1)
            unrotated = [rotated[..., rotary_dim:]] if rotary_dim < self.head_dim else []
            rotated = torch.cat(
                (first_half * cos - second_half * sin, second_half * cos + first_half * sin, *unrotated), dim=-1
            )
        if self.rotating_parts:
            q, k = rotated[:, : self.heads, None], rotated[:, self.heads :, None]
            for part in self.rotating_parts:
                q, k = part.rotate(q, k, self.context_holder.context)
            rotated = torch.cat((q, k), dim=1)[:, :, 0]
        return torch.cat((rotated, values), dim=1).flatten(1)

    def _attend_to_cache(self, queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None) -> Tensor:
        """Return the head outputs of one query per sequence, given all cached keys and values."""
        if queries.shape[0] == 1:
            return F.scaled_dot_product_attention(queries, keys, values, attn_mask=bias)
        # For a batch with one query per sequence, two small products are faster than the fused kernel.
        batch_size, key_heads, queries_per_key, head_dim = queries.shape
        scores = torch.bmm(queries.reshape(-1, queries_per_key, head_dim), keys.flatten(0, 1).transpose(1, 2)).mul_(
            self.scale
        )
        if bias is not None:
            scores = (scores.view(batch_size, key_heads, queries_per_key, -1) + bias).flatten(0, 1)
        return torch.bmm(scores.softmax(-1), values.flatten(0, 1))

    def _get_score_bias(self, step_context: DecodingStepContext, key_start: int) -> Tensor | None:
        """Return the bias to add to the attention scores, (batch or 1, key_heads or 1, queries_per_key or 1, key).

        Layers with the same pattern share it.
        """
        if self.is_pattern_mask_free and not self.bias_parts:
            bias = step_context.padding_bias
        else:
            if id(self.pattern) not in step_context.score_biases:
                step_context.score_biases[id(self.pattern)] = self._compute_score_bias(step_context)
            bias = step_context.score_biases[id(self.pattern)]
        return bias if bias is None or not key_start else bias[..., key_start:]

    def _compute_score_bias(self, step_context: DecodingStepContext) -> Tensor | None:
        """Return the sum of padding, position and pattern biases; None if there are none."""
        query_positions, key_positions = step_context.require_position_ids(), step_context.key_positions
        assert key_positions is not None
        total_bias = step_context.padding_bias
        for part in self.bias_parts:
            bias = part.compute_bias(query_positions, key_positions, self.context_holder.context)
            if bias is not None:
                bias = bias if bias.dim() == 4 else bias[None]
                grouped_bias = bias.expand(-1, self.heads, -1, -1).reshape(
                    len(bias), self.key_heads, -1, bias.shape[-1]
                )
                total_bias = grouped_bias if total_bias is None else total_bias + grouped_bias
        if not self.is_pattern_mask_free:
            mask = self.pattern.compute_mask(query_positions, key_positions, self.context_holder.context)
            mask = (mask if mask.dim() == 3 else mask[None])[:, None]
            mask_bias = build_mask_bias(~mask, self.dtype)
            total_bias = mask_bias if total_bias is None else total_bias + mask_bias
        return None if total_bias is None else total_bias.to(self.dtype)
