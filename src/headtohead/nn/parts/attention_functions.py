"""Fast attention implementations. The reference, `eager`, is `MultiHeadAttention.scores` and `weights`.

`sdpa` uses torch.nn.functional.scaled_dot_product_attention. `blocked` calls sdpa for blocks of queries and the keys in
their window, so that time and memory are linear in the context length. In every implementation, a query that may not
attend to any key (padding) outputs 0.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

Queries = Float[Tensor, "batch heads query head_dim"]
Keys = Float[Tensor, "batch heads key head_dim"]
AttentionMask = Bool[Tensor, "*b query key"]
BLOCK_SIZE = 64
"""Queries per block of blocked attention."""
SHORT_BLOCK_SIZE = 16
"""Queries per block for windows of at most half of BLOCK_SIZE."""


def sdpa_attention(
    q: Queries,
    k: Keys,
    v: Keys,
    allowed_mask: Bool[Tensor, "..."] | None,
    attention_bias: Tensor | None,
    dropout_p: float = 0.0,
) -> Queries:
    """Return the head outputs of PyTorch's fused kernel, which does not return attention weights.

    Args:
        q, k, v: Queries, keys and values.
        allowed_mask: True where a query may attend to a key, broadcastable to (batch, heads, query, key); None for all.
        attention_bias: Added to the scores, broadcastable to (batch, heads, query, key).
        dropout_p: Dropout probability of the attention weights.
    """
    mask = allowed_mask
    if attention_bias is not None:
        mask = (
            attention_bias.to(q.dtype)
            if allowed_mask is None
            else attention_bias.to(q.dtype).masked_fill(~allowed_mask, -torch.inf)
        )
    if mask is not None and mask.dim() == 3:
        mask = mask[None]  # a three-dimensional mask would select a slow kernel
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout_p)


def causal_sdpa_attention(q: Queries, k: Keys, v: Keys, dropout_p: float = 0.0) -> Queries:
    """Return the head outputs of causal attention without a mask tensor, for queries and keys of equal length."""
    assert q.shape[-2] == k.shape[-2]
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout_p)


def blocked_attention(
    q: Queries,
    k: Queries,
    v: Queries,
    position_ids: Int[Tensor, "*b query"],
    window_size: tuple[int, int],
    compute_mask_and_bias: Callable[[Tensor, Tensor], tuple[Tensor, Tensor | None]],
    attention_mask: Bool[Tensor, "batch query"] | None,
    dropout_p: float = 0.0,
    *,
    is_shift_invariant: bool = False,
) -> Queries:
    """Return the head outputs of windowed attention, computed per block of queries in time and memory linear in length.

    Args:
        q, k, v: Queries, keys and values.
        position_ids: Position of each token.
        window_size: Number of tokens behind and ahead that a query attends to.
        compute_mask_and_bias: Returns (mask, bias) for any query and key positions.
        attention_mask: False on padding.
        dropout_p: Dropout probability of the attention weights.
        is_shift_invariant: Mask and bias depend on distances only, so they are computed for a single block. Blocks then
            differ only in which keys lie outside the sequence.
    """
    batch, heads, length, _ = q.shape
    block_size = BLOCK_SIZE if max(window_size) > BLOCK_SIZE // 2 else SHORT_BLOCK_SIZE
    layout = _BlockLayout(length, block_size, *(-(-distance // block_size) for distance in window_size))

    # Keys before the first and after the last token are masked.
    token_mask = torch.ones_like(position_ids, dtype=torch.bool) if attention_mask is None else attention_mask
    key_mask = layout.split_with_neighbors(token_mask[..., None])[..., 0]  # (*b, blocks, key_span)
    if is_shift_invariant:
        key_positions = torch.arange(layout.key_span, device=q.device)
        query_positions = key_positions[layout.blocks_before * block_size :][:block_size]
        allowed, bias = compute_mask_and_bias(query_positions, key_positions)
    else:
        allowed, bias = compute_mask_and_bias(
            layout.split_into_blocks(position_ids[..., None])[..., 0],
            layout.split_with_neighbors(position_ids[..., None])[..., 0],
        )
    allowed = allowed & key_mask[..., None, :]
    if bias is not None:
        bias = bias.expand(*bias.shape[:-4], layout.num_blocks, heads, block_size, layout.key_span)

    # Blocks become part of the batch dimension: (batch * blocks, heads, ...).
    queries, keys, values = (
        _split_into_blocks(x, layout, with_neighbors) for x, with_neighbors in ((q, False), (k, True), (v, True))
    )
    block_outputs = sdpa_attention(
        queries,
        keys,
        values,
        _expand_per_block(allowed[..., None, :, :], batch, layout.num_blocks),
        None if bias is None else _expand_per_block(bias, batch, layout.num_blocks),
        dropout_p,
    )
    outputs: Tensor = block_outputs.unflatten(0, (batch, layout.num_blocks)).transpose(1, 2).flatten(2, 3)
    return outputs[:, :, :length]


@dataclass(frozen=True)
class _BlockLayout:
    """How a sequence is split into blocks, and how many neighboring blocks hold the keys that a block attends to."""

    length: int
    block_size: int
    blocks_before: int
    blocks_after: int

    @property
    def num_blocks(self) -> int:
        """Number of blocks of queries."""
        return -(-self.length // self.block_size)

    @property
    def key_span(self) -> int:
        """Number of keys of a block: its own and those of its neighbors."""
        return (self.blocks_before + 1 + self.blocks_after) * self.block_size

    def split_into_blocks(self, x: Tensor) -> Tensor:
        """Return (..., length, n) as (..., blocks, block_size, n), padded with zeros."""
        padded = F.pad(x, (0, 0, 0, self.num_blocks * self.block_size - self.length))
        return padded.view(*x.shape[:-2], self.num_blocks, self.block_size, x.shape[-1])

    def split_with_neighbors(self, x: Tensor) -> Tensor:
        """Split keys for blocked attention: (..., length, n) becomes (..., blocks, key_span, n), zeros outside."""
        padding_before = self.blocks_before * self.block_size
        padding_after = (self.num_blocks + self.blocks_after) * self.block_size - self.length
        padded = F.pad(x, (0, 0, padding_before, padding_after))
        return padded.unfold(-2, self.key_span, self.block_size).transpose(-1, -2)


class _SplitIntoBlocks(torch.autograd.Function):
    """(batch, heads, length, n) to (batch * blocks, heads, block_size or key_span, n).

    The backward pass adds one neighbor at a time; PyTorch's backward of `unfold` adds element by element."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layout: _BlockLayout, with_neighbors: bool) -> Tensor:
        ctx.layout = layout
        ctx.neighbors = (layout.blocks_before, layout.blocks_after) if with_neighbors else (0, 0)
        blocks = layout.split_with_neighbors(x) if with_neighbors else layout.split_into_blocks(x)
        return blocks.transpose(1, 2).flatten(0, 1).contiguous()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Sum the gradients of overlapping attention blocks back into a tensor of the original length."""
        layout, (before, after) = ctx.layout, ctx.neighbors
        block_gradients = (
            gradients[0].unflatten(2, (-1, layout.block_size)).unflatten(0, (-1, layout.num_blocks)).transpose(1, 2)
        )
        gradient_sums = block_gradients.new_zeros(
            *block_gradients.shape[:2], layout.num_blocks + before + after, *block_gradients.shape[4:]
        )
        for offset in range(before + 1 + after):
            gradient_sums[:, :, offset : offset + layout.num_blocks] += block_gradients[:, :, :, offset]
        first_token = before * layout.block_size
        return gradient_sums.flatten(2, 3)[:, :, first_token : first_token + layout.length], None, None


def _split_into_blocks(x: Tensor, layout: _BlockLayout, with_neighbors: bool) -> Tensor:
    """Return queries (without neighbors), or keys and values (with neighbors), as blocks in the batch dimension."""
    blocks: Tensor = _SplitIntoBlocks.apply(x, layout, with_neighbors)  # type: ignore[no-untyped-call]
    return blocks


def _expand_per_block(x: Tensor, batch: int, num_blocks: int) -> Tensor:
    """Return masks or biases of shape (blocks, h, q, k) or (batch, blocks, h, q, k) as (batch * blocks, h, q, k)."""
    if x.dim() == 4:
        x = x[None]
    return x.expand(batch, *x.shape[1:]).flatten(0, 1)
