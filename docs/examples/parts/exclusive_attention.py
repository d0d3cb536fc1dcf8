"""Exclusive self-attention: no part of a token's own value. After arXiv:2603.09078 (2026)."""

from torch.nn import functional as F

from headtohead.parts import MultiHeadAttention, register_part


@register_part("attention", "exclusive")
class ExclusiveAttention(MultiHeadAttention):
    """Head outputs without their component in the direction of the token's own value."""

    def attend(self, q, k, v, context):
        heads, weights = super().attend(q, k, v, context)
        own = F.normalize(v[:, :, -q.shape[2] :], dim=-1)
        return heads - (heads * own).sum(-1, keepdim=True) * own, weights
