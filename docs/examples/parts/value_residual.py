"""Mix the values of the first layer into those of every layer. After Zhou et al. 2024, arXiv:2410.17897."""

import torch
from torch import nn

from headtohead.parts import ProjectionStep, register_part


@register_part("projection", "value-residual")
class ValueResidual(ProjectionStep):
    """Mix the values with those of the first layer: projection = ["linear", "value-residual"]."""

    def __init__(self, sizes):
        super().__init__(sizes)
        self.share = nn.Parameter(torch.tensor([0.5, 0.5])) if sizes.layer_index else None

    def forward(self, q, k, v, x, context):
        first = context.shared.setdefault("first-values", v)
        return q, k, v if self.share is None else self.share[0] * v + self.share[1] * first
