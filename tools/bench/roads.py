"""The attention operation by itself: queries, keys and values in, heads out, forward and backward, on the road that a
model would take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from headtohead.config import base
from headtohead.nn.parts import registry
from headtohead.nn.parts.attention import AttentionContext, MultiHeadAttention
from headtohead.nn.parts.base import ModelSizes

HEADS, HEAD_DIM = 2, 32
"""of the base decoder"""


def attention_work(context: int, window: int | None, *, encoder: bool) -> Callable[[], None]:
    """With a window, the part's own road; without, full attention in torch's one kernel, with no mask to read."""
    made = [torch.randn(1, HEADS, context, HEAD_DIM, requires_grad=True) for _ in range(3)]
    gradient = torch.randn(1, HEADS, context, HEAD_DIM)
    q, k, v = made
    part = None if window is None else _windowed(context, window, encoder=encoder)
    at = torch.arange(context)

    def work() -> None:
        if part is None:
            heads = F.scaled_dot_product_attention(q, k, v, is_causal=not encoder)
        else:
            heads, _ = part._attend(
                q, k, v, AttentionContext(at, at, [])
            )  # masks are made anew for each pass of a model
        torch.autograd.grad(heads, made, gradient)

    return work


def _windowed(context: int, window: int, *, encoder: bool) -> MultiHeadAttention:
    sizes = ModelSizes(HEADS * HEAD_DIM, HEADS, HEAD_DIM, 1, context, 100, is_causal=not encoder)

    def build(slot: str, chosen: object, *more: object) -> Any:
        return registry.build_part(slot, base.ComponentConfig.model_validate(chosen), sizes, *more)

    pattern = build("pattern", {"kind": "window", "size": window})
    part = build("attention", "composed", build("projection", "linear"), pattern, build("merge", "concat"), [])
    assert isinstance(part, MultiHeadAttention)
    return part
