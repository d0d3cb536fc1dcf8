"""The quick road of decoding: one more token of each row through a transformer, without the ceremony of modules.

For a small model a step is not arithmetic but overhead: some eighty modules are entered to multiply a few vectors. A
plan is made once a text: weights laid side by side (queries, keys and values in one matrix), what does nothing left
out, and every part as a plain function of the stream. Known parts have a flat form here; an unknown one is called as
the module it is. Only attention that is composed of parts and the three built-in blocks can be planned; for others
there is no quick road, and `Transformer.next_logits`, which is the definition, is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from headtohead.nn.kv_cache import KVCache
from headtohead.nn.parts import attention, block, feedforward, merge, norm, pattern, position, projection
from headtohead.nn.parts.attention import LayerKVCache
from headtohead.nn.parts.position import Position

if TYPE_CHECKING:
    from headtohead.nn.transformer import Transformer, TransformerLayer

HiddenRows = Float[Tensor, "rows width"]
TensorFunction = Callable[[Tensor], Tensor]
ResidualFunction = Callable[[Tensor, Tensor], Tensor]
"""a function of the first that is added to the second"""


@torch.no_grad()
def build_fast_decoder(model: Transformer, cache: KVCache) -> Callable[[Tensor], Tensor] | None:
    """A function that reads one more token of each row, or None when some part has no quick form."""
    layers = [
        _build_fast_layer(model, layer, memory)  # type: ignore[arg-type]
        for layer, memory in zip(model.layers, cache.layer_caches, strict=True)
    ]
    if model.training or not model.is_causal or not all(layers):
        return None
    return FastDecoder(model, cache, [layer for layer in layers if layer is not None])


@dataclass
class StepContext:
    """One step: where its tokens stand, and what they may see."""

    places: Iterator[tuple[Tensor, Tensor, Tensor]]
    """of each layer in turn: where its new keys and values go, all its keys, all its values"""
    plain: bool = True
    """no padding, and nothing that asks for positions"""
    at: Int[Tensor, "*b 1"] | None = None
    """asked for only where a position wants it"""
    key_positions: Int[Tensor, "*b key"] | None = None
    """asked for only where a pattern or a position wants it"""
    padding: Float[Tensor, "rows 1 1 key"] | None = None
    """minus infinity on padding"""
    rope_factors: Sequence[tuple[Tensor, Tensor, int]] = ()
    """cosines and sines of each rotation, and how much of a head is turned"""
    masks: dict[int, Tensor | None] = field(default_factory=dict)


class FastDecoder:
    """The steps of one text."""

    def __init__(self, model: Transformer, cache: KVCache, layers: list[Any]) -> None:
        self.model, self.cache, self.layers = model, cache, layers
        self.table = model.embedding.weight
        parts = [p for p in model.positions if isinstance(p, Position)]
        self.position_tables = [p.table.weight for p in parts if type(p) is position.LearnedPosition]
        self.embedding_parts = [
            p for p in parts if type(p).embed not in (Position.embed, position.LearnedPosition.embed)
        ]
        self.rope_parts = [p for p in parts if isinstance(p, position.RotaryPosition)]
        self.embedding_norm, self.leave = _build_norm(model.embedding_norm), _build_norm(model.final_norm)
        self.output = _build_linear(model.output.weight, model.output.bias)
        self.limit = model.limit
        self.kv_buffer: Tensor | None = None
        self.first: Tensor | None = None
        self.needs_key_positions = any(layer.needs_key_positions for layer in layers)
        rotates = any(type(p).rotate is not Position.rotate for p in parts)
        self.needs_position_ids = bool(self.embedding_parts) or rotates or self.needs_key_positions

    def __call__(self, input_ids: Int[Tensor, "rows 1"]) -> Float[Tensor, "rows vocab"]:
        begin = self.cache.length
        now = self._build_step_context(begin, input_ids)
        x = self._embed_tokens(input_ids)
        for table in self.position_tables:
            x = x + (
                table.select(0, begin) if now.padding is None else F.embedding(_require_position_ids(now)[:, 0], table)
            )
        for part in self.embedding_parts:
            x = part.embed(x[:, None], _require_position_ids(now))[:, 0]
        if self.embedding_norm is not None:
            x = self.embedding_norm(x)
        for layer in self.layers:
            x = layer(x, now)
        return self.output(x if self.leave is None else self.leave(x))

    def _embed_tokens(self, input_ids: Int[Tensor, "rows 1"]) -> HiddenRows:
        if input_ids.shape[0] == 1 and input_ids.device.type == "cpu":
            token = int(input_ids)
            return self.table[token : token + 1]
        return F.embedding(input_ids.select(1, 0), self.table)

    def _build_step_context(self, start: int, input_ids: Tensor) -> StepContext:
        cache, places = self.cache, self._places(input_ids.shape[0])
        if cache.attention_mask is None:
            self._check(start + 1)
            if not self.needs_position_ids:
                cache.length += 1
                return StepContext(places)
            at = torch.tensor([start], device=input_ids.device)
        else:
            seen = cache.at
            assert seen is not None
            at = seen[:, -1:] + 1
            if self.limit is not None:
                self._check(int(at.max()) + 1)
        key_at, valid = cache.extend(at, None)
        padding = None
        if valid is not None:
            padding = _build_mask_bias(~valid, self.table.dtype)[:, None, None]
        turns = [_compute_rope_factors(rope, at, self.table.dtype) for rope in self.rope_parts]
        return StepContext(places, False, at, key_at, padding, turns)

    def _places(self, batch_size: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Room for one more token in every layer. The memories of all layers lie in one tensor: it is cut once a
        step and not once a layer."""
        memories = self.cache.layer_caches
        place = memories[0].length
        whole = self.kv_buffer
        if whole is None or memories[0].room is not self.first or place >= whole.shape[4]:
            whole = self._gather(batch_size, place)
        for memory in memories:
            memory.length = place + 1
        here = whole.narrow(4, place, 1).unbind(0)
        seen = whole.narrow(4, 0, place + 1).flatten(0, 1).unbind(0)
        return zip(here, seen[::2], seen[1::2], strict=True)

    def _gather(self, batch_size: int, length: int) -> Tensor:
        """Lay the memories into one tensor with room to grow: at the first step, when the room is full, and after rows
        were taken or left out."""
        memories, made = self.cache.layer_caches, self.layers[0].attention
        shape = (len(memories), 2, batch_size, made.key_heads, max(64, 2 * (length + 1)), made.head_dim)
        whole = self.table.new_empty(shape)
        for memory, room in zip(memories, whole, strict=True):
            if memory.room is not None:
                room[..., :length, :] = memory.room[..., :length, :]
            memory.room = room
        self.kv_buffer, self.first = whole, memories[0].room
        return whole

    def _check(self, num_positions: int) -> None:
        if self.limit is not None and num_positions > self.limit:
            self.model.check_length(num_positions)


