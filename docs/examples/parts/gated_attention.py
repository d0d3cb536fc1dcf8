"""Gated attention. After Qiu et al. 2025, arXiv:2505.06708."""

from typing import Literal

from torch import nn

from headtohead.parts import Merge, register_part


@register_part("merge", "gated")
class GatedHeads(Merge):
    """Multiply the head outputs by a gate computed from the input of attention, per head or per element."""

    def __init__(self, sizes, *, per: Literal["head", "element"] = "head"):
        super().__init__(sizes)
        size = 1 if per == "head" else sizes.head_dim
        self.gate = nn.Linear(sizes.width, sizes.heads * size, bias=False)

    def forward(self, head_outputs, x, context):
        gate = self.gate(x).unflatten(-1, (self.sizes.heads, -1)).transpose(1, 2)
        return head_outputs * gate.sigmoid()
