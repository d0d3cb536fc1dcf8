"""Skips from the embeddings to every layer, as in modded-nanogpt (2024) and nanochat (2026)."""

import torch
from torch import nn

from headtohead.parts import Stack, register_part


@register_part("stack", "embedding-skip")
class EmbeddingSkip(Stack):
    """Each layer reads a learned sum of the hidden states, with a share of 1, and the embeddings, with 0."""

    def __init__(self, sizes):
        super().__init__(sizes)
        self.shares = nn.Parameter(torch.tensor([1.0, 0.0]).repeat(sizes.layers, 1))

    def forward(self, x, layers, context):
        embeddings = x
        for layer, share in zip(layers, self.shares, strict=True):
            x = layer(share[0] * x + share[1] * embeddings, context)
        return x
