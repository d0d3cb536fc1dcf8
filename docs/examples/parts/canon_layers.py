"""Canon layers: short convolutions before attention and before the feed-forward layer (positions A and C).

After Allen-Zhu 2025, arXiv:2512.17351. Position B is `short_convolution.py`."""

import torch
from torch import nn

from headtohead.parts import TwoNormBlock, register_part


@register_part("block", "canon")
class CanonBlock(TwoNormBlock):
    """Pre-norm block; each sublayer also reads a depthwise convolution over the last `kernel` tokens."""

    def __init__(self, sizes, build_norm, has_feedforward, *, kernel: int = 4):
        super().__init__(sizes, build_norm, has_feedforward)
        kernels = torch.empty(1 + has_feedforward, kernel, sizes.width)
        self.kernels = nn.Parameter(nn.init.uniform_(kernels, -(kernel**-0.5), kernel**-0.5))

    def forward(self, x, attend, feedforward, context):
        x = x + self.drop(attend(self.convolve(self.attention_norm(x, context), self.kernels[0], context)))
        if feedforward is None:
            return x
        return x + self.drop(feedforward(self.convolve(self.feed_norm(x, context), self.kernels[1], context)))

    def convolve(self, x, kernel, context):
        return x + sum(weight * context.shift(x, by) for by, weight in enumerate(kernel))
