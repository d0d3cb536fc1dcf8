"""Several residual streams. After Zhu et al. 2024, arXiv:2409.19606, static form, one connection per layer."""

import torch
from torch import nn

from headtohead.parts import Stack, register_part


@register_part("stack", "hyper-connections")
class HyperConnections(Stack):
    """Each layer reads a mix of `streams` residual streams, and its change is added to all of them."""

    def __init__(self, sizes, *, streams: int = 2):
        super().__init__(sizes)
        self.read = nn.Parameter(torch.full((sizes.layers, streams), 1 / streams))
        self.mix = nn.Parameter(torch.eye(streams).repeat(sizes.layers, 1, 1))
        self.write = nn.Parameter(torch.ones(sizes.layers, streams))

    def forward(self, x, layers, context):
        streams = x[..., None].expand(*x.shape, self.read.shape[1])
        for layer, read, mix, write in zip(layers, self.read, self.mix, self.write, strict=True):
            x = streams @ read
            streams = streams @ mix + (layer(x, context) - x)[..., None] * write
        return streams.mean(-1)
