"""Embeddings of pairs of tokens. After Huang et al. 2025, arXiv:2501.16975 (Over-Encoding), with one hash table."""

from torch import nn

from headtohead.parts import EmbeddingStep, register_part


@register_part("embedding", "bigrams")
class BigramEmbedding(EmbeddingStep):
    """Add a vector for the previous and the current token: embedding = ["table", "bigrams"]."""

    def __init__(self, sizes, *, rows: int = 10007):
        super().__init__(sizes)
        self.table = nn.Embedding(rows, sizes.width)
        nn.init.zeros_(self.table.weight)

    def forward(self, x, context):
        ids = context.input_ids[..., None]
        previous = context.shift(ids.float() + 1).long()  # 0 at the first token
        return x + self.table(((previous * self.sizes.vocab_size + ids) % self.table.num_embeddings)[..., 0])
