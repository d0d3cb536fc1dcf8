"""Norms divided by the square root of the layer's number. After Sun et al. 2025, arXiv:2502.05795."""

from torch import nn

from headtohead.parts import Norm, register_part


@register_part("norm", "scaled-rms")
class ScaledRMSNorm(Norm):
    """RMSNorm divided by sqrt(l) in layer l, counted from 1; unchanged after the last layer."""

    def __init__(self, sizes):
        super().__init__(sizes)
        self.inner = nn.RMSNorm(sizes.width, eps=1e-6)
        self.scale = (1 + (sizes.layer_index or 0)) ** -0.5

    def forward(self, x, context):
        return self.scale * self.inner(x)
