"""Value embeddings, as in modded-nanogpt (2024)."""

import torch
from torch import nn

from headtohead.parts import ProjectionStep, register_part


@register_part("projection", "value-embedding")
class ValueEmbedding(ProjectionStep):
    """Add a vector per token to the values of every second layer: projection = ["linear", "value-embedding"]."""

    def __init__(self, sizes):
        super().__init__(sizes)
        self.is_used = sizes.layer_index % 2 == 0
        if self.is_used:
            self.table = nn.Embedding(sizes.vocab_size, sizes.key_heads * sizes.head_dim)
            self.share = nn.Parameter(torch.tensor(0.5))

    def forward(self, q, k, v, x, context):
        if self.is_used:
            vectors = self.table(context.input_ids).unflatten(-1, (self.sizes.key_heads, -1))
            v = v + self.share * vectors.transpose(1, 2)
        return q, k, v