def _require_position_ids(step_context: StepContext) -> Tensor:
    assert step_context.at is not None
    return step_context.at


def _compute_rope_factors(
    rope: position.RotaryPosition, position_ids: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor, int]:
    """Once a step what every layer would compute: (rows, 1, turned / 2)."""
    angle = position_ids[..., None] * rope.frequency
    return angle.cos().to(dtype), angle.sin().to(dtype), rope.turned


def _build_mask_bias(blocked_mask: Tensor, dtype: torch.dtype) -> Tensor:
    """What is added to scores: minus infinity where nothing may be seen."""
    return torch.zeros(blocked_mask.shape, dtype=dtype, device=blocked_mask.device).masked_fill_(
        blocked_mask, -torch.inf
    )


# ---- one layer


def _build_fast_layer(model: Transformer, layer: TransformerLayer, layer_cache: LayerKVCache) -> Any:
    made = _FastAttention.of(model, layer.attention, layer_cache)
    if made is None:
        return None
    feed = None if layer.feedforward.is_absent else _build_feed_forward(layer.feedforward)
    held = layer.block
    if type(held) is block.PreNormBlock:
        return _FastPreNormBlock(made, feed, _build_norm(held.attention_norm), _build_norm(held.feed_norm))
    if type(held) is block.PostNormBlock:
        return _FastPostNormBlock(made, feed, _build_norm(held.attention_norm), _build_norm(held.feed_norm))
    if type(held) is block.ParallelBlock:
        return _FastParallelBlock(made, feed, _build_norm(held.norm), None)
    return None


