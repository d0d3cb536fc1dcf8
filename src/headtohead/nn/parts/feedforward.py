"""Feed-forward layers: applied to each position separately."""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headtohead.errors import ModelError
from headtohead.nn.parts.base import ModelSizes, Part
from headtohead.nn.parts.context import ForwardContext
from headtohead.nn.parts.registry import register_part

HiddenStates = Float[Tensor, "batch length width"]


class SquaredReLU(nn.Module):
    """The square of ReLU. After So et al. 2021, arXiv:2109.08668 (Primer)."""

    def forward(self, x: Tensor) -> Tensor:
        return x.relu().square()


ActivationName = Literal["relu", "relu-squared", "gelu", "gelu-tanh", "silu"]
ACTIVATIONS: dict[str, nn.Module] = {
    "relu": nn.ReLU(),
    "relu-squared": SquaredReLU(),
    "gelu": nn.GELU(),
    "gelu-tanh": nn.GELU(approximate="tanh"),
    "silu": nn.SiLU(),
}


class FeedForward(Part):
    """Base class of feed-forward layers."""

    is_absent = False
    """True if the model has no feed-forward layer: the block then omits the branch and its norm."""

    def forward(self, x: HiddenStates, context: ForwardContext) -> HiddenStates:
        raise NotImplementedError


@register_part("feedforward", "none")
class NoFeedForward(FeedForward):
    """No feed-forward layer: attention only."""

    is_tokenwise = True

    is_absent = True

    def forward(self, x: HiddenStates, context: ForwardContext) -> HiddenStates:
        return x * 0


@register_part("feedforward", "mlp")
class MLPFeedForward(FeedForward):
    """One hidden layer of 4 x width, or of size `hidden`."""

    is_tokenwise = True

    residual_layers = ("down",)

    def __init__(
        self, sizes: ModelSizes, *, hidden: int | None = None, activation: ActivationName = "relu", bias: bool = True
    ) -> None:
        super().__init__(sizes)
        hidden_width = hidden or 4 * sizes.width
        self.up = nn.Linear(sizes.width, hidden_width, bias=bias)
        self.activation = ACTIVATIONS[activation]
        self.down = nn.Linear(hidden_width, sizes.width, bias=bias)

    def forward(self, x: HiddenStates, context: ForwardContext) -> HiddenStates:
        down: Tensor = self.down(self.activation(self.up(x)))
        return down


@register_part("feedforward", "swiglu")
class SwiGLUFeedForward(FeedForward):
    """Gated hidden layer of 8/3 x width, or of size `hidden`. After Shazeer 2020, arXiv:2002.05202.

    With a different activation of the gate, it is the GEGLU or ReGLU of the same paper."""

    is_tokenwise = True

    residual_layers = ("down",)

    def __init__(
        self, sizes: ModelSizes, *, hidden: int | None = None, activation: ActivationName = "silu", bias: bool = False
    ) -> None:
        super().__init__(sizes)
        hidden_width = hidden or round(8 * sizes.width / 3)
        self.gate = nn.Linear(sizes.width, hidden_width, bias=bias)
        self.activation = ACTIVATIONS[activation]
        self.up = nn.Linear(sizes.width, hidden_width, bias=bias)
        self.down = nn.Linear(hidden_width, sizes.width, bias=bias)

    def forward(self, x: HiddenStates, context: ForwardContext) -> HiddenStates:
        down: Tensor = self.down(self.activation(self.gate(x)) * self.up(x))
        return down


@register_part("feedforward", "gated-experts")
class GatedExpertsFeedForward(FeedForward):
    """Each token goes to the `active` best of several gated experts. As in gpt-oss, OpenAI 2025, arXiv:2508.10925.

    There is no load-balancing loss, and no capacity limit: tokens do not affect each other."""

    is_tokenwise = True

    def __init__(
        self,
        sizes: ModelSizes,
        *,
        experts: int = 4,
        active: int = 2,
        hidden: int | None = None,
        alpha: float = 1.702,
        limit: float = 7.0,
    ) -> None:
        """The activation of the gate is g * sigmoid(alpha * g), and gate and value are clamped at `limit`.

        The weights of the active experts sum to 1, so that the router receives no gradient if a single one is active.
        """
        super().__init__(sizes)
        if not 1 <= active <= experts:
            raise ModelError(f"gated-experts: active must be between 1 and experts = {experts}, got {active}")
        width, hidden = sizes.width, hidden or sizes.width
        self.active, self.alpha, self.limit = active, alpha, limit
        self.router = nn.Linear(width, experts)
        self.gate_up = nn.Parameter(torch.empty(experts, width, 2 * hidden))
        self.gate_up_bias = nn.Parameter(torch.empty(experts, 2 * hidden))
        self.down = nn.Parameter(torch.empty(experts, hidden, width))
        self.down_bias = nn.Parameter(torch.empty(experts, width))

    def reset_parameters(self) -> None:
        """Initialize the feed-forward layers of each expert as torch does linear layers."""
        for weight, bias in ((self.gate_up, self.gate_up_bias), (self.down, self.down_bias)):
            bound = weight.shape[1] ** -0.5
            nn.init.uniform_(weight, -bound, bound)
            nn.init.uniform_(bias, -bound, bound)

    def forward(self, x: HiddenStates, context: ForwardContext) -> HiddenStates:
        """Return the sum of the active experts' feed-forward outputs, weighted by the router."""
        top_logits, top_experts = self.router(x).topk(self.active)
        expert_weights = torch.zeros(*x.shape[:-1], len(self.down), dtype=x.dtype, device=x.device)
        expert_weights = expert_weights.scatter(-1, top_experts, top_logits.softmax(-1))
        gate_and_value = torch.einsum("...w,ewh->...eh", x, self.gate_up) + self.gate_up_bias
        gate, value = gate_and_value.chunk(2, dim=-1)
        gate, value = gate.clamp(max=self.limit), value.clamp(-self.limit, self.limit)
        hidden = (value + 1) * gate * (self.alpha * gate).sigmoid()
        expert_outputs = torch.einsum("...eh,ehw->...ew", hidden, self.down) + self.down_bias
        out: Tensor = (expert_weights[..., None] * expert_outputs).sum(-2)
        return out
