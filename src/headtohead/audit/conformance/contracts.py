"""What each slot promises, asked of the part alone."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from headtohead.audit.conformance import harness
from headtohead.audit.conformance.harness import Subject
from headtohead.audit.conformance.part_checks import Fell
from headtohead.nn.parts.attention import Attention
from headtohead.nn.parts.base import Part
from headtohead.nn.parts.block import Block
from headtohead.nn.parts.feedforward import FeedForward
from headtohead.nn.parts.merge import Merge
from headtohead.nn.parts.norm import Norm
from headtohead.nn.parts.pattern import Pattern
from headtohead.nn.parts.pool import Pool
from headtohead.nn.parts.position import Position
from headtohead.nn.parts.projection import Projection

ROWS, LENGTH = 3, 7


def contract(subject: Subject, made: type[Part]) -> str:
    """Ask every part of this class that the model holds."""
    kind = BASES[made.slot]
    if not issubclass(made, kind):
        raise Fell(f"{made.__name__} stands in the slot {made.slot} and does not inherit parts.{kind.__name__}")
    if made.slot not in ASKED:
        return "the rest of what this slot promises shows in the whole model"
    said = ""
    for model, dtype in ((subject.single, torch.float32), (subject.plain, torch.float64)):
        held = [m for m in model.modules() if isinstance(m, made)]
        assert held, made
        with torch.no_grad():
            for one in held:
                said = ASKED[made.slot](one, dtype)
    return said


def _stream(part: Part, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(ROWS, LENGTH, part.sizes.width, generator=generator, dtype=torch.float64).to(dtype)


def _heads(part: Part, dtype: torch.dtype) -> Tensor:
    sizes, generator = part.sizes, torch.Generator().manual_seed(1)
    shape = (ROWS, sizes.heads, LENGTH, sizes.head_dim)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def _same(what: str, found: Any, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    if not isinstance(found, Tensor):
        raise Fell(f"{what} gives {type(found).__name__}, not a tensor")
    if tuple(found.shape) != shape:
        raise Fell(f"{what} gives the shape {tuple(found.shape)}, not {shape}")
    if found.dtype != dtype:
        raise Fell(f"{what} gives {found.dtype} for {dtype}")


def ask_position(part: Position, dtype: torch.dtype) -> str:
    """The three methods, with and without a batch axis, and whether a signal in the input is owned up to."""
    x, q = _stream(part, dtype), _heads(part, dtype)
    at = torch.arange(LENGTH)
    rows = at.expand(ROWS, LENGTH)
    for what, method, given in (("embed", part.embed, x), ("rotate", part.rotate, q)):
        moved = method(given, at)
        _same(what, moved, tuple(given.shape), dtype)
        _equal(f"{what} with a batch axis on the positions", method(given, rows), moved)
    bias = part.bias(at, at)
    if bias is not None:
        wanted = (part.sizes.heads, LENGTH, LENGTH)
        if bias.dim() != 3 or bias.shape[0] not in (1, wanted[0]) or tuple(bias.shape[1:]) != wanted[1:]:
            raise Fell(f"bias gives the shape {tuple(bias.shape)}, not {wanted} (heads, query, key)")
        per_row = part.bias(rows, rows)
        if per_row is None or per_row.shape != (ROWS, *bias.shape):
            found = None if per_row is None else tuple(per_row.shape)
            raise Fell(f"bias with a batch axis gives {found}, not {(ROWS, *bias.shape)}")
        _equal("bias with a batch axis on the positions", per_row[1], bias)
        blocks = part.bias(rows[:, None], rows[:, None])
        if blocks is None or blocks.shape != (ROWS, 1, *bias.shape):
            raise Fell("bias takes positions with any axes in front; with two of them it gives another shape")
    room = LENGTH if part.limit is None else min(LENGTH, part.limit - LENGTH)
    signal = room > 0 and not torch.equal(part.embed(x, at), part.embed(x, at + room))
    if signal and not part.absolute:
        raise Fell("embed adds a signal to the input; say so with absolute = True, since a model takes one at most")
    return "embed, rotate and bias keep to their shapes, with and without a batch axis"


def _equal(what: str, found: Tensor, wanted: Tensor) -> None:
    difference = harness.apart(found, wanted)
    if difference > harness.TOLERANCE[wanted.dtype]:
        raise Fell(f"{what} differs by {difference:.1e}")


def ask_pattern(part: Pattern, dtype: torch.dtype) -> str:
    """True or false for each pair, with any axes in front, and nothing allowed beyond the reach."""
    query_at, key_at = torch.arange(5, 5 + LENGTH), torch.arange(40)
    allowed = part.allows(query_at, key_at)
    _same("allows", allowed, (LENGTH, 40), torch.bool)
    rows = part.allows(query_at.expand(ROWS, 2, LENGTH), key_at.expand(ROWS, 2, 40))
    _same("allows with axes in front", rows, (ROWS, 2, LENGTH, 40), torch.bool)
    if not torch.equal(rows[1, 1], allowed):
        raise Fell("allows gives something else when the positions have axes in front")
    behind = query_at[:, None] - key_at[None, :]
    for name, limit, distance in zip(("behind", "ahead"), part.reach, (behind, -behind), strict=True):
        if limit is not None and bool((allowed & (distance > limit)).any()):
            far = int(distance[allowed].max())
            raise Fell(f"reach says {limit} {name}, and allows looks {far} {name}: the fast road would miss it")
    return f"true or false for each pair of positions, reach {part.reach} kept"


def ask_projection(part: Projection, dtype: torch.dtype) -> str:
    sizes = part.sizes
    q, k, v = part(_stream(part, dtype))
    _same("the projection's queries", q, (ROWS, sizes.heads, LENGTH, sizes.head_dim), dtype)
    shared = k.shape[1] if k.dim() == 4 else 0
    if not shared or sizes.heads % shared:
        raise Fell(f"keys have the shape {tuple(k.shape)}: {sizes.heads} query heads cannot share them evenly")
    _same("the projection's keys", k, (ROWS, shared, LENGTH, sizes.head_dim), dtype)
    _same("the projection's values", v, (ROWS, shared, LENGTH, sizes.head_dim), dtype)
    return f"{sizes.heads} heads of queries, {shared} of keys and values"


def ask_merge(part: Merge, dtype: torch.dtype) -> str:
    heads = _heads(part, dtype)
    for valid in (None, torch.ones(ROWS, LENGTH, dtype=torch.bool)):
        merged, carried = part(heads, valid)
        _same("the merge", merged, tuple(heads.shape), dtype)
    return "the heads keep their shape" + ("" if carried is None else "; something is carried from step to step")


def ask_feedforward(part: FeedForward, dtype: torch.dtype) -> str:
    x = _stream(part, dtype)
    _same("the feed-forward", part(x), tuple(x.shape), dtype)
    return "absent" if part.absent else "the stream keeps its shape"


def ask_norm(part: Norm, dtype: torch.dtype) -> str:
    x = _stream(part, dtype)
    _same("the norm", part(x), tuple(x.shape), dtype)
    _same("the norm of a single row", part(x[0]), tuple(x[0].shape), dtype)
    return "the stream keeps its shape"


def ask_pool(part: Pool, dtype: torch.dtype) -> str:
    """One vector a row, whatever stands on the padding."""
    x = _stream(part, dtype)
    valid = torch.ones(ROWS, LENGTH, dtype=torch.bool)
    valid[1, 4:], valid[2, :5] = False, False
    pooled = part(x, valid)
    _same("the pool", pooled, (ROWS, part.sizes.width), dtype)
    _equal(
        "the pool with other values on the padding",
        part(torch.where(valid[..., None], x, x + 9), valid),
        pooled,
    )
    return "one vector a row, padding not looked at"


ASKED: dict[str, Callable[[Any, torch.dtype], str]] = {
    "position": ask_position,
    "pattern": ask_pattern,
    "projection": ask_projection,
    "merge": ask_merge,
    "feedforward": ask_feedforward,
    "norm": ask_norm,
    "pool": ask_pool,
}
BASES: dict[str, type[Part]] = {
    "position": Position,
    "pattern": Pattern,
    "projection": Projection,
    "merge": Merge,
    "attention": Attention,
    "feedforward": FeedForward,
    "norm": Norm,
    "block": Block,
    "pool": Pool,
}
