"""Embeddings: map token ids to the hidden states that position parts and layers receive.

An embedding may be followed by steps that transform its hidden states."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from headtohead.errors import ModelError
from headtohead.nn.parts.base import ModelSizes, Part
from headtohead.nn.parts.context import ForwardContext
from headtohead.nn.parts.registry import register_part

InputIds = Int[Tensor, "batch length"]
HiddenStates = Float[Tensor, "batch length width"]
TIED_STD = 0.02
"""Standard deviation of initial embeddings that are also the output matrix, as in GPT-2."""


class Embedding(Part):
    """Base class of embeddings of token ids."""

    def forward(self, input_ids: InputIds, context: ForwardContext) -> HiddenStates:
        raise NotImplementedError


class EmbeddingStep(Part):
    """Base class of parts that follow an embedding in a list and transform it. Token ids are `context.input_ids`."""

    is_step = True

    def forward(self, x: HiddenStates, context: ForwardContext) -> HiddenStates:
        raise NotImplementedError


@register_part("embedding", "table")
class TableEmbedding(Embedding):
    """A learned vector for each token."""

    is_tokenwise = True

    def __init__(self, sizes: ModelSizes, *, std: float | None = None) -> None:
        """`std` is the standard deviation of the initial vectors. Unset, it is 1, as in torch, or 0.02 for embeddings
        tied to the output layer, as in GPT-2.
        """
        super().__init__(sizes)
        if std is not None and std <= 0:
            raise ModelError(f"table: std is a standard deviation and must be above 0, got {std}")
        self.std = std or (TIED_STD if sizes.tie_word_embeddings else 1.0)
        self.is_layer = std is None
        self.starts_differently = () if std is None else ("weight",)
        self.weight = nn.Parameter(torch.empty(sizes.vocab_size, sizes.width))

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight)
        with torch.no_grad():
            self.weight.mul_(self.std)

    def forward(self, input_ids: InputIds, context: ForwardContext) -> HiddenStates:
        return F.embedding(input_ids, self.weight)


@register_part("embedding", "scale")
class ScaledEmbedding(EmbeddingStep):
    """Multiply the embeddings by `by`, by default the square root of the width. After Vaswani et al. 2017."""

    is_tokenwise = True

    def __init__(self, sizes: ModelSizes, *, by: float | None = None) -> None:
        super().__init__(sizes)
        self.by = sizes.width**0.5 if by is None else by

    def forward(self, x: HiddenStates, context: ForwardContext) -> HiddenStates:
        return x * self.by
