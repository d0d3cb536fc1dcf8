"""LoRA: W x + (alpha / rank) B A x with frozen W, after Hu et al. 2021, arXiv:2106.09685.

B starts at zero, so that training starts from the pretrained model. `merge_lora` adds the product to W before saving,
so the saved model has its original architecture and size.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headtohead.config.tables.model import LoraConfig
from headtohead.errors import ModelError


class LoRALinear(nn.Module):
    """A frozen linear layer with two trainable low-rank matrices."""

    def __init__(self, linear: nn.Linear, rank: int, alpha: float) -> None:
        """Create the low-rank matrices A and B beside a frozen linear layer."""
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias
        self.lora_a = nn.Parameter(linear.weight.new_empty(rank, linear.in_features))
        self.lora_b = nn.Parameter(linear.weight.new_zeros(linear.out_features, rank))
        self.scaling = alpha / rank
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.kaiming_uniform_(self.lora_a, a=math.sqrt(5))
        nn.init.zeros_(self.lora_b)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias) + self.scaling * F.linear(F.linear(x, self.lora_a), self.lora_b)

    @torch.no_grad()
    def merge_weights(self) -> nn.Linear:
        """Return an nn.Linear without LoRA, whose weight includes the low-rank product."""
        linear = nn.Linear(self.weight.shape[1], self.weight.shape[0], self.bias is not None, device="meta")
        linear.weight = nn.Parameter(self.weight + self.scaling * self.lora_b @ self.lora_a)
        linear.bias = self.bias
        return linear


def apply_lora(encoder: nn.Module, lora_config: LoraConfig) -> None:
    """Freeze the encoder and replace its target modules with LoRALinear."""
    encoder.requires_grad_(False)
    linear_layers = [
        (parent, name, child) for parent, name, child in _iter_named_children(encoder) if isinstance(child, nn.Linear)
    ]
    available_names = {name for _, name, _ in linear_layers}
    if missing := [name for name in lora_config.target_modules if name not in available_names]:
        raise ModelError(
            f"model.lora.on: the encoder has no linear layer named {missing[0]!r} "
            f"(available: {', '.join(sorted(available_names))})"
        )
    for parent, name, linear in linear_layers:
        if name in lora_config.target_modules:
            setattr(parent, name, LoRALinear(linear, lora_config.rank, lora_config.alpha))


def merge_lora(model: nn.Module) -> None:
    """Replace every LoRALinear with an equivalent nn.Linear."""
    for parent, name, child in _iter_named_children(model):
        if isinstance(child, LoRALinear):
            setattr(parent, name, child.merge_weights())


def _iter_named_children(model: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Module]]:
    """Yield (parent, name, child) for every submodule, also while children are replaced."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            yield parent, name, child
