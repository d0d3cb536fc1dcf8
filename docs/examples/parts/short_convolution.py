"""Short causal convolutions of queries, keys and values. After So et al. 2021, arXiv:2109.08668."""

import torch
from torch import nn

from headtohead.parts import ProjectionStep, register_part


@register_part("projection", "short-convolution")
class ShortConvolution(ProjectionStep):
    """A depthwise convolution over the last `kernel` tokens: projection = ["linear", "short-convolution"]."""

    def __init__(self, sizes, *, kernel: int = 3):
        super().__init__(sizes)
        self.kernels = nn.Parameter(torch.eye(kernel)[0].repeat(3, sizes.head_dim, 1))

    def forward(self, q, k, v, x, context):
        return tuple(
            sum(context.shift(heads, by) * kernel[:, by] for by in range(kernel.shape[1]))
            for heads, kernel in zip((q, k, v), self.kernels, strict=True)
        )
