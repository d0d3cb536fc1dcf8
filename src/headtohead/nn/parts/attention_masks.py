"""Masks and biases of attention scores, computed once per forward pass from a pattern and position parts, and which
faster implementation of attention they allow."""

from collections.abc import Sequence

from torch import Tensor

from headtohead.nn.parts.base import declares_capability
from headtohead.nn.parts.context import ForwardContext
from headtohead.nn.parts.pattern import Pattern
from headtohead.nn.parts.position import Position

BiasParts = Sequence[Position]
"""Position parts that add a bias to the attention scores."""


def find_bias_parts(positions: Sequence[Position]) -> tuple[Position, ...]:
    """Return the position parts that override `compute_bias`."""
    return tuple(part for part in positions if type(part).compute_bias is not Position.compute_bias)


def get_mask_and_bias(pattern: Pattern, bias_parts: BiasParts, context: ForwardContext) -> tuple[Tensor, Tensor | None]:
    """Return (mask, bias) of this forward pass, broadcastable to (batch, heads, query, key). The mask is False where a
    query must not attend to a key.

    Layers with the same pattern and position parts share them.
    """
    key = (id(pattern), *map(id, bias_parts))
    if key not in context.memo:
        mask, bias = compute_mask_and_bias(pattern, bias_parts, context, context.query_positions, context.key_positions)
        mask = mask[..., None, :, :]
        if context.key_mask is not None:
            mask = mask & context.key_mask[:, None, None, :]
        context.memo[key] = (mask, bias)
    mask_and_bias: tuple[Tensor, Tensor | None] = context.memo[key]
    return mask_and_bias


def compute_mask_and_bias(
    pattern: Pattern, bias_parts: BiasParts, context: ForwardContext, query_positions: Tensor, key_positions: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Return the pattern's mask and the sum of position biases, (..., heads, query, key), between any positions."""
    biases = [
        bias for part in bias_parts if (bias := part.compute_bias(query_positions, key_positions, context)) is not None
    ]
    bias = sum(biases[1:], biases[0]) if biases else None
    return pattern.compute_mask(query_positions, key_positions, context), bias


def is_plain_causal(pattern: Pattern, bias_parts: BiasParts, context: ForwardContext) -> bool:
    """Return whether PyTorch's `is_causal=True` gives the same result as the mask."""
    return (
        declares_capability(pattern, "is_plain_causal")
        and context.key_mask is None
        and context.query_positions.shape == context.key_positions.shape
        and not bias_parts
    )


def get_blocked_window(pattern: Pattern, context: ForwardContext) -> tuple[int, int] | None:
    """Return the pattern's window if blocked attention is possible and faster: without a cache, for a long enough
    sequence.
    """
    behind, ahead = pattern.window_size
    if behind is None or ahead is None or context.query_positions.shape != context.key_positions.shape:
        return None
    is_long_enough = context.query_positions.shape[-1] >= 4 * max(behind, ahead, 16)
    if not is_long_enough or not declares_capability(pattern, "window_size"):
        return None
    return (behind, ahead) if _has_padding_at_ends_only(context) else None


def is_shift_invariant(pattern: Pattern, bias_parts: BiasParts, context: ForwardContext) -> bool:
    """Return whether the mask and the bias depend only on the distance between positions."""
    return declares_capability(pattern, "is_relative") and context.query_positions.dim() == 1 and not bias_parts


def _has_padding_at_ends_only(context: ForwardContext) -> bool:
    """Return whether a mask has no padding between the tokens of a sequence, as blocked attention requires.

    Only then are adjacent positions at adjacent indices.
    """
    key_mask = context.key_mask
    if key_mask is None:
        return True
    memo_key = "has padding at ends only"
    if memo_key not in context.memo:  # computed once per pass, because it synchronizes with the device
        num_segments = (key_mask[:, 1:] & ~key_mask[:, :-1]).sum(1) + key_mask[:, 0]
        context.memo[memo_key] = bool((num_segments <= 1).all())
    return bool(context.memo[memo_key])
