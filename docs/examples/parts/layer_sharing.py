"""Run each layer several times in a row. After Liu et al. 2024, arXiv:2402.14905 (immediate block-wise sharing)."""

from headtohead.parts import Stack, register_part


@register_part("stack", "layer-sharing")
class LayerSharing(Stack):
    """Each layer `repeats` times before the next one."""

    def __init__(self, sizes, *, repeats: int = 2):
        super().__init__(sizes)
        self.depth = repeats * sizes.layers

    def forward(self, x, layers, context):
        for index in range(self.depth):
            x = layers[index * len(layers) // self.depth](x, context)
        return x
