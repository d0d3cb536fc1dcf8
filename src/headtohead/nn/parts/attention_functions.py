"""The roads of attention: one slow and in plain sight, which shows its maps, and fast ones proven equal to it.

`explicit` is the definition. `fused` hands the same to torch's scaled_dot_product_attention. `banded` is the fused road
for patterns of short reach: blocks of queries against the keys near them, so that time and memory are linear in the
context. A row that may look at nothing (padding) gives 0 on every road.
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
AttentionWeights = Float[Tensor, "batch heads query key"]
BLOCK_SIZE, SHORT_BLOCK_SIZE = 64, 16
"""how many queries the banded road takes together; the few of them for patterns that look no further than that"""


def eager_attention(
    q: Queries,
    k: Keys,
    v: Keys,
    allowed_mask: Bool[Tensor, "..."] | None,
    attention_bias: Tensor | None,
    dropout_p: float = 0.0,
) -> tuple[Queries, AttentionWeights]:
    """Scores, weights and output, step by step; the weights are the maps."""
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    if attention_bias is not None:
        scores = scores + attention_bias
    if allowed_mask is not None:
        scores = scores.masked_fill(~allowed_mask, -torch.inf)
    weights = scores.softmax(-1)
    if allowed_mask is not None:
        weights = weights.masked_fill(~allowed_mask, 0.0)  # a row that may see nothing is 0, not 0 / 0
    return F.dropout(weights, dropout_p) @ v, weights


def sdpa_attention(
    q: Queries,
    k: Keys,
    v: Keys,
    allowed_mask: Bool[Tensor, "..."] | None,
    attention_bias: Tensor | None,
    dropout_p: float = 0.0,
) -> Queries:
    """The same in one kernel."""
    mask = allowed_mask
    if attention_bias is not None:
        mask = (
            attention_bias.to(q.dtype)
            if allowed_mask is None
            else attention_bias.to(q.dtype).masked_fill(~allowed_mask, -torch.inf)
        )
    if mask is not None and mask.dim() == 3:
        mask = mask[None]  # a mask of three axes would be sent down the slow road inside
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout_p)


def causal_sdpa_attention(q: Queries, k: Keys, v: Keys, dropout_p: float = 0.0) -> Queries:
    """No mask at all: only for the plain triangle, and only when queries and keys are of one length."""
    assert q.shape[-2] == k.shape[-2]
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout_p)


def blocked_attention(
    q: Queries,
    k: Queries,
    v: Queries,
    position_ids: Int[Tensor, "*b query"],
    window_size: tuple[int, int],
    mask_fn: Callable[[Tensor, Tensor], tuple[Tensor, Tensor | None]],
    attention_mask: Bool[Tensor, "batch query"] | None,
    dropout_p: float = 0.0,
    *,
    is_shift_invariant: bool = False,
) -> Queries:
    """Blocks of queries against the keys within reach. `mask` gives (allowed, bias) for any positions; where it is
    `alike` for all blocks, one of them is asked about and nothing but the ends of the text is looked at in each."""
    batch, heads, length, _ = q.shape
    block = BLOCK_SIZE if max(window_size) > BLOCK_SIZE // 2 else SHORT_BLOCK_SIZE
    cuts = _BlockLayout(length, block, *(-(-one // block) for one in window_size))

    # What lies outside the text is not valid.
    inside = torch.ones_like(position_ids, dtype=torch.bool) if attention_mask is None else attention_mask
    key_inside = cuts.around(inside[..., None])[..., 0]  # (*b, blocks, span)
    if is_shift_invariant:
        key_at = torch.arange(cuts.span, device=q.device)
        allowed, bias = mask_fn(key_at[cuts.before * block :][:block], key_at)
    else:
        allowed, bias = mask_fn(
            cuts.split_into_blocks(position_ids[..., None])[..., 0], cuts.around(position_ids[..., None])[..., 0]
        )
    allowed = allowed & key_inside[..., None, :]
    if bias is not None:
        bias = bias.expand(*bias.shape[:-4], cuts.num_blocks, heads, block, cuts.span)

    # Blocks are like rows of a batch: (batch * blocks, heads, ...).
    queries, keys, values = (_split_into_blocks(x, cuts, around) for x, around in ((q, False), (k, True), (v, True)))
    out = sdpa_attention(
        queries,
        keys,
        values,
        _expand_per_block(allowed[..., None, :, :], batch, cuts.num_blocks),
        None if bias is None else _expand_per_block(bias, batch, cuts.num_blocks),
        dropout_p,
    )
    joined: Tensor = out.unflatten(0, (batch, cuts.num_blocks)).transpose(1, 2).flatten(2, 3)
    return joined[:, :, :length]


@dataclass(frozen=True)
class _BlockLayout:
    """How a text is cut into blocks, and how many blocks around each belong to it."""

    length: int
    block: int
    before: int
    after: int

    @property
    def num_blocks(self) -> int:
        return -(-self.length // self.block)

    @property
    def span(self) -> int:
        return (self.before + 1 + self.after) * self.block

    def split_into_blocks(self, x: Tensor) -> Tensor:
        """(..., length, n) to (..., blocks, block, n); zeros fill the last one up."""
        filled = F.pad(x, (0, 0, 0, self.num_blocks * self.block - self.length))
        return filled.view(*x.shape[:-2], self.num_blocks, self.block, x.shape[-1])

    def around(self, x: Tensor) -> Tensor:
        """(..., length, n) to (..., blocks, span, n): each with those around it, and zeros outside."""
        ends = self.before * self.block, (self.num_blocks + self.after) * self.block - self.length
        return F.pad(x, (0, 0, *ends)).unfold(-2, self.span, self.block).transpose(-1, -2)


class _SplitIntoBlocks(torch.autograd.Function):
    """(batch, heads, length, n) to (batch * blocks, heads, block or span, n). On the way back a neighbour at a time is
    added; torch's own way back from `unfold` goes number by number."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cuts: _BlockLayout, around: bool) -> Tensor:
        ctx.compute_shard_boundaries, ctx.sides = cuts, (cuts.before, cuts.after) if around else (0, 0)
        return (cuts.around(x) if around else cuts.split_into_blocks(x)).transpose(1, 2).flatten(0, 1).contiguous()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        cuts, (before, after) = ctx.compute_shard_boundaries, ctx.sides
        parts = gradients[0].unflatten(2, (-1, cuts.block)).unflatten(0, (-1, cuts.num_blocks)).transpose(1, 2)
        whole = parts.new_zeros(*parts.shape[:2], cuts.num_blocks + before + after, *parts.shape[4:])
        for at in range(before + 1 + after):
            whole[:, :, at : at + cuts.num_blocks] += parts[:, :, :, at]
        first = before * cuts.block
        return whole.flatten(2, 3)[:, :, first : first + cuts.length], None, None


def _split_into_blocks(x: Tensor, layout: _BlockLayout, include_neighbors: bool) -> Tensor:
    made: Tensor = _SplitIntoBlocks.apply(x, layout, include_neighbors)  # type: ignore[no-untyped-call]
    return made


def _expand_per_block(x: Tensor, batch: int, num_blocks: int) -> Tensor:
    """(blocks, h, q, k) or (batch, blocks, h, q, k) to (batch * blocks, h, q, k)."""
    if x.dim() == 4:
        x = x[None]
    return x.expand(batch, *x.shape[1:]).flatten(0, 1)
