"""Factorised embeddings. After Lan et al. 2019, arXiv:1909.11942."""

from torch import nn

from headtohead.parts import Embedding, register_part


@register_part("embedding", "factorized")
class FactorizedEmbedding(Embedding):
    """Vectors of `size` dimensions, projected to the width of the model."""

    def __init__(self, sizes, *, size: int = 16):
        super().__init__(sizes)
        self.table, self.projection = nn.Embedding(sizes.vocab_size, size), nn.Linear(size, sizes.width, bias=False)

    def forward(self, input_ids, context):
        return self.projection(self.table(input_ids))
