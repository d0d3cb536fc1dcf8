"""The contract of each slot, checked on the part alone."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from headtohead.audit.conformance.fixtures import PartFixture
from headtohead.audit.conformance.part_checks import CheckFailedError, check_tensor
from headtohead.audit.tolerance import PART_TOLERANCES, measure_difference
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

NUM_ROWS, SEQUENCE_LENGTH, NUM_KEYS = 3, 7, 40


def check_contract(fixture: PartFixture, part_class: type[Part]) -> str:
    """Check every instance of the part in the model, in float32 and float64."""
    base_class, check = SLOT_CONTRACTS[part_class.slot]
    if not issubclass(part_class, base_class):
        raise CheckFailedError(
            f"{part_class.__name__} is registered for slot {part_class.slot} but does not inherit "
            f"parts.{base_class.__name__}"
        )
    if check is None:
        return "this slot has no further contract"
    observation = ""
    for dtype in (torch.float32, torch.float64):
        parts = [m for m in fixture.build_model(dtype=dtype).modules() if isinstance(m, part_class)]
        assert parts, part_class
        with torch.no_grad():
            for part in parts:
                observation = check(part, dtype)
    return observation


def _draw_hidden_states(part: Part, dtype: torch.dtype) -> Tensor:
    """Return random values (batch, length, width)."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(NUM_ROWS, SEQUENCE_LENGTH, part.sizes.width, generator=generator, dtype=torch.float64).to(dtype)


def _draw_heads(part: Part, dtype: torch.dtype) -> Tensor:
    """Return random values (batch, heads, length, head_dim)."""
    sizes, generator = part.sizes, torch.Generator().manual_seed(1)
    shape = (NUM_ROWS, sizes.heads, SEQUENCE_LENGTH, sizes.head_dim)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def _check_close(label: str, actual: Tensor, expected: Tensor) -> None:
    difference = measure_difference(actual, expected, label, PART_TOLERANCES[expected.dtype].rounding)
    if not difference.is_within_tolerance:
        raise CheckFailedError(str(difference))


def check_position(part: Position, dtype: torch.dtype) -> str:
    """Check the three methods, with and without a batch axis, and that a signal in the input is declared."""
    x, q = _draw_hidden_states(part, dtype), _draw_heads(part, dtype)
    positions = torch.arange(SEQUENCE_LENGTH)
    rows = positions.expand(NUM_ROWS, SEQUENCE_LENGTH)
    for name, method, values in (("add_positions", part.add_positions, x), ("rotate", part.rotate, q)):
        output = method(values, positions)
        check_tensor(output, tuple(values.shape), dtype, name)
        _check_close(f"{name}, positions with a batch axis", method(values, rows), output)
    bias = part.compute_bias(positions, positions)
    if bias is not None:
        _check_bias(part, bias, positions)
    room = SEQUENCE_LENGTH if part.max_positions is None else min(SEQUENCE_LENGTH, part.max_positions - SEQUENCE_LENGTH)
    has_signal = room > 0 and not torch.equal(part.add_positions(x, positions), part.add_positions(x, positions + room))
    if has_signal and not part.is_absolute:
        raise CheckFailedError(
            "add_positions changes the input: declare is_absolute = True, since a model accepts only one such part"
        )
    return "add_positions, rotate and compute_bias have the expected shapes, with and without a batch axis"


def _check_bias(part: Position, bias: Tensor, positions: Tensor) -> None:
    rows = positions.expand(NUM_ROWS, SEQUENCE_LENGTH)
    shape = (part.sizes.heads, SEQUENCE_LENGTH, SEQUENCE_LENGTH)
    if bias.dim() != 3 or bias.shape[0] not in (1, shape[0]) or tuple(bias.shape[1:]) != shape[1:]:
        raise CheckFailedError(f"compute_bias: shape {tuple(bias.shape)} instead of {shape} (heads, query, key)")
    for axes in ((NUM_ROWS,), (NUM_ROWS, 1)):
        leading = rows.reshape(*axes, SEQUENCE_LENGTH)
        batched = part.compute_bias(leading, leading)
        check_tensor(
            batched, (*axes, *bias.shape), bias.dtype, f"compute_bias, positions with {len(axes)} leading axes"
        )
        assert batched is not None
        _check_close(f"compute_bias, positions with {len(axes)} leading axes", batched.flatten(0, -4)[1], bias)


