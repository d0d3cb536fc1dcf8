"""xIELU. After Huang and Schlag 2024, arXiv:2411.13010."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from headtohead.parts import FeedForward, register_part


@register_part("feedforward", "xielu")
class XIELUFeedForward(FeedForward):
    """One hidden layer with a trainable activation: quadratic above 0, exponential below."""

    residual_layers = ("down",)

    def __init__(self, sizes, *, hidden: int | None = None, beta: float = 0.5):
        super().__init__(sizes)
        self.up = nn.Linear(sizes.width, hidden or 4 * sizes.width, bias=False)
        self.down = nn.Linear(hidden or 4 * sizes.width, sizes.width, bias=False)
        self.positive, self.negative = (nn.Parameter(torch.tensor(math.log(math.expm1(s)))) for s in (0.8, 0.8 - beta))
        self.beta = beta

    def forward(self, x, context):
        x = self.up(x)
        below = (self.beta + F.softplus(self.negative)) * (x.clamp_max(0).expm1() - x.clamp_max(0))
        return self.down(F.softplus(self.positive) * x.clamp_min(0).square() + below + self.beta * x)
