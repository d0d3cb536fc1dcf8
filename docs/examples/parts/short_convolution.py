"""Short causal convolutions of queries, keys and values. After So et al. 2021, arXiv:2109.08668 (Primer)."""

import torch
from torch import nn

from headtohead.parts import ProjectionStep, register_part


@register_part("projection", "short-convolution")
class ShortConvolution(ProjectionStep):
    """A depthwise convolution over the last `kernel` tokens: projection = ["linear", "short-convolution"]."""

    def __init__(self, sizes, *, kernel: int = 3):
        super().__init__(sizes)
        start = torch.tensor([0.5] + [0.5 / kernel] * (kernel - 1)).view(-1, 1, 1, 1)  # as in the code of the authors
        heads = (sizes.heads, sizes.key_heads, sizes.key_heads)
        self.kernels = nn.ParameterList(start.repeat(1, count, 1, sizes.head_dim) for count in heads)

    def forward(self, q, k, v, x, context):
        return tuple(
            sum(weight * context.shift(states, by) for by, weight in enumerate(kernel))
            for states, kernel in zip((q, k, v), self.kernels, strict=True)
        )