def check_pattern(part: Pattern, dtype: torch.dtype) -> str:
    """Check that the mask is boolean, works with leading axes, and allows nothing beyond the window."""
    query_at, key_at = torch.arange(5, 5 + SEQUENCE_LENGTH), torch.arange(NUM_KEYS)
    mask = part.compute_mask(query_at, key_at)
    check_tensor(mask, (SEQUENCE_LENGTH, NUM_KEYS), torch.bool, "compute_mask")
    axes = (NUM_ROWS, 2)
    batched = part.compute_mask(query_at.expand(*axes, SEQUENCE_LENGTH), key_at.expand(*axes, NUM_KEYS))
    check_tensor(batched, (*axes, SEQUENCE_LENGTH, NUM_KEYS), torch.bool, "compute_mask, positions with leading axes")
    if not torch.equal(batched[1, 1], mask):
        raise CheckFailedError("compute_mask: the mask changes if positions have leading axes")
    distance = query_at[:, None] - key_at[None, :]
    for name, limit, distances in zip(("behind", "ahead"), part.window_size, (distance, -distance), strict=True):
        if limit is not None and bool((mask & (distances > limit)).any()):
            farthest = int(distances[mask].max())
            raise CheckFailedError(
                f"window_size is {limit} {name}, but compute_mask includes positions {farthest} {name}: blocked "
                "attention would miss them"
            )
    return f"boolean mask within its window_size {part.window_size}"


def check_projection(part: Projection, dtype: torch.dtype) -> str:
    sizes = part.sizes
    queries, keys, values = part(_draw_hidden_states(part, dtype))
    check_tensor(queries, (NUM_ROWS, sizes.heads, SEQUENCE_LENGTH, sizes.head_dim), dtype, "queries")
    key_heads = keys.shape[1] if keys.dim() == 4 else 0
    if not key_heads or sizes.heads % key_heads:
        raise CheckFailedError(f"keys: {sizes.heads} query heads cannot share keys of shape {tuple(keys.shape)} evenly")
    for label, tensor in (("keys", keys), ("values", values)):
        check_tensor(tensor, (NUM_ROWS, key_heads, SEQUENCE_LENGTH, sizes.head_dim), dtype, label)
    return f"{sizes.heads} query heads, {key_heads} key and value heads"


def check_merge(part: Merge, dtype: torch.dtype) -> str:
    heads = _draw_heads(part, dtype)
    for mask in (None, torch.ones(NUM_ROWS, SEQUENCE_LENGTH, dtype=torch.bool)):
        merged, state = part(heads, mask)
        check_tensor(merged, tuple(heads.shape), dtype, "merge")
    return "the heads keep their shape" + ("" if state is None else "; the cache carries a state")


def check_feedforward(part: FeedForward, dtype: torch.dtype) -> str:
    x = _draw_hidden_states(part, dtype)
    check_tensor(part(x), tuple(x.shape), dtype, "feed-forward")
    return "absent" if part.is_absent else "hidden states keep their shape"


def check_norm(part: Norm, dtype: torch.dtype) -> str:
    x = _draw_hidden_states(part, dtype)
    check_tensor(part(x), tuple(x.shape), dtype, "norm")
    check_tensor(part(x[0]), tuple(x[0].shape), dtype, "norm of a single row")
    return "hidden states keep their shape"


def check_pool(part: Pool, dtype: torch.dtype) -> str:
    """Check that there is one vector per row, and that it does not depend on hidden states at padding."""
    x = _draw_hidden_states(part, dtype)
    mask = torch.ones(NUM_ROWS, SEQUENCE_LENGTH, dtype=torch.bool)
    mask[1, 4:], mask[2, :5] = False, False
    pooled = part(x, mask)
    check_tensor(pooled, (NUM_ROWS, part.sizes.width), dtype, "pool")
    _check_close("pool, other hidden states at padding", part(torch.where(mask[..., None], x, x + 9), mask), pooled)
    return "one vector per row, independent of padding"


SLOT_CONTRACTS: dict[str, tuple[type[Part], Callable[[Any, torch.dtype], str] | None]] = {
    "position": (Position, check_position),
    "pattern": (Pattern, check_pattern),
    "projection": (Projection, check_projection),
    "merge": (Merge, check_merge),
    "attention": (Attention, None),
    "feedforward": (FeedForward, check_feedforward),
    "norm": (Norm, check_norm),
    "block": (Block, None),
    "pool": (Pool, check_pool),
}
"""base class and contract check of each slot"""
