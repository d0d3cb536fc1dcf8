"""Derf: the error function instead of a norm. After Chen et al. 2025, arXiv:2512.10938."""

import torch
from torch import nn

from headtohead.parts import Norm, register_part


@register_part("norm", "derf")
class Derf(Norm):
    """scale * erf(alpha * x + start) + shift, with learned numbers alpha and start."""

    def __init__(self, sizes, *, alpha: float = 0.5):
        super().__init__(sizes)
        self.alpha, self.start = nn.Parameter(torch.tensor(alpha)), nn.Parameter(torch.tensor(0.0))
        self.scale, self.shift = nn.Parameter(torch.ones(sizes.width)), nn.Parameter(torch.zeros(sizes.width))

    def forward(self, x, context):
        return self.scale * (self.alpha * x + self.start).erf() + self.shift
