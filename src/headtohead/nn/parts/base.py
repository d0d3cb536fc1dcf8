"""The base class of all parts of a model, the sizes that parts are built with, and the invariants they may violate."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import nn

Invariant = Literal["causality", "batch-independence", "determinism", "kv-cache"]
"""causality: a position does not depend on later ones. batch-independence: a sequence does not depend on the others in
its batch. determinism: equal inputs give equal outputs. kv-cache: decoding with a cache equals a full forward pass."""

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
    tie_word_embeddings: bool = False
    """True if the output layer shares the embedding table."""
    layer_index: int | None = None
    """Index of the layer that the part belongs to; None for parts outside the layers and for those that layers share,
    which are positions and patterns."""
    key_heads: int | None = None
    """Number of key and value heads; set for the parts that follow a projection, None for all others."""


class Component:
    """Base class of everything that can be registered for a slot.

    Keyword-only constructor arguments are its options. The first paragraph of the docstring is its description."""

    slot: ClassVar[str] = ""
    kind: ClassVar[str] = ""


class Part(Component, nn.Module):
    """Base class of the swappable modules of a model."""

    residual_layers: ClassVar[tuple[str, ...]] = ()
    """Names of the layers inside the part whose output is added to the residual stream. Parts in the slot `init` may
    scale them."""
    is_layer: bool = False
    """True if the part's own `weight` and `bias` are those of a layer, which parts in the slot `init` may change."""
    starts_differently: tuple[str, ...] = ()
    """Names of tensors that the part initializes differently on purpose, such as ("down.*",). They are not compared
    between models that should start equal."""
    is_step: ClassVar[bool] = False
    """True for a part that follows a different part in a list and transforms its output, such as `qk-norm`."""
    attn_implementations: frozenset[AttentionImplementation] = frozenset({"eager", "sdpa"})
    """Attention implementations the part works with. A model supports the intersection over its parts."""

    is_tokenwise: ClassVar[bool] = False
    """True if the part computes each token from this token, its position and the parameters alone. In batches with much
    padding, such parts receive all tokens as one row without padding, (1, tokens, ...). Attention pads them again."""

    def __init__(self, sizes: ModelSizes) -> None:
        super().__init__()
        self.sizes = sizes

    @property
    def violates(self) -> frozenset[Invariant]:
        """Invariants that this part violates by design."""
        return frozenset()


def declares_capability(part: Part, capability: str) -> bool:
    """Return whether the exact class of `part` defines `capability`, an attribute or property, with a true value.

    What a base class declares does not count, because a subclass may override the method that the declaration
    describes. Such a subclass runs on the reference path until it declares the capability itself."""
    return capability in vars(type(part)) and bool(getattr(part, capability))
