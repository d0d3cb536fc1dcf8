"""Feed-forward layers: applied to each position separately."""

from typing import Literal

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from headtohead.nn.parts.base import ModelSizes, Part
from headtohead.nn.parts.registry import register_part

HiddenStates = Float[Tensor, "batch length width"]
ActivationName = Literal["relu", "gelu", "gelu-tanh", "silu"]
ACTIVATIONS: dict[str, nn.Module] = {
    "relu": nn.ReLU(),
    "gelu": nn.GELU(),
    "gelu-tanh": nn.GELU(approximate="tanh"),
    "silu": nn.SiLU(),
}


class FeedForward(Part):
    """Base class of feed-forward layers."""

    is_absent = False
    """True if the model has no feed-forward layer: the block then omits the branch and its norm."""

    def forward(self, x: HiddenStates) -> HiddenStates:
        raise NotImplementedError


@register_part("feedforward", "none")
class NoFeedForward(FeedForward):
    """No feed-forward layer: attention only."""

    is_absent = True

    def forward(self, x: HiddenStates) -> HiddenStates:
        return x * 0


@register_part("feedforward", "mlp")
class MLPFeedForward(FeedForward):
    """One hidden layer of 4 x width, or of size `hidden`."""

    def __init__(
        self, sizes: ModelSizes, *, hidden: int | None = None, activation: ActivationName = "relu", bias: bool = True
    ) -> None:
        super().__init__(sizes)
        hidden_width = hidden or 4 * sizes.width
        self.up = nn.Linear(sizes.width, hidden_width, bias=bias)
        self.activation = ACTIVATIONS[activation]
        self.down = nn.Linear(hidden_width, sizes.width, bias=bias)

    def forward(self, x: HiddenStates) -> HiddenStates:
        down: Tensor = self.down(self.activation(self.up(x)))
        return down


@register_part("feedforward", "swiglu")
class SwiGLUFeedForward(FeedForward):
    """Gated hidden layer of 8/3 x width, or of size `hidden`. After Shazeer 2020, arXiv:2002.05202."""

    def __init__(self, sizes: ModelSizes, *, hidden: int | None = None, bias: bool = False) -> None:
        super().__init__(sizes)
        hidden_width = hidden or round(8 * sizes.width / 3)
        self.gate = nn.Linear(sizes.width, hidden_width, bias=bias)
        self.up = nn.Linear(sizes.width, hidden_width, bias=bias)
        self.down = nn.Linear(hidden_width, sizes.width, bias=bias)

    def forward(self, x: HiddenStates) -> HiddenStates:
        down: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return down
