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
        """Return the tokens of (batch, length, ...) as (1, tokens, ...)."""
        packed: Tensor = _SelectRows.apply(x.flatten(0, 1), self.indices)  # type: ignore[no-untyped-call]
        return packed[None]

    def pad(self, x: Tensor) -> Tensor:
        """Return (1, tokens, ...) as (batch, length, ...), with zeros at padding."""
        num_rows = self.batch_size * self.length
        padded: Tensor = _ScatterRows.apply(x[0], self.indices, num_rows)  # type: ignore[no-untyped-call]
        return padded.view(self.batch_size, self.length, *x.shape[2:])


def pack_tokens(attention_mask: Bool[Tensor, "batch length"]) -> TokenPacking | None:
    """Return a packing of the tokens where the mask is True.

    Return None if there is too little padding, or a sequence without tokens, whose padding a pool may read.
    """
    indices = attention_mask.flatten().nonzero()[:, 0]
    if len(indices) > MAX_TOKEN_FRACTION * attention_mask.numel() or not attention_mask.any(1).all():
        return None
    return TokenPacking(indices, *attention_mask.shape)


class _SelectRows(torch.autograd.Function):
    """Rows at distinct indices. The backward pass of `index_select` would add rows one by one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, indices: Tensor) -> Tensor:
        ctx.indices, ctx.num_rows = indices, len(x)
        return x.index_select(0, indices)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return _scatter_rows(gradients[0], ctx.indices, ctx.num_rows), None


class _ScatterRows(torch.autograd.Function):
    """Rows at distinct indices of a tensor of zeros."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, indices: Tensor, num_rows: int) -> Tensor:
        ctx.indices = indices
        return _scatter_rows(x, indices, num_rows)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return gradients[0].index_select(0, ctx.indices), None, None


def _scatter_rows(rows: Tensor, indices: Tensor, num_rows: int) -> Tensor:
    return rows.new_zeros(num_rows, *rows.shape[1:]).index_copy_(0, indices, rows)
