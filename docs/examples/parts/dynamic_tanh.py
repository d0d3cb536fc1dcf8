"""Dynamic Tanh. After Zhu et al. 2025, arXiv:2503.10622."""

import torch
from torch import nn

from headtohead.parts import Norm, register_part


@register_part("norm", "dynamic-tanh")
class DynamicTanh(Norm):
    """scale * tanh(alpha * x) + shift, with a learned number alpha."""

    def __init__(self, sizes, *, alpha: float = 0.5):
        super().__init__(sizes)
        self.alpha = nn.Parameter(torch.tensor(alpha))
        self.scale, self.shift = nn.Parameter(torch.ones(sizes.width)), nn.Parameter(torch.zeros(sizes.width))

    def forward(self, x, context):
        return self.scale * (self.alpha * x).tanh() + self.shift
