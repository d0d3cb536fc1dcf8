"""The one small protocol through which every model is used, ours, a pretrained one, or a user's own."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor

from headtohead.nn.kv_cache import DecodingCache, KVCache


@dataclass
class ModelOutput:
    """What a model gives back."""

    logits: Float[Tensor, "batch *length out"]
    """language model: (batch, length, vocab); classifier: (batch, classes)"""
    maps: tuple[Float[Tensor, "batch heads query key"], ...] | None = None
    """attention weights, one tensor a layer, when asked for"""
    hidden: Float[Tensor, "batch length width"] | None = None
    """the stream before the output layer"""


@runtime_checkable
class ModelProtocol(Protocol):
    """Tokens in, logits out."""

    context: int
    """the longest input"""

    def __call__(
        self,
        input_ids: Int[Tensor, "batch length"],
        attention_mask: Tensor | None = None,
        *,
        cache: KVCache | None = None,
        output_attentions: bool = False,
    ) -> ModelOutput: ...


@runtime_checkable
class Decoder(Protocol):
    """What decoding needs of a language model: one rung above `Model`, met by all three kinds."""

    context: int

    @property
    def can_pad(self) -> bool:
        """Whether texts of different length may stand in one batch, padded on the left."""

    def create_cache(self) -> DecodingCache | None:
        """An empty cache, or None: then the whole text is read anew at each step."""

    def next_token_logits(
        self, input_ids: Int[Tensor, "batch length"], attention_mask: Tensor | None = None, *, cache: Any = None
    ) -> Float[Tensor, "batch vocab"]:
        """The logits of what comes after the last token."""

    def build_decode_step(self, cache: Any) -> Callable[[Tensor], Tensor]:
        """A function that reads one more token of each row, (batch, 1), with this cache: logits of what comes next."""
