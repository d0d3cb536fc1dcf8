"""Output layers: map the hidden states of a language model to logits over the vocabulary.

An output layer may be followed by steps that transform its logits."""

import math
from dataclasses import replace
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from headtohead.errors import ModelError
from headtohead.nn.parts.base import ModelSizes, Part
from headtohead.nn.parts.context import ForwardContext
from headtohead.nn.parts.embedding import Embedding
from headtohead.nn.parts.feedforward import ACTIVATIONS, ActivationName
from headtohead.nn.parts.registry import register_part

HiddenStates = Float[Tensor, "*positions width"]
Logits = Float[Tensor, "*positions vocab"]


class Output(Part):
    """Base class of output layers. `embedding` is the embedding part of the model, whose weights may be shared.

    The hidden states may be those of selected positions only, such as the last one in decoding."""

    def __init__(self, sizes: ModelSizes, embedding: Embedding) -> None:
        super().__init__(sizes)

    def forward(self, x: HiddenStates, context: ForwardContext) -> Logits:
        raise NotImplementedError

    def use_token_counts(self, token_counts: Int[Tensor, " vocab"]) -> None:
        """Initialize from the token counts of the training split. Called once before training."""


class OutputStep(Part):
    """Base class of parts that follow an output layer in a list and transform its logits."""

    is_step = True

    def forward(self, logits: Logits, x: HiddenStates, context: ForwardContext) -> Logits:
        raise NotImplementedError


@register_part("output", "linear")
class LinearOutput(Output):
    """A matrix and a bias; with `tie_word_embeddings`, the matrix is the embedding's. After Press and Wolf 2017."""

    is_tokenwise = True

    def __init__(
        self,
        sizes: ModelSizes,
        embedding: Embedding,
        *,
        bias: bool | Literal["frequencies"] = True,
        init: Literal["random", "zero"] = "random",
    ) -> None:
        """`bias = "frequencies"` starts from the log frequencies of the tokens in the training split. With
        `init = "zero"`, the matrix starts at 0.
        """
        super().__init__(sizes, embedding)
        self.bias_kind, self.init = bias, init
        self.is_layer = init == "random"
        self.starts_differently = (
            *(["weight"] if init == "zero" else []),
            *(["bias"] if bias == "frequencies" else []),
        )
        self.weight = nn.Parameter(torch.empty(sizes.vocab_size, sizes.width))
        if sizes.tie_word_embeddings:
            self.weight = self._get_tied_weight(embedding)
        self.register_parameter("bias", nn.Parameter(torch.empty(sizes.vocab_size)) if bias is not False else None)
        self.bias: nn.Parameter | None

    def _get_tied_weight(self, embedding: Embedding) -> nn.Parameter:
        """Return the embedding table to share, (vocab, width); raise ModelError if the embedding has none."""
        weight = dict(embedding.named_parameters()).get("weight")
        if weight is None or weight.shape != (self.sizes.vocab_size, self.sizes.width):
            raise ModelError(
                f"tie_word_embeddings: embedding {embedding.kind!r} has no matrix of shape (vocabulary, width) to share"
            )
        return weight

    def reset_parameters(self) -> None:
        """Initialize as torch does nn.Linear, or the matrix with zeros; the bias is the same in both cases."""
        if self.init == "random" or self.bias is not None:
            nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            bound = 1 / math.sqrt(self.sizes.width)
            nn.init.uniform_(self.bias, -bound, bound)
        if self.init == "zero":
            nn.init.zeros_(self.weight)

    @torch.no_grad()
    def use_token_counts(self, token_counts: Int[Tensor, " vocab"]) -> None:
        if self.bias is not None and self.bias_kind == "frequencies":
            counts = token_counts.double().clamp_min(0.5)  # the logarithm must be finite for tokens that never occur
            self.bias.copy_((counts / counts.sum()).log())

    def forward(self, x: HiddenStates, context: ForwardContext) -> Logits:
        return F.linear(x, self.weight, self.bias)


@register_part("output", "hidden-states")
class NoOutput(Output):
    """Return the hidden states instead of logits, for an imported encoder without a head, which cannot be trained."""

    is_tokenwise = True

    def forward(self, x: HiddenStates, context: ForwardContext) -> Logits:
        return x


@register_part("output", "mlm-head")
class MaskedLMHead(LinearOutput):
    """A hidden layer of the size of the embeddings, a norm, then a matrix. After Devlin et al. 2019 (BERT)."""

    is_tokenwise = True

    def __init__(
        self,
        sizes: ModelSizes,
        embedding: Embedding,
        *,
        activation: ActivationName = "gelu",
        hidden_bias: bool = True,
        norm_bias: bool = True,
        eps: float = 1e-12,
        bias: bool = True,
    ) -> None:
        """Create the output layer of BERT: linear, activation and norm before the matrix that gives the logits."""
        super().__init__(replace(sizes, width=embedding.sizes.width), embedding, bias=bias)
        width = embedding.sizes.width
        self.hidden = nn.Linear(sizes.width, width, bias=hidden_bias)
        self.activation = ACTIVATIONS[activation]
        self.norm = nn.LayerNorm(width, eps=eps, bias=norm_bias)

    def forward(self, x: HiddenStates, context: ForwardContext) -> Logits:
        return super().forward(self.norm(self.activation(self.hidden(x))), context)


@register_part("output", "scale")
class ScaledLogits(OutputStep):
    """Multiply the logits by `by`."""

    is_tokenwise = True

    def __init__(self, sizes: ModelSizes, *, by: float) -> None:
        super().__init__(sizes)
        self.by = by

    def forward(self, logits: Logits, x: HiddenStates, context: ForwardContext) -> Logits:
        return logits * self.by


@register_part("output", "softcap")
class SoftCappedLogits(OutputStep):
    """Keep the logits between -cap and cap with a tanh. After Gemma 2, 2024, arXiv:2408.00118."""

    is_tokenwise = True

    def __init__(self, sizes: ModelSizes, *, cap: float = 30.0) -> None:
        super().__init__(sizes)
        if cap <= 0:
            raise ModelError(f"softcap: cap must be above 0, got {cap}")
        self.cap = cap

    def forward(self, logits: Logits, x: HiddenStates, context: ForwardContext) -> Logits:
        return self.cap * (logits / self.cap).tanh()