@dataclass
class _FastBlock:
    attention: _FastAttention
    feed: ResidualFunction | None
    first: TensorFunction | None
    second: TensorFunction | None

    @property
    def needs_key_positions(self) -> bool:
        return self.attention.needs_key_positions


class _FastPreNormBlock(_FastBlock):
    def __call__(self, x: HiddenRows, step_context: StepContext) -> HiddenRows:
        x = self.attention(x if self.first is None else self.first(x), step_context, x)
        return x if self.feed is None else self.feed(x if self.second is None else self.second(x), x)


class _FastPostNormBlock(_FastBlock):
    def __call__(self, x: HiddenRows, step_context: StepContext) -> HiddenRows:
        x = self.attention(x, step_context, x)
        x = x if self.first is None else self.first(x)
        if self.feed is None:
            return x
        x = self.feed(x, x)
        return x if self.second is None else self.second(x)


class _FastParallelBlock(_FastBlock):
    def __call__(self, x: HiddenRows, step_context: StepContext) -> HiddenRows:
        seen = x if self.first is None else self.first(x)
        x = self.attention(seen, step_context, x)
        return x if self.feed is None else self.feed(seen, x)


class _FastAttention:
    """Composed attention for one query a row."""

    @classmethod
    def of(cls, model: Transformer, attention_part: nn.Module, layer_cache: LayerKVCache) -> _FastAttention | None:
        return cls(model, attention_part, layer_cache) if type(attention_part) is attention.MultiHeadAttention else None

    def __init__(
        self, model: Transformer, attention_part: attention.MultiHeadAttention, layer_cache: LayerKVCache
    ) -> None:
        self.memory = layer_cache
        self.heads, self.head_dim = model.sizes.heads, model.sizes.head_dim
        self.scale, self.dtype = self.head_dim**-0.5, attention_part.output.weight.dtype
        self.project, self.key_heads = _build_qkv_projection(attention_part.projection, model.sizes.heads)
        self.queries_per_key = self.heads // self.key_heads
        self.pattern = attention_part.pattern
        self.window_length = (
            attention_part.pattern.size if type(attention_part.pattern) is pattern.SlidingWindowPattern else None
        )
        self.plain = self.window_length is not None or type(attention_part.pattern) is pattern.CausalPattern
        parts = [p for p in model.positions if isinstance(p, Position)]
        self.rotation_parts = [
            p for p in parts if type(p).rotate not in (Position.rotate, position.RotaryPosition.rotate)
        ]
        self.bias_parts = [p for p in parts if type(p).bias is not Position.bias]
        self.merge = None if type(attention_part.merge) is merge.ConcatHeads else attention_part.merge
        self.output = _build_residual_linear(attention_part.output.weight, attention_part.output.bias)
        self.needs_key_positions = bool(self.bias_parts) or not self.plain

    def __call__(self, x: HiddenRows, step_context: StepContext, residual: HiddenRows) -> HiddenRows:
        heads, key_heads, head_dim, memory = self.heads, self.key_heads, self.head_dim, self.memory
        qkv = self.project(x)  # (rows, (heads + 2 key_heads) * head_dim)
        if step_context.rope_factors or self.rotation_parts:
            qkv = self._rotate_queries_and_keys(qkv, step_context)
        rows, wide = qkv.shape[0], heads * head_dim
        queries, both = qkv.split_with_sizes((wide, 2 * key_heads * head_dim), 1)
        queries = queries.view(rows, key_heads, self.queries_per_key, head_dim)  # those that share a key side by side
        if rows == 1:
            both = both.view(2, 1, key_heads, 1, head_dim)
        else:
            both = both.view(rows, 2, key_heads, 1, head_dim).transpose(0, 1)
        here, keys, values = next(step_context.places)
        here.copy_(both)
        begin, mask = 0, None
        if self.window_length is not None and (begin := max(0, keys.shape[2] - self.window_length)):
            keys, values = keys[:, :, begin:], values[:, :, begin:]
        if not step_context.plain:
            mask = self._get_score_bias(step_context, begin)
        seen = self._attend(queries, keys, values, mask)
        if self.merge is not None:
            seen, memory.merge = self.merge(seen.reshape(rows, heads, 1, head_dim), None, memory.merge)
        return self.output(seen.reshape(rows, wide), residual)

    def _rotate_queries_and_keys(self, qkv: Tensor, step_context: StepContext) -> Tensor:
        """Queries and keys turned together, values as they are."""
        turn = self.heads + self.key_heads
        split = qkv.view(qkv.shape[0], -1, self.head_dim)
        turned, values = split[:, :turn], split[:, turn:]
        for cos, sin, width in step_context.rope_factors:
            first, second = turned[..., :width].chunk(2, dim=-1)
            rest = [turned[..., width:]] if width < self.head_dim else []
            turned = torch.cat((first * cos - second * sin, second * cos + first * sin, *rest), dim=-1)
        for part in self.rotation_parts:
            turned = part.rotate(turned[:, :, None], _require_position_ids(step_context))[:, :, 0]
        return torch.cat((turned, values), dim=1).flatten(1)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        if q.shape[0] == 1:
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        # For one query a row of a batch, two small products are quicker than the fused kernel.
        rows, key_heads, shared, head_dim = q.shape
        scores = torch.bmm(q.reshape(-1, shared, head_dim), k.flatten(0, 1).transpose(1, 2)).mul_(self.scale)
        if mask is not None:
            scores = (scores.view(rows, key_heads, shared, -1) + mask).flatten(0, 1)
        return torch.bmm(scores.softmax(-1), v.flatten(0, 1))

    def _get_score_bias(self, step_context: StepContext, key_start: int) -> Tensor | None:
        """What is added to the scores, (rows or 1, key_heads or 1, shared or 1, key): computed once for layers that
        look alike."""
        if self.plain and not self.bias_parts:
            return (
                step_context.padding
                if step_context.padding is None or not key_start
                else step_context.padding[..., key_start:]
            )
        if id(self.pattern) not in step_context.masks:
            step_context.masks[id(self.pattern)] = self._compute_score_bias(step_context)
        mask = step_context.masks[id(self.pattern)]
        return mask if mask is None or not key_start else mask[..., key_start:]

    def _compute_score_bias(self, step_context: StepContext) -> Tensor | None:
        assert step_context.key_positions is not None
        mask = step_context.padding
        for part in self.bias_parts:
            bias = part.bias(_require_position_ids(step_context), step_context.key_positions)
            if bias is not None:
                bias = bias if bias.dim() == 4 else bias[None]
                shaped = bias.expand(-1, self.heads, -1, -1).reshape(len(bias), self.key_heads, -1, bias.shape[-1])
                mask = shaped if mask is None else mask + shaped
        if not self.plain:
            allowed = self.pattern.allows(_require_position_ids(step_context), step_context.key_positions)
            allowed = (allowed if allowed.dim() == 3 else allowed[None])[:, None]
            out = _build_mask_bias(~allowed, self.dtype)
            mask = out if mask is None else mask + out
        return None if mask is None else mask.to(self.dtype)


