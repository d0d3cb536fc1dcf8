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

from headtohead.nn.kv_cache import Cache
from headtohead.nn.parts import attention, block, feedforward, merge, norm, pattern, position, projection
from headtohead.nn.parts.attention import Memory
from headtohead.nn.parts.position import Position

if TYPE_CHECKING:
    from headtohead.nn.transformer import Layer, Transformer

Rows = Float[Tensor, "rows width"]
Function = Callable[[Tensor], Tensor]
Adding = Callable[[Tensor, Tensor], Tensor]
"""a function of the first that is added to the second"""


@torch.no_grad()
def plan(model: Transformer, cache: Cache) -> Callable[[Tensor], Tensor] | None:
    """A function that reads one more token of each row, or None when some part has no quick form."""
    layers = [_layer(model, layer, memory) for layer, memory in zip(model.layers, cache.memories, strict=True)]  # type: ignore[arg-type]
    if model.training or model.classes is not None or not all(layers):
        return None
    return Plan(model, cache, [layer for layer in layers if layer is not None])


@dataclass
class Now:
    """One step: where its tokens stand, and what they may see."""

    places: Iterator[tuple[Tensor, Tensor, Tensor]]
    """of each layer in turn: where its new keys and values go, all its keys, all its values"""
    plain: bool = True
    """no padding, and nothing that asks for positions"""
    at: Int[Tensor, "*b 1"] | None = None
    """asked for only where a position wants it"""
    key_at: Int[Tensor, "*b key"] | None = None
    """asked for only where a pattern or a position wants it"""
    padding: Float[Tensor, "rows 1 1 key"] | None = None
    """minus infinity on padding"""
    turns: Sequence[tuple[Tensor, Tensor, int]] = ()
    """cosines and sines of each rotation, and how much of a head is turned"""
    masks: dict[int, Tensor | None] = field(default_factory=dict)


