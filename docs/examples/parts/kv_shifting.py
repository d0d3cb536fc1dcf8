"""Mix keys and values with those of the previous token. After Xu et al. 2024, arXiv:2411.19574."""

import torch
from torch import nn

from headtohead.parts import ProjectionStep, register_part


@register_part("projection", "kv-shifting")
class KeyValueShifting(ProjectionStep):
    """Learned shares of the current and the previous token, per head: projection = ["linear", "kv-shifting"]."""

    def __init__(self, sizes):
        super().__init__(sizes)
        share = torch.rand(2, 1, sizes.key_heads, 1, 1)
        self.shares = nn.Parameter(torch.cat((share, 1 - share), dim=1))  # keys and values x current and previous

    def forward(self, q, k, v, x, context):
        k, v = (now * x + before * context.shift(x) for x, (now, before) in zip((k, v), self.shares, strict=True))
        return q, k, v
