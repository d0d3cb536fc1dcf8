"""Attention within documents. After Zhao et al. 2024, arXiv:2402.13991."""

from headtohead.parts import MultiHeadAttention, register_part


@register_part("attention", "within-documents")
class DocumentAttention(MultiHeadAttention):
    """Attention to keys of the same document; the token id `separator` starts a document."""

    def __init__(self, sizes, parts, *, separator: int = 0):
        super().__init__(sizes, parts)
        self.separator = separator

    def weights(self, scores, allowed, context):
        starts = context.zero_padding((context.input_ids == self.separator).float())
        documents = context.append_state("documents", starts).cumsum(1)
        is_same = documents[:, -scores.shape[2] :, None] == documents[:, None, :]
        return super().weights(scores, allowed & is_same[:, None], context)
