"""The one small protocol through which every model is used, ours, a pretrained one, or a user's own."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor

from .cache import Cache


@dataclass
class Output:
    """What a model gives back."""

    logits: Float[Tensor, "batch *length out"]
    """language model: (batch, length, vocab); classifier: (batch, classes)"""
    maps: tuple[Float[Tensor, "batch heads query key"], ...] | None = None
    """attention weights, one tensor a layer, when asked for"""
    hidden: Float[Tensor, "batch length width"] | None = None
    """the stream before the output layer"""


@runtime_checkable
class Model(Protocol):
    """Tokens in, logits out."""

    context: int
    """the longest input"""

    def __call__(
        self,
        input_ids: Int[Tensor, "batch length"],
        attention_mask: Tensor | None = None,
        *,
        cache: Cache | None = None,
        maps: bool = False,
    ) -> Output: ...
