"""Cap attention scores. After Gemma Team 2024, arXiv:2408.00118."""

from headtohead.parts import MultiHeadAttention, register_part


@register_part("attention", "soft-capped")
class SoftCappedAttention(MultiHeadAttention):
    """Attention with scores between -cap and cap."""

    def __init__(self, sizes, parts, *, cap: float = 50.0):
        super().__init__(sizes, parts)
        self.cap = cap

    def scores(self, q, k, context):
        return self.cap * (super().scores(q, k, context) / self.cap).tanh()