class Plan:
    """The steps of one text."""

    def __init__(self, model: Transformer, cache: Cache, layers: list[Any]) -> None:
        self.model, self.cache, self.layers = model, cache, layers
        self.table = model.embedding.weight
        parts = [p for p in model.positions if isinstance(p, Position)]
        self.learned = [p.table.weight for p in parts if type(p) is position.Learned]
        self.embeds = [p for p in parts if type(p).embed not in (Position.embed, position.Learned.embed)]
        self.ropes = [p for p in parts if isinstance(p, position.Rope)]
        self.enter, self.leave = _norm(model.embedding_norm), _norm(model.final_norm)
        self.output = _linear(model.output.weight, model.output.bias)
        self.limit = model.limit
        self.whole: Tensor | None = None
        self.first: Tensor | None = None
        self.wants_keys = any(layer.wants_keys for layer in layers)
        rotates = any(type(p).rotate is not Position.rotate for p in parts)
        self.wants_at = bool(self.embeds) or rotates or self.wants_keys

    def __call__(self, ids: Int[Tensor, "rows 1"]) -> Float[Tensor, "rows vocab"]:
        begin = self.cache.length
        now = self._now(begin, ids)
        x = self._embedded(ids)
        for table in self.learned:
            x = x + (table.select(0, begin) if now.padding is None else F.embedding(_at(now)[:, 0], table))
        for part in self.embeds:
            x = part.embed(x[:, None], _at(now))[:, 0]
        if self.enter is not None:
            x = self.enter(x)
        for layer in self.layers:
            x = layer(x, now)
        return self.output(x if self.leave is None else self.leave(x))

    def _embedded(self, ids: Int[Tensor, "rows 1"]) -> Rows:
        if ids.shape[0] == 1 and ids.device.type == "cpu":
            token = int(ids)
            return self.table[token : token + 1]
        return F.embedding(ids.select(1, 0), self.table)

    def _now(self, begin: int, ids: Tensor) -> Now:
        cache, places = self.cache, self._places(ids.shape[0])
        if cache.valid is None:
            self._check(begin + 1)
            if not self.wants_at:
                cache.length += 1
                return Now(places)
            at = torch.tensor([begin], device=ids.device)
        else:
            seen = cache.at
            assert seen is not None
            at = seen[:, -1:] + 1
            if self.limit is not None:
                self._check(int(at.max()) + 1)
        key_at, valid = cache.extend(at, None)
        padding = None
        if valid is not None:
            padding = _out(~valid, self.table.dtype)[:, None, None]
        turns = [_turn(rope, at, self.table.dtype) for rope in self.ropes]
        return Now(places, False, at, key_at, padding, turns)

    def _places(self, rows: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Room for one more token in every layer. The memories of all layers lie in one tensor: it is cut once a
        step and not once a layer."""
        memories = self.cache.memories
        place = memories[0].length
        whole = self.whole
        if whole is None or memories[0].room is not self.first or place >= whole.shape[4]:
            whole = self._gather(rows, place)
        for memory in memories:
            memory.length = place + 1
        here = whole.narrow(4, place, 1).unbind(0)
        seen = whole.narrow(4, 0, place + 1).flatten(0, 1).unbind(0)
        return zip(here, seen[::2], seen[1::2], strict=True)

    def _gather(self, rows: int, place: int) -> Tensor:
        """Lay the memories into one tensor with room to grow: at the first step, when the room is full, and after rows
        were taken or left out."""
        memories, made = self.cache.memories, self.layers[0].attend
        shape = (len(memories), 2, rows, made.key_heads, max(64, 2 * (place + 1)), made.head_dim)
        whole = self.table.new_empty(shape)
        for memory, room in zip(memories, whole, strict=True):
            if memory.room is not None:
                room[..., :place, :] = memory.room[..., :place, :]
            memory.room = room
        self.whole, self.first = whole, memories[0].room
        return whole

    def _check(self, end: int) -> None:
        if self.limit is not None and end > self.limit:
            self.model.check_length(end)


def _at(now: Now) -> Tensor:
    assert now.at is not None
    return now.at


def _turn(rope: position.Rope, at: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, int]:
    """Once a step what every layer would compute: (rows, 1, turned / 2)."""
    angle = at[..., None] * rope.frequency
    return angle.cos().to(dtype), angle.sin().to(dtype), rope.turned


def _out(where: Tensor, dtype: torch.dtype) -> Tensor:
    """What is added to scores: minus infinity where nothing may be seen."""
    return torch.zeros(where.shape, dtype=dtype, device=where.device).masked_fill_(where, -torch.inf)


# ---- one layer


def _layer(model: Transformer, layer: Layer, memory: Memory) -> Any:
    made = _Attention.of(model, layer.attention, memory)
    if made is None:
        return None
    feed = None if layer.feedforward.absent else _feed(layer.feedforward)
    held = layer.block
    if type(held) is block.Pre:
        return _Pre(made, feed, _norm(held.attention_norm), _norm(held.feed_norm))
    if type(held) is block.Post:
        return _Post(made, feed, _norm(held.attention_norm), _norm(held.feed_norm))
    if type(held) is block.Parallel:
        return _Parallel(made, feed, _norm(held.norm), None)
    return None


@dataclass
class _Block:
    attend: _Attention
    feed: Adding | None
    first: Function | None
    second: Function | None

    @property
    def wants_keys(self) -> bool:
        return self.attend.wants_keys


class _Pre(_Block):
    def __call__(self, x: Rows, now: Now) -> Rows:
        x = self.attend(x if self.first is None else self.first(x), now, x)
        return x if self.feed is None else self.feed(x if self.second is None else self.second(x), x)


class _Post(_Block):
    def __call__(self, x: Rows, now: Now) -> Rows:
        x = self.attend(x, now, x)
        x = x if self.first is None else self.first(x)
        if self.feed is None:
            return x
        x = self.feed(x, x)
        return x if self.second is None else self.second(x)


class _Parallel(_Block):
    def __call__(self, x: Rows, now: Now) -> Rows:
        seen = x if self.first is None else self.first(x)
        x = self.attend(seen, now, x)
        return x if self.feed is None else self.feed(seen, x)


class _Attention:
    """Composed attention for one query a row."""

    @classmethod
    def of(cls, model: Transformer, made: nn.Module, memory: Memory) -> _Attention | None:
        return cls(model, made, memory) if type(made) is attention.Composed else None

    def __init__(self, model: Transformer, made: attention.Composed, memory: Memory) -> None:
        self.memory = memory
        self.heads, self.head_dim = model.sizes.heads, model.sizes.head_dim
        self.scale, self.dtype = self.head_dim**-0.5, made.output.weight.dtype
        self.project, self.key_heads = _projection(made.projection, model.sizes.heads)
        self.shared = self.heads // self.key_heads
        self.pattern = made.pattern
        self.window = made.pattern.size if type(made.pattern) is pattern.Window else None
        self.plain = self.window is not None or type(made.pattern) is pattern.Causal
        parts = [p for p in model.positions if isinstance(p, Position)]
        self.rotates = [p for p in parts if type(p).rotate not in (Position.rotate, position.Rope.rotate)]
        self.biases = [p for p in parts if type(p).bias is not Position.bias]
        self.merge = None if type(made.merge) is merge.Concat else made.merge
        self.output = _adding(made.output.weight, made.output.bias)
        self.wants_keys = bool(self.biases) or not self.plain

    def __call__(self, x: Rows, now: Now, onto: Rows) -> Rows:
        heads, key_heads, head_dim, memory = self.heads, self.key_heads, self.head_dim, self.memory
        qkv = self.project(x)  # (rows, (heads + 2 key_heads) * head_dim)
        if now.turns or self.rotates:
            qkv = self._turned(qkv, now)
        rows, wide = qkv.shape[0], heads * head_dim
        queries, both = qkv.split_with_sizes((wide, 2 * key_heads * head_dim), 1)
        queries = queries.view(rows, key_heads, self.shared, head_dim)  # those that share a key side by side
        if rows == 1:
            both = both.view(2, 1, key_heads, 1, head_dim)
        else:
            both = both.view(rows, 2, key_heads, 1, head_dim).transpose(0, 1)
        here, keys, values = next(now.places)
        here.copy_(both)
        begin, mask = 0, None
        if self.window is not None and (begin := max(0, keys.shape[2] - self.window)):
            keys, values = keys[:, :, begin:], values[:, :, begin:]
        if not now.plain:
            mask = self._mask(now, begin)
        seen = self._attend(queries, keys, values, mask)
        if self.merge is not None:
            seen, memory.merge = self.merge(seen.reshape(rows, heads, 1, head_dim), None, memory.merge)
        return self.output(seen.reshape(rows, wide), onto)

    def _turned(self, qkv: Tensor, now: Now) -> Tensor:
        """Queries and keys turned together, values as they are."""
        turn = self.heads + self.key_heads
        split = qkv.view(qkv.shape[0], -1, self.head_dim)
        turned, values = split[:, :turn], split[:, turn:]
        for cos, sin, width in now.turns:
            first, second = turned[..., :width].chunk(2, dim=-1)
            rest = [turned[..., width:]] if width < self.head_dim else []
            turned = torch.cat((first * cos - second * sin, second * cos + first * sin, *rest), dim=-1)
        for part in self.rotates:
            turned = part.rotate(turned[:, :, None], _at(now))[:, :, 0]
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

    def _mask(self, now: Now, begin: int) -> Tensor | None:
        """What is added to the scores, (rows or 1, key_heads or 1, shared or 1, key): computed once for layers that
        look alike."""
        if self.plain and not self.biases:
            return now.padding if now.padding is None or not begin else now.padding[..., begin:]
        if id(self.pattern) not in now.masks:
            now.masks[id(self.pattern)] = self._compute(now)
        mask = now.masks[id(self.pattern)]
        return mask if mask is None or not begin else mask[..., begin:]

    def _compute(self, now: Now) -> Tensor | None:
        assert now.key_at is not None
        mask = now.padding
        for part in self.biases:
            bias = part.bias(_at(now), now.key_at)
            if bias is not None:
                bias = bias if bias.dim() == 4 else bias[None]
                shaped = bias.expand(-1, self.heads, -1, -1).reshape(len(bias), self.key_heads, -1, bias.shape[-1])
                mask = shaped if mask is None else mask + shaped
        if not self.plain:
            allowed = self.pattern.allows(_at(now), now.key_at)
            allowed = (allowed if allowed.dim() == 3 else allowed[None])[:, None]
            out = _out(~allowed, self.dtype)
            mask = out if mask is None else mask + out
        return None if mask is None else mask.to(self.dtype)


# ---- parts as plain functions

SMALL = 1 << 22
"""weights up to so many numbers are laid out anew, input first, which a product with few rows reads faster"""


def _linear(weight: Tensor, bias: Tensor | None) -> Function:
    if weight.numel() > SMALL or weight.device.type != "cpu":
        return lambda x: F.linear(x, weight, bias)
    turned = weight.t().contiguous()
    if bias is None:
        return lambda x: torch.mm(x, turned)
    row = bias[None]
    return lambda x: torch.addmm(row, x, turned)


def _adding(weight: Tensor, bias: Tensor | None) -> Adding:
    """The same, added to the stream."""
    if bias is None and weight.numel() <= SMALL and weight.device.type == "cpu":
        turned = weight.t().contiguous()
        return lambda x, onto: torch.addmm(onto, x, turned)
    made = _linear(weight, bias)
    return lambda x, onto: made(x).add_(onto)


def _projection(made: nn.Module, heads: int) -> tuple[Function, int]:
    """From the stream to queries, keys and values in one row of heads; and how many heads the keys have."""
    if type(made) is not projection.Linear:
        return partial(_projected, made), heads
    each = (made.query, made.key, made.value)
    weight = torch.cat([one.weight for one in each])
    bias = torch.cat([one.bias for one in each]) if _has_bias(made.query) else None
    return _linear(weight, bias), made.key.out_features // made.sizes.head_dim


def _has_bias(made: nn.Linear) -> bool:
    return "bias" in dict(made.named_parameters())


def _projected(made: nn.Module, x: Rows) -> Tensor:
    return torch.cat([one[:, :, 0].flatten(1) for one in made(x[:, None])], dim=1)


def _norm(made: nn.Module) -> Function | None:
    """None where there is no norm."""
    if isinstance(made, nn.Identity):
        return None
    inner = made.inner if type(made) in (norm.Layer, norm.RMS) else None
    if isinstance(inner, nn.LayerNorm):
        shape, weight, bias, eps = list(inner.normalized_shape), inner.weight, inner.bias, inner.eps
        return lambda x: torch.layer_norm(x, shape, weight, bias, eps)
    if isinstance(inner, nn.RMSNorm):
        return lambda x: F.rms_norm(x, list(inner.normalized_shape), inner.weight, inner.eps)
    return lambda x: made(x[:, None])[:, 0]


def _activation(made: nn.Module) -> Function:
    """Of what nobody else holds: it may be changed where it lies."""
    if type(made) is nn.GELU:
        return partial(F.gelu, approximate=made.approximate)
    known: dict[type, Function] = {nn.ReLU: torch.relu_, nn.SiLU: partial(F.silu, inplace=True)}
    return known.get(type(made), made)


def _feed(made: nn.Module) -> Adding:
    if type(made) is feedforward.MLP:
        up, down = _linear(made.up.weight, made.up.bias), _adding(made.down.weight, made.down.bias)
        act = _activation(made.activation)
        return lambda x, onto: down(act(up(x)), onto)
    if type(made) is feedforward.SwiGLU:
        gate, raised = (_linear(one.weight, one.bias) for one in (made.gate, made.up))
        lowered = _adding(made.down.weight, made.down.bias)
        return lambda x, onto: lowered(F.silu(gate(x), inplace=True).mul_(raised(x)), onto)
    return lambda x, onto: onto + made(x[:, None])[:, 0]
