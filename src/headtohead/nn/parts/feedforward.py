"""FeedForward: what each position does by itself."""

from typing import Literal

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from headtohead.nn.parts.base import Part, Sizes
from headtohead.nn.parts.registry import part

Stream = Float[Tensor, "batch length width"]
Activation = Literal["relu", "gelu", "gelu-tanh", "silu"]
ACTIVATIONS: dict[str, nn.Module] = {
    "relu": nn.ReLU(),
    "gelu": nn.GELU(),
    "gelu-tanh": nn.GELU(approximate="tanh"),
    "silu": nn.SiLU(),
}


class FeedForward(Part):
    """The contract."""

    absent = False
    """there is none: the block leaves the branch and its norm out"""

    def forward(self, x: Stream) -> Stream:
        raise NotImplementedError


@part("feedforward", "none")
class NoFeedForward(FeedForward):
    """Attention only."""

    absent = True

    def forward(self, x: Stream) -> Stream:
        return x * 0


@part("feedforward", "mlp")
class MLP(FeedForward):
    """One hidden layer; four times the width unless `hidden` is given."""

    def __init__(
        self, sizes: Sizes, *, hidden: int | None = None, activation: Activation = "relu", bias: bool = True
    ) -> None:
        super().__init__(sizes)
        wide = hidden or 4 * sizes.width
        self.up = nn.Linear(sizes.width, wide, bias=bias)
        self.activation = ACTIVATIONS[activation]
        self.down = nn.Linear(wide, sizes.width, bias=bias)

    def forward(self, x: Stream) -> Stream:
        down: Tensor = self.down(self.activation(self.up(x)))
        return down


@part("feedforward", "swiglu")
class SwiGLU(FeedForward):
    """A gated hidden layer; 8/3 of the width unless `hidden` is given. After Shazeer 2020, arXiv:2002.05202."""

    def __init__(self, sizes: Sizes, *, hidden: int | None = None, bias: bool = False) -> None:
        super().__init__(sizes)
        wide = hidden or round(8 * sizes.width / 3)
        self.gate = nn.Linear(sizes.width, wide, bias=bias)
        self.up = nn.Linear(sizes.width, wide, bias=bias)
        self.down = nn.Linear(wide, sizes.width, bias=bias)

    def forward(self, x: Stream) -> Stream:
        down: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return down
