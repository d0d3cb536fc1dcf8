"""Biases that decrease with the logarithm of the distance. After Chi et al. 2022, arXiv:2205.09921 (KERPLE)."""

import torch
from torch import nn

from headtohead.parts import Position, register_part


@register_part("position", "kerple-log")
class KerpleLog(Position):
    """Subtract r1 * log(1 + r2 * distance) from the scores, with positive r1 and r2 learned per head."""

    def __init__(self, sizes):
        super().__init__(sizes)
        self.log_strength, self.log_scale = (nn.Parameter(torch.rand(sizes.heads, 1, 1).log()) for _ in range(2))

    def compute_bias(self, query_positions, key_positions, context):
        distance = (query_positions[..., :, None] - key_positions[..., None, :]).abs()[..., None, :, :]
        return -self.log_strength.exp() * (self.log_scale.exp() * distance).log1p()
