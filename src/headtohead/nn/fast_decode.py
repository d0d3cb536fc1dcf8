"""Fast decoding: compute the next-token logits for one new token per sequence, without the overhead of module calls.

In a small model, a decoding step is mostly Python overhead: about eighty module calls to multiply a few vectors. A
decoder is therefore built once per batch. Queries, keys and values share one weight matrix, identities are skipped, and
every part is a plain function of a (batch, width) tensor, its fast form. `fast_parts` and this module register fast
forms by exact class; other parts are called as modules. Only the built-in stack, embedding, output layer, attention and
blocks are supported. For other models, `build_fast_decoder` returns None, and the reference
`Transformer.next_token_logits` is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from headtohead.nn.fast_attention import (
    DecodingStepContext,
    FastAttention,
    FastPositions,
    TokenStates,
    TransformerModules,
    build_mask_bias,
)
from headtohead.nn.fast_parts import (
    ContextHolder,
    ResidualFunction,
    TensorFunction,
    build_all_fast_forms,
    build_feedforward,
    build_norm,
    find_fast_form,
    register_fast_form,
)
from headtohead.nn.kv_cache import KVCache, LayerKVCache
from headtohead.nn.layer import TransformerLayer
from headtohead.nn.parts import block
from headtohead.nn.parts.attention import MultiHeadAttention
from headtohead.nn.parts.context import ForwardContext
from headtohead.nn.parts.stack import SequentialStack


@torch.no_grad()
def build_fast_decoder(model: TransformerModules, cache: KVCache) -> Callable[[Tensor], Tensor] | None:
    """Return a function from (batch, 1) token ids to next-token logits, or None if a part has no fast form."""
    if model.training or not model.sizes.is_causal or type(model.stack) is not SequentialStack:
        return None
    if len(model.embedding_steps) or len(model.output_steps) or type(model.embedding_projection) is not nn.Identity:
        return None
    form_builders = [find_fast_form(part) for part in (model.embedding, model.output)]
    context_holder = ContextHolder()
    positions = FastPositions(model, context_holder)
    layers = [
        _build_fast_layer(model, layer, positions, layer_cache, context_holder)  # type: ignore[arg-type]
        for layer, layer_cache in zip(model.layers, cache.layer_caches, strict=True)
    ]
    fast_layers = [layer for layer in layers if layer is not None]
    if None in form_builders or len(fast_layers) < len(layers):
        return None
    return FastDecoder(model, cache, positions, fast_layers, context_holder)


class FastDecoder:
    """Runs decoding steps for a batch of sequences that share a KV cache."""

    def __init__(
        self,
        model: TransformerModules,
        cache: KVCache,
        positions: FastPositions,
        layers: Sequence[_FastBlock],
        context_holder: ContextHolder,
    ) -> None:
        """Prepare fast decoding with the current weights of a model."""
        self.model, self.cache, self.positions, self.layers, self.context_holder = (
            model,
            cache,
            positions,
            layers,
            context_holder,
        )
        self.embedding_norm = build_norm(model.embedding_norm, context_holder)
        self.final_norm = build_norm(model.final_norm, context_holder)
        self.token_embeddings: Tensor
        self.output: TensorFunction
        self.token_embeddings, self.output = build_all_fast_forms((model.embedding, model.output))  # type: ignore[misc]
        self.max_positions = model.max_positions
        self.kv_buffer: Tensor | None = None
        self.first_layer_buffer: Tensor | None = None
        needs_key_positions = any(layer.attention.needs_key_positions for layer in layers)
        self.needs_position_ids = positions.has_rotary_parts or needs_key_positions or context_holder.is_required

    def __call__(self, input_ids: Int[Tensor, "batch 1"]) -> Float[Tensor, "batch vocab"]:
        """Return the next-token logits after the new tokens, which are appended to the cache."""
        start = self.cache.length
        step_context = self._build_step_context(start, input_ids)
        x = self._embed_tokens(input_ids)
        for position_table in self.positions.position_tables or ():
            if step_context.padding_bias is None:
                x = x + position_table.select(0, start)
            else:
                x = x + F.embedding(step_context.require_position_ids()[:, 0], position_table)
        for part in self.positions.adding_parts:
            x = part.add_positions(x[:, None], self.context_holder.context)[:, 0]
        if self.embedding_norm is not None:
            x = self.embedding_norm(x)
        if self.context_holder.is_required:
            context = self.context_holder.context
            for index, layer in enumerate(self.layers):
                context.enter_layer(index)
                x = layer(x, step_context)
            context.enter_layer(len(self.layers))
        else:
            for layer in self.layers:
                x = layer(x, step_context)
        return self.output(x if self.final_norm is None else self.final_norm(x))

    def _embed_tokens(self, input_ids: Int[Tensor, "batch 1"]) -> TokenStates:
        """Return the embeddings of the new tokens. A slice is faster than a lookup for a single token on the CPU."""
        if input_ids.shape[0] == 1 and input_ids.device.type == "cpu":
            token_id = int(input_ids)
            return self.token_embeddings[token_id : token_id + 1]
        return F.embedding(input_ids.select(1, 0), self.token_embeddings)

    def _build_step_context(self, start: int, input_ids: Tensor) -> DecodingStepContext:
        """Advance the cache by one token per sequence; return the position ids, padding bias and RoPE factors."""
        cache, cache_views = self.cache, self._reserve_cache_views(input_ids.shape[0])
        if cache.attention_mask is None:
            self._check_length(start + 1)
            if not self.needs_position_ids:
                cache.length += 1
                return DecodingStepContext(cache_views)
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
            padding_bias = build_mask_bias(~attention_mask, dtype)[:, None, None]
        rope_factors = [compute(position_ids, dtype) for compute in self.positions.rope_factors or ()]
        if self.context_holder.is_required:
            self.context_holder.context = ForwardContext(
                input_ids,
                position_ids,
                key_positions,
                key_mask=attention_mask,
                num_layers=len(self.layers),
                cache=cache,
            )
        return DecodingStepContext(cache_views, False, position_ids, key_positions, padding_bias, rope_factors)

    def _reserve_cache_views(self, batch_size: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Reserve space for one more token in every layer; yield the new slot, all keys and all values of each layer.

        All layers share one buffer, which is sliced once per step.
        """
        layer_caches = self.cache.layer_caches
        length, buffer = layer_caches[0].length, self.kv_buffer
        if buffer is None or layer_caches[0].buffer is not self.first_layer_buffer or length >= buffer.shape[4]:
            buffer = self._gather_layer_caches(batch_size, length)
        for layer_cache in layer_caches:
            layer_cache.length = length + 1
        new_slots = buffer.narrow(4, length, 1).unbind(0)
        filled_views = buffer.narrow(4, 0, length + 1).flatten(0, 1).unbind(0)
        return zip(new_slots, filled_views[::2], filled_views[1::2], strict=True)

    def _gather_layer_caches(self, batch_size: int, length: int) -> Tensor:
        """Copy all layer caches into one buffer with spare capacity. Called at the first step, when the buffer is full,
        and after sequences were selected.
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
        """Raise the model's ModelError if it does not support this many positions."""
        if self.max_positions is not None and num_positions > self.max_positions:
            self.model.check_length(num_positions)


