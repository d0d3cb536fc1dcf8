"""Mix the heads before and after the softmax. After Shazeer et al. 2020, arXiv:2003.02436."""

import torch
from torch import nn

from headtohead.parts import MultiHeadAttention, register_part


@register_part("attention", "talking-heads")
class TalkingHeads(MultiHeadAttention):
    """Attention whose scores and weights are mixed over the heads."""

    def __init__(self, sizes, parts):
        super().__init__(sizes, parts)
        self.before, self.after = (nn.Parameter(torch.eye(sizes.heads)) for _ in range(2))

    def weights(self, scores, allowed, context):
        mixed = torch.einsum("bhqk,hg->bgqk", scores, self.before)
        return torch.einsum("bhqk,hg->bgqk", super().weights(mixed, allowed, context), self.after)
