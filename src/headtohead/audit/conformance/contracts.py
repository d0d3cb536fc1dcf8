"""Each slot's contract, checked on a single part."""

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
        parts = [module for module in fixture.build_model(dtype=dtype).modules() if isinstance(module, part_class)]
        assert parts, part_class
        with torch.no_grad():
            for part in parts:
                observation = check(part, dtype)
    return observation


def _draw_hidden_states(part: Part, dtype: torch.dtype) -> Tensor:
    """Return random hidden states of shape (batch, length, width)."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(NUM_ROWS, SEQUENCE_LENGTH, part.sizes.width, generator=generator, dtype=torch.float64).to(dtype)


def _draw_heads(part: Part, dtype: torch.dtype) -> Tensor:
    """Return random per-head states of shape (batch, heads, length, head_dim)."""
    sizes, generator = part.sizes, torch.Generator().manual_seed(1)
    shape = (NUM_ROWS, sizes.heads, SEQUENCE_LENGTH, sizes.head_dim)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def _check_close(label: str, actual: Tensor, expected: Tensor) -> None:
    """Raise CheckFailedError unless two tensors agree up to rounding error."""
    difference = measure_difference(actual, expected, label, PART_TOLERANCES[expected.dtype].rounding)
    if not difference.is_within_tolerance:
        raise CheckFailedError(str(difference))


def check_position(part: Position, dtype: torch.dtype) -> str:
    """Check the three methods with and without a batch axis, and that a signal added to the input is declared."""
    hidden_states, queries = _draw_hidden_states(part, dtype), _draw_heads(part, dtype)
    positions = torch.arange(SEQUENCE_LENGTH)
    batched_positions = positions.expand(NUM_ROWS, SEQUENCE_LENGTH)
    for name, method, values in (
        ("add_positions", part.add_positions, hidden_states),
        ("rotate", part.rotate, queries),
    ):
        output = method(values, positions)
        check_tensor(output, tuple(values.shape), dtype, name)
        _check_close(f"{name}, positions with a batch axis", method(values, batched_positions), output)
    bias = part.compute_bias(positions, positions)
    if bias is not None:
        _check_bias(part, bias, positions)
    shift = (
        SEQUENCE_LENGTH if part.max_positions is None else min(SEQUENCE_LENGTH, part.max_positions - SEQUENCE_LENGTH)
    )
    has_signal = shift > 0 and not torch.equal(
        part.add_positions(hidden_states, positions), part.add_positions(hidden_states, positions + shift)
    )
    if has_signal and not part.is_absolute:
        raise CheckFailedError(
            "add_positions changes the input: declare is_absolute = True, since a model accepts only one such part"
        )
    return "add_positions, rotate and compute_bias have the expected shapes, with and without a batch axis"


def _check_bias(part: Position, bias: Tensor, positions: Tensor) -> None:
    """Check the shape of the attention bias, with and without leading batch axes."""
    batched_positions = positions.expand(NUM_ROWS, SEQUENCE_LENGTH)
    shape = (part.sizes.heads, SEQUENCE_LENGTH, SEQUENCE_LENGTH)
    if bias.dim() != 3 or bias.shape[0] not in (1, shape[0]) or tuple(bias.shape[1:]) != shape[1:]:
        raise CheckFailedError(f"compute_bias: shape {tuple(bias.shape)} instead of {shape} (heads, query, key)")
    for leading_axes in ((NUM_ROWS,), (NUM_ROWS, 1)):
        positions_with_axes = batched_positions.reshape(*leading_axes, SEQUENCE_LENGTH)
        batched_bias = part.compute_bias(positions_with_axes, positions_with_axes)
        check_tensor(
            batched_bias,
            (*leading_axes, *bias.shape),
            bias.dtype,
            f"compute_bias, positions with {len(leading_axes)} leading axes",
        )
        assert batched_bias is not None
        _check_close(
            f"compute_bias, positions with {len(leading_axes)} leading axes", batched_bias.flatten(0, -4)[1], bias
        )


def check_pattern(part: Pattern, dtype: torch.dtype) -> str:
    """Check that the mask is boolean, works with leading axes, and allows nothing beyond the window."""
    query_positions, key_positions = torch.arange(5, 5 + SEQUENCE_LENGTH), torch.arange(NUM_KEYS)
    mask = part.compute_mask(query_positions, key_positions)
    check_tensor(mask, (SEQUENCE_LENGTH, NUM_KEYS), torch.bool, "compute_mask")
    leading_axes = (NUM_ROWS, 2)
    batched_mask = part.compute_mask(
        query_positions.expand(*leading_axes, SEQUENCE_LENGTH), key_positions.expand(*leading_axes, NUM_KEYS)
    )
    check_tensor(
        batched_mask,
        (*leading_axes, SEQUENCE_LENGTH, NUM_KEYS),
        torch.bool,
        "compute_mask, positions with leading axes",
    )
    if not torch.equal(batched_mask[1, 1], mask):
        raise CheckFailedError("compute_mask: the mask changes if positions have leading axes")
    distance = query_positions[:, None] - key_positions[None, :]
    for direction, limit, distances in zip(("behind", "ahead"), part.window_size, (distance, -distance), strict=True):
        if limit is not None and bool((mask & (distances > limit)).any()):
            farthest = int(distances[mask].max())
            raise CheckFailedError(
                f"window_size is {limit} {direction}, but compute_mask includes positions {farthest} {direction}: "
                "blocked attention would miss them"
            )
    return f"boolean mask within its window_size {part.window_size}"


def check_projection(part: Projection, dtype: torch.dtype) -> str:
    """Check the shapes of queries, keys and values, and that key heads divide the query heads evenly."""
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
    """Check that the heads' shape is preserved, with and without a padding mask."""
    heads = _draw_heads(part, dtype)
    for mask in (None, torch.ones(NUM_ROWS, SEQUENCE_LENGTH, dtype=torch.bool)):
        merged, state = part(heads, mask)
        check_tensor(merged, tuple(heads.shape), dtype, "merge")
    return "the heads keep their shape" + ("" if state is None else "; the cache carries a state")


def check_feedforward(part: FeedForward, dtype: torch.dtype) -> str:
    """Check that the shape of the hidden states is preserved."""
    hidden_states = _draw_hidden_states(part, dtype)
    check_tensor(part(hidden_states), tuple(hidden_states.shape), dtype, "feed-forward")
    return "absent" if part.is_absent else "hidden states keep their shape"


def check_norm(part: Norm, dtype: torch.dtype) -> str:
    """Check that the shape of the hidden states is preserved, with and without a batch axis."""
    hidden_states = _draw_hidden_states(part, dtype)
    check_tensor(part(hidden_states), tuple(hidden_states.shape), dtype, "norm")
    check_tensor(part(hidden_states[0]), tuple(hidden_states[0].shape), dtype, "norm of a single row")
    return "hidden states keep their shape"


def check_pool(part: Pool, dtype: torch.dtype) -> str:
    """Check that there is one vector per row, and that it does not depend on the hidden states at padding positions."""
    hidden_states = _draw_hidden_states(part, dtype)
    mask = torch.ones(NUM_ROWS, SEQUENCE_LENGTH, dtype=torch.bool)
    mask[1, 4:], mask[2, :5] = False, False
    pooled = part(hidden_states, mask)
    check_tensor(pooled, (NUM_ROWS, part.sizes.width), dtype, "pool")
    _check_close(
        "pool, other hidden states at padding",
        part(torch.where(mask[..., None], hidden_states, hidden_states + 9), mask),
        pooled,
    )
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
"""base class and contract check for each slot"""
