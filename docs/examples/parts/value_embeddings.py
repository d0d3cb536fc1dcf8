"""Value embeddings, as in modded-nanogpt (2024)."""

import torch
from torch import nn

from headtohead.parts import ProjectionStep, register_part


@register_part("projection", "value-embedding")
class ValueEmbedding(ProjectionStep):
    """Add a vector per token to the values of every second layer: projection = ["linear", "value-embedding"]."""

    def __init__(self, sizes):
        super().__init__(sizes)
        self.table = None if sizes.layer_index % 2 else nn.Embedding(sizes.vocab_size, sizes.head_dim)
        self.gate = None if sizes.layer_index % 2 else nn.Parameter(torch.full((sizes.head_dim,), 0.5))

    def forward(self, q, k, v, x, context):
        if self.table is not None:
            v = v + (self.gate * self.table(context.input_ids))[:, None]
        return q, k, v
