"""A file of valid parts as a user would write it."""

import torch
from torch import Tensor, nn

from headtohead.errors import ModelError
from headtohead.nn.parts.base import ModelSizes
from headtohead.nn.parts.context import ForwardContext
from headtohead.nn.parts.merge import Merge
from headtohead.nn.parts.pattern import Pattern
from headtohead.nn.parts.position import Position
from headtohead.nn.parts.registry import register_part


@register_part("position", "sqrt-alibi")
class SqrtAlibi(Position):
    """Penalizes distance by its square root. After Press et al. 2022, arXiv:2108.12409."""

    def __init__(self, sizes: ModelSizes, *, strength: float = 1.0) -> None:
        super().__init__(sizes)
        self.strength = nn.Parameter(torch.full((sizes.heads,), strength))

    def compute_bias(self, query_positions: Tensor, key_positions: Tensor, context: ForwardContext) -> Tensor:
        distance = (query_positions[..., :, None] - key_positions[..., None, :]).abs().to(self.strength.dtype)
        return -self.strength[:, None, None] * distance[..., None, :, :].sqrt()


@register_part("pattern", "every-other")
class EveryOther(Pattern):
    """Attend to the current token and to every `step`-th earlier token."""

    def __init__(self, sizes: ModelSizes, *, step: int) -> None:
        super().__init__(sizes)
        if not sizes.is_causal:
            raise ModelError("every-other looks back only: it is for decoders")
        self.step = step

    @property
    def window_size(self) -> tuple[int | None, int | None]:
        return (None, 0)

    def compute_mask(self, query_positions: Tensor, key_positions: Tensor, context: ForwardContext) -> Tensor:
        distance = query_positions[..., :, None] - key_positions[..., None, :]
        return (distance >= 0) & (distance % self.step == 0)


@register_part("merge", "noisy-gates")
class NoisyGates(Merge):
    """A learned gate per head, initialized from its own random stream."""

    def __init__(self, sizes: ModelSizes) -> None:
        super().__init__(sizes)
        self.gate = nn.Parameter(torch.empty(sizes.heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.uniform_(self.gate, 0.5, 1.5)

    def forward(self, heads: Tensor, x: Tensor, context: ForwardContext) -> Tensor:
        return heads * self.gate[:, None, None]
