"""LayerScale. After Touvron et al. 2021, arXiv:2103.17239."""

import torch
from torch import nn

from headtohead.parts import TwoNormBlock, register_part


@register_part("block", "layer-scale")
class LayerScaleBlock(TwoNormBlock):
    """Pre-norm block whose branches are scaled by a learned vector that starts at `start`."""

    def __init__(self, sizes, build_norm, has_feedforward, *, start: float = 0.1):
        super().__init__(sizes, build_norm, has_feedforward)
        self.scales = nn.Parameter(torch.full((1 + has_feedforward, sizes.width), start))

    def forward(self, x, attend, feedforward, context):
        x = x + self.scales[0] * self.drop(attend(self.attention_norm(x, context)))
        if feedforward is None:
            return x
        return x + self.scales[1] * self.drop(feedforward(self.feed_norm(x, context)))
