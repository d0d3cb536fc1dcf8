"""Residual attention scores. After He et al. 2020, arXiv:2012.11747 (RealFormer)."""

from headtohead.parts import MultiHeadAttention, register_part


@register_part("attention", "residual-scores")
class ResidualScores(MultiHeadAttention):
    """Add the scores of the layer before."""

    def scores(self, q, k, context):
        scores = super().scores(q, k, context)
        if "scores" in context.shared:
            scores = scores + context.shared["scores"]
        context.shared["scores"] = scores
        return scores
