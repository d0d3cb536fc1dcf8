"""The protocol implemented by every model: models of parts, pretrained models and custom modules."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor

from headtohead.nn.kv_cache import DecodingCache


@dataclass
class ModelOutput:
    """The output of a forward pass. Field names follow transformers."""

    logits: Float[Tensor, "batch *length out"]
    """(batch, length, vocab) for a language model, (batch, classes) for a classifier."""
    attentions: tuple[Float[Tensor, "batch heads query key"], ...] | None = None
    """Attention weights, one tensor per layer, if requested with `output_attentions`."""
    last_hidden_state: Float[Tensor, "batch length width"] | None = None
    """The input to the output layer."""
    losses: dict[str, Float[Tensor, ""]] = field(default_factory=dict)
    """Auxiliary losses by name; empty outside training."""


@runtime_checkable
class Decoder(Protocol):
    """The language-model interface used by generation."""

    context: int

    @property
    def can_pad(self) -> bool:
        """Return whether a batch may contain sequences of different lengths, padded on the left."""

    def create_cache(self) -> DecodingCache | None:
        """Return an empty cache, or None if each decoding step has to process the whole sequence."""

    def next_token_logits(
        self, input_ids: Int[Tensor, "batch length"], attention_mask: Tensor | None = None, *, cache: Any = None
    ) -> Float[Tensor, "batch vocab"]:
        """Return the logits of the token that follows each sequence."""

    def build_decode_step(self, cache: Any) -> Callable[[Tensor], Tensor]:
        """Return a function from the latest token of each sequence, (batch, 1), to next-token logits."""
