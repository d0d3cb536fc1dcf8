"""Stacks: the order in which a model runs its layers, and what each layer receives."""

from collections.abc import Callable, Sequence

from jaxtyping import Float
from torch import Tensor

from headtohead.nn.parts.base import ModelSizes, Part
from headtohead.nn.parts.context import ForwardContext
from headtohead.nn.parts.registry import register_part

HiddenStates = Float[Tensor, "batch length width"]
LayerFunction = Callable[[Tensor, ForwardContext], Tensor]
"""Runs one layer: maps (hidden states, context) to hidden states."""


class Stack(Part):
    """Base class of stacks. A part that does not run every layer once sets `depth`."""

    def __init__(self, sizes: ModelSizes) -> None:
        super().__init__(sizes)
        self.depth = sizes.layers
        """Number of layer runs in one pass. Each has its own keys and values in the KV cache."""

    def forward(self, x: HiddenStates, layers: Sequence[LayerFunction], context: ForwardContext) -> HiddenStates:
        """Run the layers on the embeddings; return the hidden states after the last layer."""
        raise NotImplementedError


@register_part("stack", "sequential")
class SequentialStack(Stack):
    """Every layer once, in order."""

    is_tokenwise = True

    def forward(self, x: HiddenStates, layers: Sequence[LayerFunction], context: ForwardContext) -> HiddenStates:
        for layer in layers:
            x = layer(x, context)
        return x
