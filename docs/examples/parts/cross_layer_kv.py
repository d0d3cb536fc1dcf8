"""Share keys and values between pairs of layers. After Brandon et al. 2024, arXiv:2405.12981."""

from torch import nn

from headtohead.parts import Projection, register_part


@register_part("projection", "cross-layer")
class CrossLayer(Projection):
    """Odd layers use the keys and values of the layer before them."""

    def __init__(self, sizes):
        super().__init__(sizes)
        num_matrices = 1 if sizes.layer_index % 2 else 3
        self.matrices = nn.ModuleList(nn.Linear(sizes.width, sizes.heads * sizes.head_dim) for _ in range(num_matrices))

    def forward(self, x, context):
        heads = [matrix(x).unflatten(-1, (self.sizes.heads, -1)).transpose(1, 2) for matrix in self.matrices]
        if len(heads) == 3:
            context.shared["keys-and-values"] = heads[1:]
        return heads[0], *context.shared["keys-and-values"]
