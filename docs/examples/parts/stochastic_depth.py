"""Stochastic depth for transformers. After Fan et al. 2019, arXiv:1909.11556 (LayerDrop)."""

import torch

from headtohead.parts import TwoNormBlock, register_part


@register_part("block", "stochastic-depth")
class StochasticDepthBlock(TwoNormBlock):
    """Pre-norm block. In training, sequences skip sublayers with a probability that rises to `rate` over the layers."""

    def __init__(self, sizes, build_norm, has_feedforward, *, rate: float = 0.2):
        super().__init__(sizes, build_norm, has_feedforward)
        self.rate = rate * (1 + (sizes.layer_index or 0)) / sizes.layers

    def forward(self, x, attend, feedforward, context):
        x = x + self.skip(self.drop(attend(self.attention_norm(x, context))), context)
        if feedforward is None:
            return x
        return x + self.skip(self.drop(feedforward(self.feed_norm(x, context))), context)

    def skip(self, change, context):
        if not context.is_training:
            return change
        is_kept = torch.rand(change.shape[0], 1, 1, device=change.device) >= self.rate
        return change * is_kept / (1 - self.rate)
