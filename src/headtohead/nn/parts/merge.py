"""Merges: transform the outputs of the attention heads before the output projection.

Several merges are applied in sequence."""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from headtohead.nn.parts.base import Invariant, ModelSizes, Part
from headtohead.nn.parts.context import ForwardContext
from headtohead.nn.parts.registry import register_part

HeadOutputs = Float[Tensor, "batch heads length head_dim"]


class Merge(Part):
    """Base class of merges."""

    def forward(
        self, head_outputs: HeadOutputs, x: Float[Tensor, "batch length width"], context: ForwardContext
    ) -> HeadOutputs:
        """Return the transformed heads. `x` is the input of the attention part."""
        raise NotImplementedError


@register_part("merge", "concat")
class ConcatHeads(Merge):
    """Concatenate the heads unchanged."""

    is_tokenwise = True

    def forward(self, head_outputs: HeadOutputs, x: Tensor, context: ForwardContext) -> HeadOutputs:
        return head_outputs


@register_part("merge", "shift")
class ShiftHeads(Merge):
    """Rotate the order of the heads. The output projection absorbs this, so it should have no effect."""

    is_tokenwise = True

    def __init__(self, sizes: ModelSizes, *, by: int = 1) -> None:
        super().__init__(sizes)
        self.by = by

    def forward(self, head_outputs: HeadOutputs, x: Tensor, context: ForwardContext) -> HeadOutputs:
        return head_outputs.roll(self.by, dims=1)


@register_part("merge", "shuffle")
class ShuffleHeads(Merge):
    """Shuffle the heads: once per layer, or again at every forward pass."""

    is_tokenwise = True

    def __init__(self, sizes: ModelSizes, *, draw: Literal["once", "every-pass"] = "once") -> None:
        """Create a merge whose head order is drawn once per layer, or again at every forward pass."""
        super().__init__(sizes)
        self.draw = draw
        # A buffer, so that it is initialized and saved with the parameters.
        self.register_buffer("order", torch.arange(sizes.heads))
        self.order: Tensor

    def reset_parameters(self) -> None:
        if self.order.device.type != "meta":
            self.order.copy_(torch.randperm(self.sizes.heads))

    @property
    def violates(self) -> frozenset[Invariant]:
        is_random = self.draw == "every-pass" and self.sizes.heads > 1
        return frozenset({"determinism"}) if is_random else frozenset()

    def forward(self, head_outputs: HeadOutputs, x: Tensor, context: ForwardContext) -> HeadOutputs:
        order = self.order if self.draw == "once" else torch.randperm(self.sizes.heads, device=head_outputs.device)
        return head_outputs[:, order]


def zero_padding(head_outputs: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Return the head outputs, (batch, heads, length, head_dim), with zeros at padding."""
    return head_outputs if attention_mask is None else head_outputs * attention_mask[:, None, :, None]


def safe_sqrt(squared_norm: Tensor) -> Tensor:
    """Return the square root, with a gradient of zero at 0, where a sequence has only padding so far."""
    return squared_norm.clamp_min(torch.finfo(squared_norm.dtype).tiny).sqrt()


def compute_head_weights(head_norms: Tensor, is_normalized: bool) -> Tensor:
    """Return the factor by which a merge multiplies each head (axis 1): its norm, or norms scaled to a mean of 1."""
    if not is_normalized:
        return head_norms
    norm_sums = head_norms.sum(1, keepdim=True).clamp_min(torch.finfo(head_norms.dtype).tiny)
    return head_norms * head_norms.shape[1] / norm_sums


@register_part("merge", "reweight")
class ReweightHeads(Merge):
    """Multiply each head by the norm of its whole output (recipe `merges`). Not causal."""

    def __init__(
        self,
        sizes: ModelSizes,
        *,
        over: Literal["sequence", "batch"] = "sequence",
        normalise: bool = False,
        at_inference: bool = True,
    ) -> None:
        """Create a merge that multiplies heads by their norms over the sequence or the batch."""
        super().__init__(sizes)
        self.over, self.normalise, self.at_inference = over, normalise, at_inference

    @property
    def violates(self) -> frozenset[Invariant]:
        """Return the invariants that pooling over the sequence or the batch violates."""
        if not self.at_inference and not self.training:
            return frozenset()
        violated: set[Invariant] = {"kv-cache"}
        if self.sizes.is_causal:
            violated.add("causality")
        if self.over == "batch":
            violated.add("batch-independence")
        # With a single head, normalized weights are 1.
        return frozenset() if self.normalise and self.sizes.heads == 1 else frozenset(violated)

    def forward(self, head_outputs: HeadOutputs, x: Tensor, context: ForwardContext) -> HeadOutputs:
        """Multiply each head by a weight computed from its norm over the sequence or the batch."""
        if not self.at_inference and not self.training:
            return head_outputs
        axes = (2, 3) if self.over == "sequence" else (0, 2, 3)
        energy = zero_padding(head_outputs, context.attention_mask).square().sum(axes, keepdim=True)
        return head_outputs * compute_head_weights(safe_sqrt(energy), self.normalise)


@register_part("merge", "causal-reweight")
class CausalReweightHeads(Merge):
    """Multiply each head by the norm of its output so far: a causal version of `reweight`."""

    def __init__(self, sizes: ModelSizes, *, normalise: bool = True) -> None:
        super().__init__(sizes)
        self.normalise = normalise

    @property
    def violates(self) -> frozenset[Invariant]:
        return frozenset()

    def forward(self, head_outputs: HeadOutputs, x: Tensor, context: ForwardContext) -> HeadOutputs:
        """Multiply each head by a weight computed from its norm over the tokens so far.

        The decoding state is the sum of squares over past tokens, (batch, heads, 1, 1).
        """
        energy = zero_padding(head_outputs, context.attention_mask).square().sum(3, keepdim=True).cumsum(2)
        if (past_energy := context.get_state("causal-reweight")) is not None:
            energy = energy + past_energy
        context.set_state("causal-reweight", energy[:, :, -1:])
        return head_outputs * compute_head_weights(safe_sqrt(energy), self.normalise)
