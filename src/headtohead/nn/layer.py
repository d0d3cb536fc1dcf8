"""One layer of a transformer."""

from functools import partial

from jaxtyping import Float
from torch import Tensor, nn

from headtohead.nn.parts.attention import Attention, AttentionContext
from headtohead.nn.parts.block import Block
from headtohead.nn.parts.feedforward import FeedForward

HiddenStates = Float[Tensor, "batch length width"]


class TransformerLayer(nn.Module):
    """One layer: a block with its attention and feed-forward parts."""

    def __init__(self, block: Block, attention: Attention, feedforward: FeedForward) -> None:
        super().__init__()
        self.block, self.attention, self.feedforward = block, attention, feedforward

    def forward(
        self, x: HiddenStates, attention_context: AttentionContext, layer_index: int
    ) -> tuple[HiddenStates, Tensor | None]:
        """Return the hidden states, and the attention weights if requested."""
        attentions: list[Tensor | None] = []
        attend = partial(self._attend, attention_context, layer_index, attentions)
        out: Tensor = self.block(x, attend, None if self.feedforward.is_absent else self.feedforward)
        return out, attentions[0] if attentions else None

    def _attend(
        self,
        attention_context: AttentionContext,
        layer_index: int,
        attentions: list[Tensor | None],
        hidden_states: HiddenStates,
    ) -> HiddenStates:
        """Apply attention to the hidden states, with the signature that blocks expect. Appends the weights to
        `attentions`.
        """
        out: Tensor
        out, weights = self.attention(hidden_states, attention_context, layer_index)
        attentions.append(weights)
        return out
