"""Fast decoding: compute the next-token logits for one new token per row, without the overhead of module calls.

In a small model, a decoding step is mostly Python overhead: some eighty module calls to multiply a few vectors. A
decoder is therefore built once per text: queries, keys and values share one weight matrix, identities are skipped, and
every part is a plain function of a (rows, width) tensor. `fast_parts` and this module register these functions by exact
class; parts without one are called as modules. Only `MultiHeadAttention` and the three built-in blocks can be composed
this way. For anything else `build_fast_decoder` returns None, and `Transformer.next_token_logits`, the reference, is
used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from headtohead.nn.fast_parts import (
    ResidualFunction,
    RopeFactors,
    TensorFunction,
    build_all_fast_forms,
    build_feed_forward,
    build_linear,
    build_norm,
    build_projection,
    build_residual_linear,
    find_fast_form,
    register_fast_form,
)
from headtohead.nn.kv_cache import KVCache
from headtohead.nn.layer import TransformerLayer
from headtohead.nn.parts import block, merge, pattern
from headtohead.nn.parts.attention import LayerKVCache, MultiHeadAttention
from headtohead.nn.parts.base import ModelSizes
from headtohead.nn.parts.position import Position

HiddenRows = Float[Tensor, "rows width"]


@runtime_checkable
class TransformerModules(Protocol):
    """The attributes of `Transformer` that fast decoding reads."""

    training: bool
    sizes: ModelSizes
    embedding: nn.Embedding
    embedding_norm: nn.Module
    layers: nn.ModuleList
    final_norm: nn.Module
    output: nn.Linear

    @property
    def position_parts(self) -> list[Position]: ...
    @property
    def max_positions(self) -> int | None: ...
    def check_length(self, num_positions: int) -> None: ...


@torch.no_grad()
def build_fast_decoder(model: TransformerModules, cache: KVCache) -> Callable[[Tensor], Tensor] | None:
    """Return a function from (rows, 1) token ids to next-token logits, or None if a part has no fast form."""
    if model.training or not model.sizes.is_causal:
        return None
    positions = FastPositions(model)
    layers = [
        _build_layer(model, layer, positions, layer_cache)  # type: ignore[arg-type]
        for layer, layer_cache in zip(model.layers, cache.layer_caches, strict=True)
    ]
    fast_layers = [layer for layer in layers if layer is not None]
    return FastDecoder(model, cache, positions, fast_layers) if len(fast_layers) == len(layers) else None


class FastPositions:
    """A model's position parts, sorted by what a decoding step has to compute for them.

    Parts are applied in the model's order, so fast forms are used only if every part that adds or rotates has one."""

    def __init__(self, model: TransformerModules) -> None:
        parts = model.position_parts
        additive = [part for part in parts if type(part).add_positions is not Position.add_positions]
        rotary = [part for part in parts if type(part).rotate is not Position.rotate]
        self.bias_parts = [part for part in parts if type(part).compute_bias is not Position.compute_bias]
        self.tables: list[Tensor] | None = build_all_fast_forms(additive)
        self.adding_parts = additive if self.tables is None else []
        self.rope_factors: list[RopeFactors] | None = build_all_fast_forms(rotary)
        self.rotating_parts = rotary if self.rope_factors is None else []
        self.rotates = bool(rotary)


@dataclass
class StepContext:
    """Inputs to one decoding step that all layers share."""

    cache_views: Iterator[tuple[Tensor, Tensor, Tensor]]
    """For each layer: the slot for the new key and value, all keys, all values."""
    is_mask_free: bool = True
    """True without padding and without parts that need position ids."""
    position_ids: Int[Tensor, "*b 1"] | None = None
    key_positions: Int[Tensor, "*b key"] | None = None
    padding_bias: Float[Tensor, "rows 1 1 key"] | None = None
    """Minus infinity on padding."""
    rope_factors: Sequence[tuple[Tensor, Tensor, int]] = ()
    """For each rotary part: cosines, sines and the number of rotated dimensions."""
    score_biases: dict[int, Tensor | None] = field(default_factory=dict)

    def require_position_ids(self) -> Tensor:
        assert self.position_ids is not None
        return self.position_ids


