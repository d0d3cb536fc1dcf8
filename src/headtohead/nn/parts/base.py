"""Base class of all parts, the model sizes they are built with, and the invariants they may declare to violate."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import nn

Invariant = Literal["causality", "batch-independence", "determinism", "kv-cache"]
"""causality: a position does not depend on later ones. batch-independence: a row does not depend on other rows.
determinism: equal inputs give equal outputs. kv-cache: decoding with a cache equals a full forward pass."""

AttentionImplementation = Literal["eager", "sdpa"]


@dataclass(frozen=True)
class ModelSizes:
    """The sizes of the model that a part is built for."""

    width: int
    heads: int
    head_dim: int
    layers: int
    context: int
    vocab_size: int
    is_causal: bool
    """True for a decoder: no position may attend to later ones."""
    dropout: float = 0.0


class Part(nn.Module):
    """A swappable component of a transformer.

    Keyword-only constructor arguments are the part's options. The first line of the docstring is its description."""

    slot: ClassVar[str] = ""
    kind: ClassVar[str] = ""
    attn_implementations: ClassVar[frozenset[AttentionImplementation]] = frozenset({"eager", "sdpa"})
    """Attention implementations the part works with. A model supports the intersection over its parts."""

    def __init__(self, sizes: ModelSizes) -> None:
        super().__init__()
        self.sizes = sizes

    @property
    def violates(self) -> frozenset[Invariant]:
        """Invariants that this part violates by design."""
        return frozenset()


def declares(part: Part, capability: str) -> bool:
    """Return whether the exact class of `part` defines `capability`, an attribute or property, with a true value.

    What a base class declares does not count, because a subclass may override the method that the declaration
    describes. Such a subclass runs on the reference path until it declares the capability itself."""
    return capability in vars(type(part)) and bool(getattr(part, capability))
