"""What each slot promises, asked of the part alone."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from headtohead.audit.conformance import harness
from headtohead.audit.conformance.harness import PartFixture
from headtohead.audit.conformance.part_checks import CheckFailedError
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

NUM_ROWS, SEQUENCE_LENGTH = 3, 7


def check_contract(fixture: PartFixture, part_class: type[Part]) -> str:
    """Ask every part of this class that the model holds."""
    kind = SLOT_BASE_CLASSES[part_class.slot]
    if not issubclass(part_class, kind):
        raise CheckFailedError(
            f"{part_class.__name__} stands in the slot {part_class.slot} and does not inherit parts.{kind.__name__}"
        )
    if part_class.slot not in CONTRACT_CHECKS:
        return "the rest of what this slot promises shows in the whole model"
    said = ""
    for model, dtype in ((fixture.single, torch.float32), (fixture.plain, torch.float64)):
        held = [m for m in model.modules() if isinstance(m, part_class)]
        assert held, part_class
        with torch.no_grad():
            for one in held:
                said = CONTRACT_CHECKS[part_class.slot](one, dtype)
    return said


def _draw_hidden_states(part: Part, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(NUM_ROWS, SEQUENCE_LENGTH, part.sizes.width, generator=generator, dtype=torch.float64).to(dtype)


def _draw_heads(part: Part, dtype: torch.dtype) -> Tensor:
    sizes, generator = part.sizes, torch.Generator().manual_seed(1)
    shape = (NUM_ROWS, sizes.heads, SEQUENCE_LENGTH, sizes.head_dim)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def _check_shape_and_dtype(label: str, actual: Any, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    if not isinstance(actual, Tensor):
        raise CheckFailedError(f"{label} gives {type(actual).__name__}, not a tensor")
    if tuple(actual.shape) != shape:
        raise CheckFailedError(f"{label} gives the shape {tuple(actual.shape)}, not {shape}")
    if actual.dtype != dtype:
        raise CheckFailedError(f"{label} gives {actual.dtype} for {dtype}")


def check_position(part: Position, dtype: torch.dtype) -> str:
    """The three methods, with and without a batch axis, and whether a signal in the input is owned up to."""
    x, q = _draw_hidden_states(part, dtype), _draw_heads(part, dtype)
    at = torch.arange(SEQUENCE_LENGTH)
    rows = at.expand(NUM_ROWS, SEQUENCE_LENGTH)
    for what, method, given in (("add_positions", part.add_positions, x), ("rotate", part.rotate, q)):
        moved = method(given, at)
        _check_shape_and_dtype(what, moved, tuple(given.shape), dtype)
        _check_close(f"{what} with a batch axis on the positions", method(given, rows), moved)
    bias = part.compute_bias(at, at)
    if bias is not None:
        wanted = (part.sizes.heads, SEQUENCE_LENGTH, SEQUENCE_LENGTH)
        if bias.dim() != 3 or bias.shape[0] not in (1, wanted[0]) or tuple(bias.shape[1:]) != wanted[1:]:
            raise CheckFailedError(f"bias gives the shape {tuple(bias.shape)}, not {wanted} (heads, query, key)")
        per_row = part.compute_bias(rows, rows)
        if per_row is None or per_row.shape != (NUM_ROWS, *bias.shape):
            found = None if per_row is None else tuple(per_row.shape)
            raise CheckFailedError(f"bias with a batch axis gives {found}, not {(NUM_ROWS, *bias.shape)}")
        _check_close("bias with a batch axis on the positions", per_row[1], bias)
        blocks = part.compute_bias(rows[:, None], rows[:, None])
        if blocks is None or blocks.shape != (NUM_ROWS, 1, *bias.shape):
            raise CheckFailedError(
                "bias takes positions with any axes in front; with two of them it gives another shape"
            )
    room = SEQUENCE_LENGTH if part.max_positions is None else min(SEQUENCE_LENGTH, part.max_positions - SEQUENCE_LENGTH)
    signal = room > 0 and not torch.equal(part.add_positions(x, at), part.add_positions(x, at + room))
    if signal and not part.is_absolute:
        raise CheckFailedError(
            "add_positions changes the input: declare is_absolute = True, because a model accepts only one such part"
        )
    return "add_positions, rotate and compute_bias keep to their shapes, with and without a batch axis"


def _check_close(label: str, actual: Tensor, expected: Tensor) -> None:
    difference = harness.max_relative_difference(actual, expected)
    if difference > harness.TOLERANCE[expected.dtype]:
        raise CheckFailedError(f"{label} differs by {difference:.1e}")


def check_pattern(part: Pattern, dtype: torch.dtype) -> str:
    """True or false for each pair, with any axes in front, and nothing allowed beyond the reach."""
    query_at, key_at = torch.arange(5, 5 + SEQUENCE_LENGTH), torch.arange(40)
    allowed = part.compute_mask(query_at, key_at)
    _check_shape_and_dtype("compute_mask", allowed, (SEQUENCE_LENGTH, 40), torch.bool)
    rows = part.compute_mask(query_at.expand(NUM_ROWS, 2, SEQUENCE_LENGTH), key_at.expand(NUM_ROWS, 2, 40))
    _check_shape_and_dtype("compute_mask with leading axes", rows, (NUM_ROWS, 2, SEQUENCE_LENGTH, 40), torch.bool)
    if not torch.equal(rows[1, 1], allowed):
        raise CheckFailedError("compute_mask gives different results when positions have leading axes")
    behind = query_at[:, None] - key_at[None, :]
    for name, limit, distance in zip(("behind", "ahead"), part.window_size, (behind, -behind), strict=True):
        if limit is not None and bool((allowed & (distance > limit)).any()):
            far = int(distance[allowed].max())
            raise CheckFailedError(
                f"window_size says {limit} {name}, but compute_mask allows {far} {name}, "
                "which blocked attention would miss"
            )
    return f"true or false for each pair of positions, window_size {part.window_size} kept"


def check_projection(part: Projection, dtype: torch.dtype) -> str:
    sizes = part.sizes
    q, k, v = part(_draw_hidden_states(part, dtype))
    _check_shape_and_dtype(
        "the projection's queries", q, (NUM_ROWS, sizes.heads, SEQUENCE_LENGTH, sizes.head_dim), dtype
    )
    shared = k.shape[1] if k.dim() == 4 else 0
    if not shared or sizes.heads % shared:
        raise CheckFailedError(
            f"keys have the shape {tuple(k.shape)}: {sizes.heads} query heads cannot share them evenly"
        )
    _check_shape_and_dtype("the projection's keys", k, (NUM_ROWS, shared, SEQUENCE_LENGTH, sizes.head_dim), dtype)
    _check_shape_and_dtype("the projection's values", v, (NUM_ROWS, shared, SEQUENCE_LENGTH, sizes.head_dim), dtype)
    return f"{sizes.heads} heads of queries, {shared} of keys and values"


def check_merge(part: Merge, dtype: torch.dtype) -> str:
    heads = _draw_heads(part, dtype)
    for valid in (None, torch.ones(NUM_ROWS, SEQUENCE_LENGTH, dtype=torch.bool)):
        merged, carried = part(heads, valid)
        _check_shape_and_dtype("the merge", merged, tuple(heads.shape), dtype)
    return "the heads keep their shape" + ("" if carried is None else "; something is carried from step to step")


def check_feedforward(part: FeedForward, dtype: torch.dtype) -> str:
    x = _draw_hidden_states(part, dtype)
    _check_shape_and_dtype("the feed-forward", part(x), tuple(x.shape), dtype)
    return "absent" if part.is_absent else "the stream keeps its shape"


def check_norm(part: Norm, dtype: torch.dtype) -> str:
    x = _draw_hidden_states(part, dtype)
    _check_shape_and_dtype("the norm", part(x), tuple(x.shape), dtype)
    _check_shape_and_dtype("the norm of a single row", part(x[0]), tuple(x[0].shape), dtype)
    return "the stream keeps its shape"


def check_pool(part: Pool, dtype: torch.dtype) -> str:
    """One vector a row, whatever stands on the padding."""
    x = _draw_hidden_states(part, dtype)
    valid = torch.ones(NUM_ROWS, SEQUENCE_LENGTH, dtype=torch.bool)
    valid[1, 4:], valid[2, :5] = False, False
    pooled = part(x, valid)
    _check_shape_and_dtype("the pool", pooled, (NUM_ROWS, part.sizes.width), dtype)
    _check_close(
        "the pool with other values on the padding",
        part(torch.where(valid[..., None], x, x + 9), valid),
        pooled,
    )
    return "one vector a row, padding not looked at"


CONTRACT_CHECKS: dict[str, Callable[[Any, torch.dtype], str]] = {
    "position": check_position,
    "pattern": check_pattern,
    "projection": check_projection,
    "merge": check_merge,
    "feedforward": check_feedforward,
    "norm": check_norm,
    "pool": check_pool,
}
SLOT_BASE_CLASSES: dict[str, type[Part]] = {
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
