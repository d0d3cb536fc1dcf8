"""Forgetting attention. After Lin et al. 2025, arXiv:2503.02130."""

from torch import nn
from torch.nn import functional as F

from headtohead.parts import MultiHeadAttention, register_part


@register_part("attention", "forgetting")
class ForgettingAttention(MultiHeadAttention):
    """Scores decrease by a learned function of the tokens between query and key."""

    def __init__(self, sizes, parts):
        super().__init__(sizes, parts)
        self.forget = nn.Linear(sizes.width, sizes.heads)

    def scores(self, q, k, context):
        decay = context.zero_padding(F.logsigmoid(self.forget(context.attention_input)))  # batch x query x heads
        total = context.append_state("decay", decay).cumsum(1).transpose(1, 2)  # batch x heads x key
        return super().scores(q, k, context) + total[:, :, -q.shape[2] :, None] - total[:, :, None, :]
