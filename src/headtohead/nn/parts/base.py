"""What every part is told and what it may promise, whatever its slot."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import nn

Invariant = Literal["causality", "batch-independence", "determinism", "kv-cache"]
"""causal: no look into the future. batch: a row does not depend on its neighbours. repeatable: the same input gives the
same output. cache: decoding with a cache equals a full pass."""

AttentionImplementation = Literal["eager", "sdpa"]


@dataclass(frozen=True)
class ModelSizes:
    """The sizes of the model that a part is built into."""

    width: int
    heads: int
    head_dim: int
    layers: int
    context: int
    vocab: int
    is_causal: bool
    """a decoder: no position may look ahead"""
    dropout: float = 0.0


class Part(nn.Module):
    """One swappable piece. Its keyword-only arguments are its options; the docstring's first line describes it."""

    slot: ClassVar[str] = ""
    kind: ClassVar[str] = ""
    attn_implementations: ClassVar[frozenset[AttentionImplementation]] = frozenset({"eager", "sdpa"})
    """the roads on which the part can be used; a model's are the intersection"""

    def __init__(self, sizes: ModelSizes) -> None:
        super().__init__()
        self.sizes = sizes

    @property
    def violates(self) -> frozenset[Invariant]:
        """The laws that this part breaks on purpose."""
        return frozenset()