# ---- blocks


@dataclass
class _FastBlock:
    """The fast form of one layer: its block, with the attention and the feed-forward layer that it combines."""

    attention: FastAttention
    feedforward: ResidualFunction | None
    first_norm: TensorFunction | None
    second_norm: TensorFunction | None = None

    def __call__(self, x: TokenStates, step_context: DecodingStepContext) -> TokenStates:
        raise NotImplementedError


def _build_fast_layer(
    model: TransformerModules,
    layer: TransformerLayer,
    positions: FastPositions,
    layer_cache: LayerKVCache,
    context_holder: ContextHolder,
) -> _FastBlock | None:
    """Return a layer's fast form, or None if its block or attention has none, or it has its own position parts."""
    build_block = find_fast_form(layer.block)
    if build_block is None or type(layer.attention) is not MultiHeadAttention:
        return None
    if layer.attention.positions != positions.parts:
        return None
    attention = FastAttention(model, layer.attention, positions, layer_cache, context_holder)
    feedforward = None if layer.feedforward.is_absent else build_feedforward(layer.feedforward, context_holder)
    fast_block: _FastBlock = build_block(layer.block, attention, feedforward, context_holder)
    return fast_block


class _FastPreNormBlock(_FastBlock):
    def __call__(self, x: TokenStates, step_context: DecodingStepContext) -> TokenStates:
        x = self.attention(x if self.first_norm is None else self.first_norm(x), step_context, x)
        if self.feedforward is None:
            return x
        return self.feedforward(x if self.second_norm is None else self.second_norm(x), x)


class _FastPostNormBlock(_FastBlock):
    def __call__(self, x: TokenStates, step_context: DecodingStepContext) -> TokenStates:
        """Run a post-norm layer for the new tokens of a fast decoding step."""
        x = self.attention(x, step_context, x)
        x = x if self.first_norm is None else self.first_norm(x)
        if self.feedforward is None:
            return x
        x = self.feedforward(x, x)
        return x if self.second_norm is None else self.second_norm(x)


class _FastParallelBlock(_FastBlock):
    def __call__(self, x: TokenStates, step_context: DecodingStepContext) -> TokenStates:
        """Run a layer with parallel attention and feed-forward for the new tokens of a fast decoding step."""
        normed_states = x if self.first_norm is None else self.first_norm(x)
        attention_output = self.attention(normed_states, step_context, x)
        if self.feedforward is None:
            return attention_output
        return self.feedforward(normed_states if self.second_norm is None else self.second_norm(x), attention_output)


def _build_fast_block(
    fast_class: type[_FastBlock],
    norm_names: Sequence[str],
    part: block.Block,
    attention: FastAttention,
    feedforward: ResidualFunction | None,
    context_holder: ContextHolder,
) -> _FastBlock:
    """Return the block of a fast decoder with the norms of `part` that `norm_names` lists, such as `attention_norm`."""
    norms = dict(part.named_children())
    fast_norms = [build_norm(norms[name], context_holder) for name in norm_names if name in norms]
    return fast_class(attention, feedforward, *fast_norms)


register_fast_form(block.PreNormBlock)(partial(_build_fast_block, _FastPreNormBlock, ("attention_norm", "feed_norm")))
register_fast_form(block.PostNormBlock)(partial(_build_fast_block, _FastPostNormBlock, ("attention_norm", "feed_norm")))
register_fast_form(block.ParallelBlock)(partial(_build_fast_block, _FastParallelBlock, ("norm", "feed_norm")))
