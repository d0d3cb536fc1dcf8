"""Token shift. After Peng et al. 2023, arXiv:2305.13048 (RWKV); with a gate, as in modded-nanogpt (2025)."""

import torch
from torch import nn

from headtohead.parts import EmbeddingStep, register_part


@register_part("embedding", "smear")
class Smear(EmbeddingStep):
    """Add the embedding of the previous token, times a gate: embedding = ["table", "smear"]."""

    def __init__(self, sizes):
        super().__init__(sizes)
        self.gate, self.scale = nn.Linear(sizes.width, 1, bias=False), nn.Parameter(torch.zeros(()))

    def forward(self, x, context):
        return x + self.scale * self.gate(x).sigmoid() * context.shift(x)
