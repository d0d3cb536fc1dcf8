"""One layer of a transformer."""

from functools import partial

from jaxtyping import Float
from torch import Tensor, nn

from headtohead.nn.parts.attention import Attention
from headtohead.nn.parts.block import Block
from headtohead.nn.parts.context import ForwardContext
from headtohead.nn.parts.feedforward import FeedForward

HiddenStates = Float[Tensor, "batch length width"]


class TransformerLayer(nn.Module):
    """One transformer layer: a block that combines an attention and a feed-forward part."""

    def __init__(self, block: Block, attention: Attention, feedforward: FeedForward) -> None:
        super().__init__()
        self.block, self.attention, self.feedforward = block, attention, feedforward

    def forward(self, x: HiddenStates, context: ForwardContext, run_index: int) -> HiddenStates:
        """Return the hidden states after this layer, (batch, length, width).

        Args:
            x: Hidden states, (batch, length, width).
            context: Context of the forward pass.
            run_index: Index of this layer run in the forward pass. A stack may run a layer several times.
        """
        context.enter_layer(run_index)
        attend = partial(self.attention, context=context)
        feedforward = None if self.feedforward.is_absent else partial(self.feedforward, context=context)
        out: Tensor = self.block(x, attend, feedforward, context)
        return out
