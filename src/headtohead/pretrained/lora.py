"""Low-rank matrices beside frozen ones: W x + (alpha / rank) B A x, after Hu et al. 2021, arXiv:2106.09685.

A is drawn, B is zero, so that step 0 is the pretrained model. The frozen matrix keeps its name, and `merge` puts the
product into it: what is saved is a plain model, the same size as before.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headtohead.config import pretrained
from headtohead.errors import ModelError


class LoRALinear(nn.Module):
    """A linear map that stays as it is, and two small matrices that are trained."""

    def __init__(self, linear: nn.Linear, rank: int, alpha: float) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias
        self.lora_a = nn.Parameter(linear.weight.new_empty(rank, linear.in_features))
        self.lora_b = nn.Parameter(linear.weight.new_zeros(linear.out_features, rank))
        self.scale = alpha / rank
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.kaiming_uniform_(self.lora_a, a=math.sqrt(5))
        nn.init.zeros_(self.lora_b)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias) + self.scale * F.linear(F.linear(x, self.lora_a), self.lora_b)

    @torch.no_grad()
    def merge_weights(self) -> nn.Linear:
        """One matrix that does the same."""
        made = nn.Linear(self.weight.shape[1], self.weight.shape[0], self.bias is not None, device="meta")
        made.weight = nn.Parameter(self.weight + self.scale * self.lora_b @ self.lora_a)
        made.bias = self.bias
        return made


def apply_lora(encoder: nn.Module, lora_config: pretrained.LoraConfig) -> None:
    """Freeze the encoder, and put small matrices beside the maps that `lora.on` names."""
    encoder.requires_grad_(False)
    found = [(at, name, one) for at, name, one in _iterate_children(encoder) if isinstance(one, nn.Linear)]
    known = {name for _, name, _ in found}
    if absent := [name for name in lora_config.target_modules if name not in known]:
        raise ModelError(
            f"model.lora.on: the encoder has no linear map named {absent[0]!r}; it has: {', '.join(sorted(known))}"
        )
    for parent, name, linear in found:
        if name in lora_config.target_modules:
            setattr(parent, name, LoRALinear(linear, lora_config.rank, lora_config.alpha))


def merge_lora(model: nn.Module) -> None:
    """Put what was learned into the matrices that it stands beside."""
    for parent, name, one in _iterate_children(model):
        if isinstance(one, LoRALinear):
            setattr(parent, name, one.merge_weights())


def _iterate_children(model: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Module]]:
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            yield parent, name, child
