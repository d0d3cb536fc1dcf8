"""Linear attention. After Katharopoulos et al. 2020, arXiv:2006.16236, computed with all weights in quadratic time."""

from torch.nn import functional as F

from headtohead.parts import MultiHeadAttention, register_part


@register_part("attention", "linear")
class LinearAttention(MultiHeadAttention):
    """Weights proportional to the product of the features elu(q) + 1 and elu(k) + 1."""

    def scores(self, q, k, context):
        return (F.elu(q) + 1) @ (F.elu(k) + 1).transpose(-1, -2)

    def weights(self, scores, allowed, context):
        scores = scores * allowed
        return scores / scores.sum(-1, keepdim=True).clamp_min(1e-6)
