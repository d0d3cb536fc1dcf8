"""Parts of the slot `init`: initialization schemes, and the learning-rate multipliers that belong to them.

Each layer (`nn.Linear`, `nn.Embedding`, the embedding table, the output matrix) is first initialized as in torch. The
parts in this slot then change it, in the order of the list. Values that a part sets itself are kept."""

import math
from typing import Literal

from torch import Tensor, nn

from headtohead.errors import ModelError
from headtohead.nn.parts.base import Component, ModelSizes
from headtohead.nn.parts.registry import register_part

LayerRole = Literal["embedding", "hidden", "residual", "output"]
"""embedding: token and position embeddings. residual: matrices whose output is added to the residual stream. output:
maps hidden states to logits. hidden: all others."""


class Init(Component):
    """Base class of initialization schemes."""

    def __init__(self, sizes: ModelSizes) -> None:
        self.sizes = sizes

    def init_layer(self, weight: Tensor, bias: Tensor | None, role: LayerRole) -> None:
        """Change the initial values of a layer in place. Random numbers are drawn from the layer's own stream.

        Args:
            weight: The weight of the layer, (out, in); for embeddings, (tokens or positions, width).
            bias: The bias of the layer, (out,), or None.
            role: The place of the layer in the model.
        """

    def get_lr_multiplier(self, role: LayerRole) -> float:
        """Return the factor by which the learning rate of a layer's matrix is multiplied."""
        return 1.0


@register_part("init", "torch")
class TorchInit(Init):
    """As PyTorch initializes each layer."""


@register_part("init", "gpt2")
class GPT2Init(Init):
    """Normal matrices, 1 / sqrt(2 layers) smaller if added to the residual stream, and zero biases.

    After Radford et al. 2019."""

    def __init__(self, sizes: ModelSizes, *, std: float = 0.02) -> None:
        super().__init__(sizes)
        if std <= 0:
            raise ModelError(f"gpt2: std is a standard deviation and must be above 0, got {std}")
        self.std = std

    def init_layer(self, weight: Tensor, bias: Tensor | None, role: LayerRole) -> None:
        scale = (2 * self.sizes.layers) ** -0.5 if role == "residual" else 1.0
        nn.init.normal_(weight, std=self.std * scale)
        if bias is not None:
            nn.init.zeros_(bias)


@register_part("init", "residual-scaling")
class ResidualScalingInit(Init):
    """Divide matrices that are added to the residual stream by sqrt(2 layers). After Radford et al. 2019."""

    def init_layer(self, weight: Tensor, bias: Tensor | None, role: LayerRole) -> None:
        if role == "residual":
            weight.mul_((2 * self.sizes.layers) ** -0.5)


@register_part("init", "zero-residual")
class ZeroResidualInit(Init):
    """Zero matrices that are added to the residual stream: every layer starts as the identity."""

    def init_layer(self, weight: Tensor, bias: Tensor | None, role: LayerRole) -> None:
        if role == "residual":
            nn.init.zeros_(weight)
            if bias is not None:
                nn.init.zeros_(bias)


@register_part("init", "mup")
class MuPInit(Init):
    """Keep the best learning rate of Adam over widths. After Yang et al. 2022, arXiv:2203.03466, table 3.

    At `base_width`, nothing changes. Attention scores keep 1 / sqrt(head_dim): vary the number of heads with the width,
    not `head_dim`."""

    def __init__(self, sizes: ModelSizes, *, base_width: int = 64) -> None:
        super().__init__(sizes)
        if base_width < 1:
            raise ModelError(f"mup: base_width must be at least 1, got {base_width}")
        self.width_ratio = base_width / sizes.width

    def init_layer(self, weight: Tensor, bias: Tensor | None, role: LayerRole) -> None:
        if role == "output":  # torch's standard deviation is proportional to 1 / sqrt(fan_in); here, to 1 / fan_in
            weight.mul_(math.sqrt(self.width_ratio))

    def get_lr_multiplier(self, role: LayerRole) -> float:
        return 1.0 if role == "embedding" else self.width_ratio
