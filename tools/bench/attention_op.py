"""The attention operation in isolation: from queries, keys and values to head outputs, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from headtohead.config import base
from headtohead.nn.parts import registry
from headtohead.nn.parts.attention import AttentionParts, MultiHeadAttention
from headtohead.nn.parts.base import ModelSizes
from headtohead.nn.parts.context import ForwardContext

NUM_HEADS = 2
"""attention heads of the base decoder"""
HEAD_DIM = 32
"""width of a head of the base decoder"""


def build_attention_pass(context: int, window: int | None, *, is_encoder: bool) -> Callable[[], None]:
    """Return a function that runs attention once: our sliding window, or full attention in torch's kernel."""
    query_key_value = [torch.randn(1, NUM_HEADS, context, HEAD_DIM, requires_grad=True) for _ in range(3)]
    output_gradient = torch.randn(1, NUM_HEADS, context, HEAD_DIM)
    q, k, v = query_key_value
    part = None if window is None else _build_window_attention(context, window, is_encoder=is_encoder)
    positions, input_ids = torch.arange(context), torch.zeros(1, context, dtype=torch.long)

    def run_attention() -> None:
        if part is None:
            head_outputs = F.scaled_dot_product_attention(q, k, v, is_causal=not is_encoder)
        else:  # a model also builds a new context, and with it the masks, for each pass
            head_outputs, _ = part.attend(q, k, v, ForwardContext(input_ids, positions, positions))
        torch.autograd.grad(head_outputs, query_key_value, output_gradient)

    return run_attention


def _build_window_attention(context: int, window: int, *, is_encoder: bool) -> MultiHeadAttention:
    """Return our attention with a sliding window."""
    sizes = ModelSizes(NUM_HEADS * HEAD_DIM, NUM_HEADS, HEAD_DIM, 1, context, 100, is_causal=not is_encoder)

    def build_slot(slot: str, config: object, *arguments: object) -> Any:
        return registry.build_part(slot, base.ComponentConfig.model_validate(config), sizes, *arguments)

    pattern = build_slot("pattern", {"kind": "window", "size": window})
    parts = AttentionParts(build_slot("projection", "linear"), [], pattern, [build_slot("merge", "concat")], [])
    part = build_slot("attention", "composed", parts)
    assert isinstance(part, MultiHeadAttention)
    return part
