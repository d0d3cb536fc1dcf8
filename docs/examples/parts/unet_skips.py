"""Skips from the first half of the layers to the second, in reverse order, as in modded-nanogpt (2024)."""

import torch
from torch import nn

from headtohead.parts import Stack, register_part


@register_part("stack", "u-net")
class UNetStack(Stack):
    """Add the output of layer i, scaled, to the input of layer L - i."""

    def __init__(self, sizes):
        super().__init__(sizes)
        self.scale = nn.Parameter(torch.ones(sizes.layers // 2))

    def forward(self, x, layers, context):
        half, skips = len(layers) // 2, []
        for index, layer in enumerate(layers):
            if index >= len(layers) - half:
                x = x + self.scale[len(skips) - 1] * skips.pop()
            x = layer(x, context)
            if index < half:
                skips.append(x)
        return x
