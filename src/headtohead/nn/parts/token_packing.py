"""Remove padding from a batch and restore it, for parts that compute each token on its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

MAX_TOKEN_FRACTION = 0.85
"""largest fraction of tokens that are not padding at which the removal of padding saves time"""


@dataclass(frozen=True)
class TokenPacking:
    """The tokens of a padded batch as one row, without padding: (1, tokens, ...) instead of (batch, length, ...)."""

    indices: Int[Tensor, "tokens"]
    """index of each token in the flattened batch"""
    batch_size: int
    length: int

    def pack(self, x: Tensor) -> Tensor:
        """Return the tokens of (batch, length, ...) as (1, tokens, ...), without gradients."""
        return x.flatten(0, 1).index_select(0, self.indices)[None]

    def pad(self, x: Tensor) -> Tensor:
        """Return (1, tokens, width) as (batch, length, width), with zeros at padding."""
        (padded,) = self.pad_heads(x[:, None])
        return padded[:, 0]

    def pack_heads(self, x: Tensor) -> Tensor:
        """Return the tokens of (batch, heads, length, head_dim) as (1, heads, tokens, head_dim)."""
        packed: Tensor = _PackHeads.apply(x, self)  # type: ignore[no-untyped-call]
        return packed

    def pad_heads(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return (1, heads, tokens, head_dim) as (batch, heads, length, head_dim), with zeros at padding."""
        padded: tuple[Tensor, ...] = _PadHeads.apply(self, *tensors)  # type: ignore[no-untyped-call]
        return padded


def pack_tokens(attention_mask: Bool[Tensor, "batch length"]) -> TokenPacking | None:
    """Return a packing of the tokens of a batch where the mask is True.

    Return None if there is too little padding, or a sequence without tokens, whose padding a pool may read.
    """
    indices = attention_mask.flatten().nonzero()[:, 0]
    if len(indices) > MAX_TOKEN_FRACTION * attention_mask.numel() or not attention_mask.any(1).all():
        return None
    return TokenPacking(indices, *attention_mask.shape)


class _PackHeads(torch.autograd.Function):
    """Select the tokens; the backward pass of `index_select` would add them one by one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, packing: TokenPacking) -> Tensor:
        ctx.packing = packing
        return _pack_heads(x, packing)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return _pad_heads(gradients[0], ctx.packing), None


class _PadHeads(torch.autograd.Function):
    """Insert zeros at padding, in several tensors at once to save time between operations."""

    @staticmethod
    def forward(ctx: Any, packing: TokenPacking, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.packing = packing
        return tuple(_pad_heads(x, packing) for x in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return None, *(_pack_heads(gradient, ctx.packing) for gradient in gradients)


def _pack_heads(x: Tensor, packing: TokenPacking) -> Tensor:
    rows = x.transpose(1, 2).reshape(-1, x.shape[1], x.shape[3])
    return rows.index_select(0, packing.indices).transpose(0, 1)[None]


def _pad_heads(x: Tensor, packing: TokenPacking) -> Tensor:
    rows = x.new_zeros(packing.batch_size * packing.length, x.shape[1], x.shape[3])
    rows.index_copy_(0, packing.indices, x[0].transpose(0, 1))
    return rows.view(packing.batch_size, packing.length, *rows.shape[1:]).transpose(1, 2)
