"""Mixture of experts with a load-balancing loss. After Fedus et al. 2021, arXiv:2101.03961."""

import torch
from torch import nn
from torch.nn import functional as F

from headtohead.parts import FeedForward, register_part


@register_part("feedforward", "experts")
class Experts(FeedForward):
    """Each token goes to one of `experts` networks; an auxiliary loss keeps their loads equal."""

    def __init__(self, sizes, *, experts: int = 4, balance: float = 0.01):
        super().__init__(sizes)
        self.router, self.balance = nn.Linear(sizes.width, experts, bias=False), balance
        self.up = nn.ModuleList(nn.Linear(sizes.width, 4 * sizes.width) for _ in range(experts))
        self.down = nn.ModuleList(nn.Linear(4 * sizes.width, sizes.width) for _ in range(experts))

    def forward(self, x, context):
        probabilities = self.router(x).softmax(-1)
        chosen = F.one_hot(probabilities.argmax(-1), len(self.up)).to(x.dtype)
        shares = chosen.mean((0, 1)) @ probabilities.mean((0, 1))
        context.add_loss("load-balance", self.balance * len(self.up) * shares)
        outputs = torch.stack([down(up(x).relu()) for up, down in zip(self.up, self.down, strict=True)], dim=-1)
        return (outputs * (chosen * probabilities)[..., None, :]).sum(-1)
