"""DenseFormer. After Pagliardini et al. 2024, arXiv:2402.02622."""

import torch
from torch import nn

from headtohead.parts import Stack, register_part


@register_part("stack", "dense")
class DenseStack(Stack):
    """After each layer, a learned weighted sum of the embeddings and the outputs of all layers so far."""

    def __init__(self, sizes):
        super().__init__(sizes)
        starts = [torch.eye(index + 2)[-1] for index in range(sizes.layers)]
        self.shares = nn.ParameterList(nn.Parameter(start) for start in starts)

    def forward(self, x, layers, context):
        outputs = [x]
        for layer, shares in zip(layers, self.shares, strict=True):
            outputs.append(layer(x, context))
            x = sum(share * output for share, output in zip(shares, outputs, strict=True))
        return x
