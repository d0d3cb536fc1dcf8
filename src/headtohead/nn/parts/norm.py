"""Norms: rescale the hidden states of each position."""

from jaxtyping import Float
from torch import Tensor, nn

from headtohead.nn.parts.base import ModelSizes, Part
from headtohead.nn.parts.context import ForwardContext
from headtohead.nn.parts.registry import register_part

HiddenStates = Float[Tensor, "*batch width"]


class Norm(Part):
    """Base class of norms."""

    def forward(self, x: HiddenStates, context: ForwardContext) -> HiddenStates:
        raise NotImplementedError


@register_part("norm", "none")
class NoNorm(Norm):
    """No norm: return the input."""

    is_tokenwise = True

    def forward(self, x: HiddenStates, context: ForwardContext) -> HiddenStates:
        return x


@register_part("norm", "layer")
class LayerNorm(Norm):
    """Normalize to mean 0 and variance 1, then scale and shift. After Ba et al. 2016, arXiv:1607.06450."""

    is_tokenwise = True

    def __init__(self, sizes: ModelSizes, *, eps: float = 1e-5, bias: bool = True) -> None:
        super().__init__(sizes)
        self.inner = nn.LayerNorm(sizes.width, eps=eps, bias=bias)

    def forward(self, x: HiddenStates, context: ForwardContext) -> HiddenStates:
        out: Tensor = self.inner(x)
        return out


@register_part("norm", "rms")
class RMSNorm(Norm):
    """Normalize to root mean square 1, then scale. After Zhang and Sennrich 2019, arXiv:1910.07467."""

    is_tokenwise = True

    def __init__(self, sizes: ModelSizes, *, eps: float = 1e-6) -> None:
        super().__init__(sizes)
        self.inner = nn.RMSNorm(sizes.width, eps=eps)

    def forward(self, x: HiddenStates, context: ForwardContext) -> HiddenStates:
        out: Tensor = self.inner(x)
        return out
