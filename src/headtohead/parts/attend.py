"""The roads of attention: one slow and in plain sight, which shows its maps, and fast ones proven equal to it.

`explicit` is the definition. `fused` hands the same to torch's scaled_dot_product_attention. `banded` is the fused road
for patterns of short reach: blocks of queries against the keys near them, so that time and memory are linear in the
context. A row that may look at nothing (padding) gives 0 on every road.
"""

from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

Queries = Float[Tensor, "batch heads query head_dim"]
Keys = Float[Tensor, "batch heads key head_dim"]
Allowed = Bool[Tensor, "*b query key"]
Maps = Float[Tensor, "batch heads query key"]


def explicit(
    q: Queries,
    k: Keys,
    v: Keys,
    allowed: Bool[Tensor, "..."] | None,
    bias: Tensor | None,
    dropout: float = 0.0,
) -> tuple[Queries, Maps]:
    """Scores, weights and output, step by step; the weights are the maps."""
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    if bias is not None:
        scores = scores + bias
    if allowed is not None:
        scores = scores.masked_fill(~allowed, -torch.inf)
    weights = scores.softmax(-1)
    if allowed is not None:
        weights = weights.masked_fill(~allowed, 0.0)  # a row that may see nothing is 0, not 0 / 0
    return F.dropout(weights, dropout) @ v, weights


def fused(
    q: Queries,
    k: Keys,
    v: Keys,
    allowed: Bool[Tensor, "..."] | None,
    bias: Tensor | None,
    dropout: float = 0.0,
) -> Queries:
    """The same in one kernel."""
    mask = allowed
    if bias is not None:
        mask = bias.to(q.dtype) if allowed is None else bias.to(q.dtype).masked_fill(~allowed, -torch.inf)
    if mask is not None and mask.dim() == 3:
        mask = mask[None]  # a mask of three axes would be sent down the slow road inside
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)


def fused_causal(q: Queries, k: Keys, v: Keys, dropout: float = 0.0) -> Queries:
    """No mask at all: only for the plain triangle, and only when queries and keys are of one length."""
    assert q.shape[-2] == k.shape[-2]
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout)


def banded(
    q: Queries,
    k: Queries,
    v: Queries,
    at: Int[Tensor, "*b query"],
    reach: tuple[int, int],
    mask: Callable[[Tensor, Tensor], tuple[Tensor, Tensor | None]],
    valid: Bool[Tensor, "batch query"] | None,
    dropout: float = 0.0,
) -> Queries:
    """Blocks of queries against the keys within reach. `mask` gives (allowed, bias) for any positions.

    A block is as long as the reach, so each looks at itself and one block on each side that the reach extends to.
    """
    batch, heads, length, _ = q.shape
    back, ahead = reach
    block = max(back, ahead, 16)
    blocks = -(-length // block)
    pad = blocks * block - length
    before, after = (block if back else 0), (block if ahead else 0)

    cut = partial(_blocks, block=block, before=before, after=pad + after, span=before + block + after)

    # Positions and validity take the same road as the keys; what lies outside the text is not valid.
    inside = torch.ones_like(at, dtype=torch.bool) if valid is None else valid
    key_inside = cut(inside[..., None].to(q.dtype), 0.0)[..., 0] > 0  # (*b, blocks, span)
    key_at = cut(at[..., None], 0)[..., 0]
    query_at = F.pad(at, (0, pad)).unflatten(-1, (blocks, block))
    allowed, bias = mask(query_at, key_at)
    allowed = allowed & key_inside[..., None, :]

    # (batch, heads, blocks, ...) to (batch, blocks, heads, ...): blocks are like rows of a batch from here on.
    queries = F.pad(q, (0, 0, 0, pad)).unflatten(-2, (blocks, block)).transpose(1, 2)
    keys, values = (cut(x, 0.0).transpose(1, 2) for x in (k, v))
    if bias is not None:
        bias = bias.expand(*bias.shape[:-4], blocks, heads, block, keys.shape[-2])
    out = fused(
        queries.flatten(0, 1),
        keys.flatten(0, 1),
        values.flatten(0, 1),
        _per_block(allowed[..., None, :, :], batch, blocks),
        None if bias is None else _per_block(bias, batch, blocks),
        dropout,
    )
    joined: Tensor = out.unflatten(0, (batch, blocks)).transpose(1, 2).flatten(2, 3)
    return joined[:, :, :length]


def _blocks(x: Tensor, fill: float, *, block: int, before: int, after: int, span: int) -> Tensor:
    """(..., length, n) to (..., blocks, span, n): each block with its neighbourhood."""
    x = F.pad(x, (0, 0, before, after), value=fill)
    return x.unfold(-2, span, block).transpose(-1, -2)


def _per_block(x: Tensor, batch: int, blocks: int) -> Tensor:
    """(blocks, h, q, k) or (batch, blocks, h, q, k) to (batch * blocks, h, q, k)."""
    if x.dim() == 4:
        x = x[None]
    return x.expand(batch, *x.shape[1:]).flatten(0, 1)