# ---- parts as plain functions

MAX_TRANSPOSED_NUMEL = 1 << 22
"""weights up to so many numbers are laid out anew, input first, which a product with few rows reads faster"""


def _build_linear(weight: Tensor, bias: Tensor | None) -> TensorFunction:
    if weight.numel() > MAX_TRANSPOSED_NUMEL or weight.device.type != "cpu":
        return lambda x: F.linear(x, weight, bias)
    turned = weight.t().contiguous()
    if bias is None:
        return lambda x: torch.mm(x, turned)
    row = bias[None]
    return lambda x: torch.addmm(row, x, turned)


def _build_residual_linear(weight: Tensor, bias: Tensor | None) -> ResidualFunction:
    """The same, added to the stream."""
    if bias is None and weight.numel() <= MAX_TRANSPOSED_NUMEL and weight.device.type == "cpu":
        turned = weight.t().contiguous()
        return lambda x, onto: torch.addmm(onto, x, turned)
    made = _build_linear(weight, bias)
    return lambda x, onto: made(x).add_(onto)


def _build_qkv_projection(projection_part: nn.Module, heads: int) -> tuple[TensorFunction, int]:
    """From the stream to queries, keys and values in one row of heads; and how many heads the keys have."""
    if type(projection_part) is not projection.LinearProjection:
        return partial(_apply_projection, projection_part), heads
    each = (projection_part.query, projection_part.key, projection_part.value)
    weight = torch.cat([one.weight for one in each])
    bias = torch.cat([one.bias for one in each]) if _has_bias(projection_part.query) else None
    return _build_linear(weight, bias), projection_part.key.out_features // projection_part.sizes.head_dim


