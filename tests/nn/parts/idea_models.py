"""Small models of parts for published ideas, and slow reference computations, for tests of the formulas."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from headtohead.config.tables import model as config_model
from headtohead.model_factory import build_model
from headtohead.nn.parts.context import ForwardContext
from headtohead.nn.transformer import Transformer

VOCAB = 13
WIDTH = 16
HEADS = 4
HEAD_DIM = 4
LENGTH = 7
BATCH_SIZE = 2
CAUSAL = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()


def build(**settings: Any) -> Transformer:
    """Return a decoder of two layers in float64 whose parameters are all random."""
    small = {"width": WIDTH, "heads": HEADS, "layers": 2, "context": LENGTH, "position": "none"}
    config = config_model.TransformerConfig.model_validate({**small, **settings})
    model = build_model(config, VOCAB).double().eval()
    assert isinstance(model, Transformer)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return model


def draw_ids(seed: int = 0) -> Tensor:
    return torch.randint(VOCAB, (BATCH_SIZE, LENGTH), generator=torch.Generator().manual_seed(seed))


def draw_states(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def create_context(layer_index: int = 0, ids: Tensor | None = None) -> ForwardContext:
    context = ForwardContext.create(draw_ids() if ids is None else ids, layer_index=layer_index)
    context.attn_implementation = "eager"
    return context


def run_attention(kind: Any, layer_index: int = 0, **settings: Any) -> tuple[Any, Tensor, Tensor, Tensor, Tensor]:
    """Return an attention part, its queries, keys and values, and the head outputs before its output matrix."""
    model = build(attention=kind, **settings)
    part: Any = model.layers[layer_index].attention
    x, context = draw_states(BATCH_SIZE, LENGTH, WIDTH), create_context(layer_index)
    q, k, v = part.project(x, context)
    part.output = nn.Identity()
    heads = part(x, create_context(layer_index)).unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2)
    return part, q, k, v, heads


def compute_scores(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.transpose(-1, -2) / math.sqrt(HEAD_DIM)


def causal_softmax(scores: Tensor) -> Tensor:
    return scores.masked_fill(~CAUSAL, -torch.inf).softmax(-1)


def assert_equal(actual: Tensor, expected: Tensor, tolerance: float = 1e-9) -> None:
    assert actual.shape == expected.shape
    assert float((actual - expected).detach().abs().max()) < tolerance
