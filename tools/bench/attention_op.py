"""The attention operation alone: queries, keys and values in, head outputs out, forward and backward."""

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
"""sizes of the base decoder"""


def build_attention_pass(context: int, window: int | None, *, is_encoder: bool) -> Callable[[], None]:
    """Return a function that runs attention once: our sliding window, or full attention in torch's kernel."""
    inputs = [torch.randn(1, HEADS, context, HEAD_DIM, requires_grad=True) for _ in range(3)]
    gradient = torch.randn(1, HEADS, context, HEAD_DIM)
    q, k, v = inputs
    part = None if window is None else _build_window_attention(context, window, is_encoder=is_encoder)
    positions = torch.arange(context)

    def run() -> None:
        if part is None:
            heads = F.scaled_dot_product_attention(q, k, v, is_causal=not is_encoder)
        else:  # a model also builds a new context, and with it the masks, for each pass
            heads, _ = part._attend(q, k, v, AttentionContext(positions, positions, []))
        torch.autograd.grad(heads, inputs, gradient)

    return run


def _build_window_attention(context: int, window: int, *, is_encoder: bool) -> MultiHeadAttention:
    sizes = ModelSizes(HEADS * HEAD_DIM, HEADS, HEAD_DIM, 1, context, 100, is_causal=not is_encoder)

    def build(slot: str, config: object, *arguments: object) -> Any:
        return registry.build_part(slot, base.ComponentConfig.model_validate(config), sizes, *arguments)

    pattern = build("pattern", {"kind": "window", "size": window})
    part = build("attention", "composed", build("projection", "linear"), pattern, build("merge", "concat"), [])
    assert isinstance(part, MultiHeadAttention)
    return part