def _has_bias(linear: nn.Linear) -> bool:
    return "bias" in dict(linear.named_parameters())


def _apply_projection(projection_part: nn.Module, x: HiddenRows) -> Tensor:
    return torch.cat([one[:, :, 0].flatten(1) for one in projection_part(x[:, None])], dim=1)


def _build_norm(norm_part: nn.Module) -> TensorFunction | None:
    """None where there is no norm."""
    if isinstance(norm_part, nn.Identity):
        return None
    inner = norm_part.inner if type(norm_part) in (norm.LayerNorm, norm.RMSNorm) else None
    if isinstance(inner, nn.LayerNorm):
        shape, weight, bias, eps = list(inner.normalized_shape), inner.weight, inner.bias, inner.eps
        return lambda x: torch.layer_norm(x, shape, weight, bias, eps)
    if isinstance(inner, nn.RMSNorm):
        return lambda x: F.rms_norm(x, list(inner.normalized_shape), inner.weight, inner.eps)
    return lambda x: norm_part(x[:, None])[:, 0]


def _build_activation(activation: nn.Module) -> TensorFunction:
    """Of what nobody else holds: it may be changed where it lies."""
    if type(activation) is nn.GELU:
        return partial(F.gelu, approximate=activation.approximate)
    known: dict[type, TensorFunction] = {nn.ReLU: torch.relu_, nn.SiLU: partial(F.silu, inplace=True)}
    return known.get(type(activation), activation)


def _build_feed_forward(feed_forward_part: nn.Module) -> ResidualFunction:
    if type(feed_forward_part) is feedforward.MLPFeedForward:
        up, down = (
            _build_linear(feed_forward_part.up.weight, feed_forward_part.up.bias),
            _build_residual_linear(feed_forward_part.down.weight, feed_forward_part.down.bias),
        )
        act = _build_activation(feed_forward_part.activation)
        return lambda x, onto: down(act(up(x)), onto)
    if type(feed_forward_part) is feedforward.SwiGLUFeedForward:
        gate, raised = (_build_linear(one.weight, one.bias) for one in (feed_forward_part.gate, feed_forward_part.up))
        lowered = _build_residual_linear(feed_forward_part.down.weight, feed_forward_part.down.bias)
        return lambda x, onto: lowered(F.silu(gate(x), inplace=True).mul_(raised(x)), onto)
    return lambda x, onto: onto + feed_forward_part(x[:, None])[:, 0]
