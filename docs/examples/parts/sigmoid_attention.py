"""Sigmoid attention. After Ramapuram et al. 2024, arXiv:2409.04431."""

from headtohead.parts import MultiHeadAttention, register_part


@register_part("attention", "sigmoid")
class SigmoidAttention(MultiHeadAttention):
    """Weights are sigmoids of the scores minus log(n), where n is the number of keys. They do not sum to 1."""

    def weights(self, scores, allowed, context):
        num_keys = allowed.sum(-1, keepdim=True).clamp_min(1)
        return (scores - num_keys.log()).sigmoid() * allowed
