"""Run all layers several times with the same weights. After Dehghani et al. 2019, arXiv:1807.03819."""

from headtohead.parts import Stack, register_part


@register_part("stack", "looped")
class LoopedStack(Stack):
    """All layers in order, `repeats` times."""

    def __init__(self, sizes, *, repeats: int = 2):
        super().__init__(sizes)
        self.depth = repeats * sizes.layers

    def forward(self, x, layers, context):
        for index in range(self.depth):
            x = layers[index % len(layers)](x, context)
        return x
