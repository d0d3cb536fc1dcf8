"""Softpick: a rectified softmax, with which a head can attend to nothing. After Zuhri et al. 2025, arXiv:2504.20966."""

from headtohead.parts import MultiHeadAttention, register_part


@register_part("attention", "softpick")
class SoftpickAttention(MultiHeadAttention):
    """Weights relu(exp(score) - 1), divided by the sum of |exp(score) - 1|."""

    def weights(self, scores, allowed, context):
        scores = scores.masked_fill(~allowed, 0)
        largest = scores.amax(-1, keepdim=True).clamp_min(0).detach()  # exp(score) may be too large for the data type
        differences = (scores - largest).exp() - (-largest).exp()
        return differences.relu() / (differences.abs().sum(-1, keepdim=True) + 1e-6 * (-largest).exp())