class FastDecoder:
    """Runs the decoding steps for one text or one batch of texts."""

    def __init__(
        self, model: TransformerModules, cache: KVCache, positions: FastPositions, layers: Sequence[_FastBlock]
    ) -> None:
        self.model, self.cache, self.positions, self.layers = model, cache, positions, layers
        self.token_embeddings = model.embedding.weight
        self.embedding_norm, self.final_norm = build_norm(model.embedding_norm), build_norm(model.final_norm)
        self.output = build_linear(model.output.weight, model.output.bias)
        self.max_positions = model.max_positions
        self.kv_buffer: Tensor | None = None
        self.first_layer_buffer: Tensor | None = None
        needs_key_positions = any(layer.attention.needs_key_positions for layer in layers)
        self.needs_position_ids = bool(positions.adding_parts) or positions.rotates or needs_key_positions

    def __call__(self, input_ids: Int[Tensor, "rows 1"]) -> Float[Tensor, "rows vocab"]:
        start = self.cache.length
        step = self._build_step_context(start, input_ids)
        x = self._embed_tokens(input_ids)
        for table in self.positions.tables or ():
            unpadded = step.padding_bias is None
            x = x + (table.select(0, start) if unpadded else F.embedding(step.require_position_ids()[:, 0], table))
        for part in self.positions.adding_parts:
            x = part.add_positions(x[:, None], step.require_position_ids())[:, 0]
        if self.embedding_norm is not None:
            x = self.embedding_norm(x)
        for layer in self.layers:
            x = layer(x, step)
        return self.output(x if self.final_norm is None else self.final_norm(x))

    def _embed_tokens(self, input_ids: Int[Tensor, "rows 1"]) -> HiddenRows:
        if input_ids.shape[0] == 1 and input_ids.device.type == "cpu":
            token_id = int(input_ids)
            return self.token_embeddings[token_id : token_id + 1]
        return F.embedding(input_ids.select(1, 0), self.token_embeddings)

    def _build_step_context(self, start: int, input_ids: Tensor) -> StepContext:
        """Advance the cache by one token; return this step's position ids, padding bias and RoPE factors."""
        cache, views = self.cache, self._reserve_cache_views(input_ids.shape[0])
        if cache.attention_mask is None:
            self._check_length(start + 1)
            if not self.needs_position_ids:
                cache.length += 1
                return StepContext(views)
            position_ids = torch.tensor([start], device=input_ids.device)
        else:
            past_position_ids = cache.position_ids
            assert past_position_ids is not None
            position_ids = past_position_ids[:, -1:] + 1
            if self.max_positions is not None:
                self._check_length(int(position_ids.max()) + 1)
        key_positions, attention_mask = cache.append_positions(position_ids, None)
        dtype, padding_bias = self.token_embeddings.dtype, None
        if attention_mask is not None:
            padding_bias = _build_mask_bias(~attention_mask, dtype)[:, None, None]
        rope_factors = [compute(position_ids, dtype) for compute in self.positions.rope_factors or ()]
        return StepContext(views, False, position_ids, key_positions, padding_bias, rope_factors)

    def _reserve_cache_views(self, batch_size: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Make room for one more token in every layer. All layers share one buffer, which is sliced once per step."""
        layer_caches = self.cache.layer_caches
        index, buffer = layer_caches[0].length, self.kv_buffer
        if buffer is None or layer_caches[0].buffer is not self.first_layer_buffer or index >= buffer.shape[4]:
            buffer = self._gather_layer_caches(batch_size, index)
        for layer_cache in layer_caches:
            layer_cache.length = index + 1
        new_slots = buffer.narrow(4, index, 1).unbind(0)
        filled = buffer.narrow(4, 0, index + 1).flatten(0, 1).unbind(0)
        return zip(new_slots, filled[::2], filled[1::2], strict=True)

    def _gather_layer_caches(self, batch_size: int, length: int) -> Tensor:
        """Copy all layer caches into one buffer with spare capacity. Called at the first step, when the buffer is full,
        and after row selection.
        """
        layer_caches, attention = self.cache.layer_caches, self.layers[0].attention
        shape = (len(layer_caches), 2, batch_size, attention.key_heads, max(64, 2 * (length + 1)), attention.head_dim)
        buffer = self.token_embeddings.new_empty(shape)
        for layer_cache, layer_buffer in zip(layer_caches, buffer, strict=True):
            if layer_cache.buffer is not None:
                layer_buffer[..., :length, :] = layer_cache.buffer[..., :length, :]
            layer_cache.buffer = layer_buffer
        self.kv_buffer, self.first_layer_buffer = buffer, layer_caches[0].buffer
        return buffer

    def _check_length(self, num_positions: int) -> None:
        if self.max_positions is not None and num_positions > self.max_positions:
            self.model.check_length(num_positions)


def _build_mask_bias(masked: Tensor, dtype: torch.dtype) -> Tensor:
    """Return minus infinity where `masked` is True and 0 elsewhere."""
    return torch.zeros(masked.shape, dtype=dtype, device=masked.device).masked_fill_(masked, -torch.inf)


# ---- blocks


@dataclass
class _FastBlock:
    attention: _FastAttention
    feed_forward: ResidualFunction | None
    first_norm: TensorFunction | None
    second_norm: TensorFunction | None = None

    def __call__(self, x: HiddenRows, step: StepContext) -> HiddenRows:
        raise NotImplementedError


def _build_layer(
    model: TransformerModules, layer: TransformerLayer, positions: FastPositions, layer_cache: LayerKVCache
) -> _FastBlock | None:
    """Return a layer's fast form, or None if its block or attention has none."""
    build_block = find_fast_form(layer.block)
    if build_block is None or type(layer.attention) is not MultiHeadAttention:
        return None
    attention = _FastAttention(model, layer.attention, positions, layer_cache)
    feed_forward = None if layer.feedforward.is_absent else build_feed_forward(layer.feedforward)
    fast_block: _FastBlock = build_block(layer.block, attention, feed_forward)
    return fast_block


class _FastPreNormBlock(_FastBlock):
    def __call__(self, x: HiddenRows, step: StepContext) -> HiddenRows:
        x = self.attention(x if self.first_norm is None else self.first_norm(x), step, x)
        if self.feed_forward is None:
            return x
        return self.feed_forward(x if self.second_norm is None else self.second_norm(x), x)


class _FastPostNormBlock(_FastBlock):
    def __call__(self, x: HiddenRows, step: StepContext) -> HiddenRows:
        x = self.attention(x, step, x)
        x = x if self.first_norm is None else self.first_norm(x)
        if self.feed_forward is None:
            return x
        x = self.feed_forward(x, x)
        return x if self.second_norm is None else self.second_norm(x)


class _FastParallelBlock(_FastBlock):
    def __call__(self, x: HiddenRows, step: StepContext) -> HiddenRows:
        normed = x if self.first_norm is None else self.first_norm(x)
        x = self.attention(normed, step, x)
        return x if self.feed_forward is None else self.feed_forward(normed, x)


def _build_block(
    fast_class: type[_FastBlock],
    norm_names: Sequence[str],
    part: block.Block,
    attention: _FastAttention,
    feed_forward: ResidualFunction | None,
) -> _FastBlock:
    """Return a fast block with those norms of `part` that `norm_names` lists."""
    return fast_class(attention, feed_forward, *(build_norm(part.get_submodule(name)) for name in norm_names))


register_fast_form(block.PreNormBlock)(partial(_build_block, _FastPreNormBlock, ("attention_norm", "feed_norm")))
register_fast_form(block.PostNormBlock)(partial(_build_block, _FastPostNormBlock, ("attention_norm", "feed_norm")))
register_fast_form(block.ParallelBlock)(partial(_build_block, _FastParallelBlock, ("norm",)))


# ---- attention


# The number of cached tokens that a new token attends to, None for all of them. A slice replaces the mask.
register_fast_form(pattern.CausalPattern)(lambda part: None)
register_fast_form(pattern.SlidingWindowPattern)(lambda part: part.size)
# Heads are stored concatenated, so there is nothing to compute.
register_fast_form(merge.ConcatHeads)(lambda part: None)


class _FastAttention:
    """Multi-head attention for one query per row."""

    def __init__(
        self, model: TransformerModules, part: MultiHeadAttention, positions: FastPositions, layer_cache: LayerKVCache
    ) -> None:
        self.layer_cache, self.pattern = layer_cache, part.pattern
        self.heads, self.head_dim = model.sizes.heads, model.sizes.head_dim
        self.scale, self.dtype = self.head_dim**-0.5, part.output.weight.dtype
        projection = build_projection(part.projection, model.embedding.weight[:1])
        self.project, self.key_heads = projection.project, projection.key_heads
        self.queries_per_key = self.heads // self.key_heads
        get_window = find_fast_form(part.pattern)
        self.is_pattern_mask_free = get_window is not None
        self.window: int | None = None if get_window is None else get_window(part.pattern)
        self.rotating_parts, self.bias_parts = positions.rotating_parts, positions.bias_parts
        self.rotates = positions.rotates
        self.merge: nn.Module | None = part.merge if find_fast_form(part.merge) is None else None
        self.output = build_residual_linear(part.output.weight, part.output.bias)
        self.needs_key_positions = bool(self.bias_parts) or not self.is_pattern_mask_free

    def __call__(self, x: HiddenRows, step: StepContext, residual: HiddenRows) -> HiddenRows:
        """Append the new keys and values to the cache; return the attention output plus `residual`, (rows, width)."""
        heads, key_heads, head_dim = self.heads, self.key_heads, self.head_dim
        qkv = self.project(x)  # (rows, (heads + 2 key_heads) * head_dim)
        if self.rotates:
            qkv = self._rotate_queries_and_keys(qkv, step)
        rows, width = qkv.shape[0], heads * head_dim
        queries, new_keys_values = qkv.split_with_sizes((width, 2 * key_heads * head_dim), 1)
        queries = queries.view(rows, key_heads, self.queries_per_key, head_dim)
        if rows == 1:
            new_keys_values = new_keys_values.view(2, 1, key_heads, 1, head_dim)
        else:
            new_keys_values = new_keys_values.view(rows, 2, key_heads, 1, head_dim).transpose(0, 1)
        cache_slot, keys, values = next(step.cache_views)
        cache_slot.copy_(new_keys_values)
        key_start, bias = 0, None
        if self.window is not None and (key_start := max(0, keys.shape[2] - self.window)):
            keys, values = keys[:, :, key_start:], values[:, :, key_start:]
        if not step.is_mask_free:
            bias = self._get_score_bias(step, key_start)
        output = self._attend(queries, keys, values, bias)
        if self.merge is not None:
            cache = self.layer_cache
            output, cache.merge_state = self.merge(output.reshape(rows, heads, 1, head_dim), None, cache.merge_state)
        return self.output(output.reshape(rows, width), residual)

    def _rotate_queries_and_keys(self, qkv: Tensor, step: StepContext) -> Tensor:
        """Apply all rotary parts to the queries and keys in `qkv`."""
        num_rotated = self.heads + self.key_heads
        heads = qkv.view(qkv.shape[0], -1, self.head_dim)
        rotated, values = heads[:, :num_rotated], heads[:, num_rotated:]
        for cos, sin, rotary_dim in step.rope_factors:
            first_half, second_half = rotated[..., :rotary_dim].chunk(2, dim=-1)
            unrotated = [rotated[..., rotary_dim:]] if rotary_dim < self.head_dim else []
            rotated = torch.cat(
                (first_half * cos - second_half * sin, second_half * cos + first_half * sin, *unrotated), dim=-1
            )
        for part in self.rotating_parts:
            rotated = part.rotate(rotated[:, :, None], step.require_position_ids())[:, :, 0]
        return torch.cat((rotated, values), dim=1).flatten(1)

    def _attend(self, queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None) -> Tensor:
        """Return the attention output for one query per row."""
        if queries.shape[0] == 1:
            return F.scaled_dot_product_attention(queries, keys, values, attn_mask=bias)
        # For a batch with one query per row, two small products are faster than the fused kernel.
        rows, key_heads, queries_per_key, head_dim = queries.shape
        scores = torch.bmm(queries.reshape(-1, queries_per_key, head_dim), keys.flatten(0, 1).transpose(1, 2)).mul_(
            self.scale
        )
        if bias is not None:
            scores = (scores.view(rows, key_heads, queries_per_key, -1) + bias).flatten(0, 1)
        return torch.bmm(scores.softmax(-1), values.flatten(0, 1))

    def _get_score_bias(self, step: StepContext, key_start: int) -> Tensor | None:
        """Return the bias to add to the attention scores, (rows or 1, key_heads or 1, queries_per_key or 1, key).

        Layers with the same pattern share it.
        """
        if self.is_pattern_mask_free and not self.bias_parts:
            bias = step.padding_bias
        else:
            if id(self.pattern) not in step.score_biases:
                step.score_biases[id(self.pattern)] = self._compute_score_bias(step)
            bias = step.score_biases[id(self.pattern)]
        return bias if bias is None or not key_start else bias[..., key_start:]

    def _compute_score_bias(self, step: StepContext) -> Tensor | None:
        """Return the sum of padding, position and pattern biases; None if there are none."""
        query_positions, key_positions = step.require_position_ids(), step.key_positions
        assert key_positions is not None
        total_bias = step.padding_bias
        for part in self.bias_parts:
            bias = part.compute_bias(query_positions, key_positions)
            if bias is not None:
                bias = bias if bias.dim() == 4 else bias[None]
                grouped_bias = bias.expand(-1, self.heads, -1, -1).reshape(
                    len(bias), self.key_heads, -1, bias.shape[-1]
                )
                total_bias = grouped_bias if total_bias is None else total_bias + grouped_bias
        if not self.is_pattern_mask_free:
            mask = self.pattern.compute_mask(query_positions, key_positions)
            mask = (mask if mask.dim() == 3 else mask[None])[:, None]
            mask_bias = _build_mask_bias(~mask, self.dtype)
            total_bias = mask_bias if total_bias is None else total_bias + mask_bias
        return None if total_bias is None else total_bias.to(self.dtype)
