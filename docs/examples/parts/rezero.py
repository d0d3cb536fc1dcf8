"""ReZero. After Bachlechner et al. 2020, arXiv:2003.04887."""

import torch
from torch import nn

from headtohead.parts import Block, register_part


@register_part("block", "rezero")
class ReZeroBlock(Block):
    """Scale each residual branch by a learned number that starts at 0, without norms."""

    def __init__(self, sizes, build_norm, has_feedforward):
        super().__init__(sizes, build_norm, has_feedforward)
        self.scales = nn.Parameter(torch.zeros(1 + has_feedforward))

    def forward(self, x, attend, feedforward, context):
        x = x + self.scales[0] * self.drop(attend(x))
        return x if feedforward is None else x + self.scales[1] * self.drop(feedforward(x))
