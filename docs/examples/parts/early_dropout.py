"""Early dropout. After Liu et al. 2023, arXiv:2303.01500."""

import torch

from headtohead.parts import TwoNormBlock, register_part


@register_part("block", "early-dropout")
class EarlyDropoutBlock(TwoNormBlock):
    """Pre-norm block; the dropout of both branches decreases from `rate` to 0 in `steps` training passes. Set
    `model.dropout` to 0, because it applies to all steps."""

    def __init__(self, sizes, build_norm, has_feedforward, *, rate: float = 0.1, steps: int = 500):
        super().__init__(sizes, build_norm, has_feedforward)
        self.rate, self.steps = rate, steps
        self.register_buffer("passes", torch.zeros((), dtype=torch.long))

    def forward(self, x, attend, feedforward, context):
        self.drop.p = self.rate * max(0.0, 1 - self.passes.item() / self.steps)
        self.passes += context.is_training
        x = x + self.drop(attend(self.attention_norm(x, context)))
        return x if feedforward is None else x + self.drop(feedforward(self.feed_norm(x, context)))
