"""Scalable softmax. After Nakanishi 2025, arXiv:2501.19399."""

import math

import torch
from torch import nn

from headtohead.parts import MultiHeadAttention, register_part


@register_part("attention", "scalable-softmax")
class ScalableSoftmax(MultiHeadAttention):
    """Multiply the scores by s * log(n), where n is the number of keys and s is learned per head."""

    def __init__(self, sizes, parts):
        super().__init__(sizes, parts)
        # Starts as the usual softmax at the length of the context.
        self.scale = nn.Parameter(torch.full((sizes.heads, 1, 1), 1 / math.log(sizes.context)))

    def weights(self, scores, allowed, context):
        num_keys = allowed.sum(-1, keepdim=True).clamp_min(1)
        return super().weights(scores * self.scale * num_keys.log(), allowed, context)
