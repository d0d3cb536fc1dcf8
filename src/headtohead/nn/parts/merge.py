"""Merges: transform the outputs of the heads before the output projection of attention.

A merge may carry state between decoding steps. It receives the state as `past_state` and returns the new one; the KV
cache stores it."""

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from headtohead.nn.parts.base import Invariant, ModelSizes, Part
from headtohead.nn.parts.registry import register_part

HeadOutputs = Float[Tensor, "batch heads length head_dim"]
AttentionMask = Bool[Tensor, "batch length"]


class Merge(Part):
    """Base class of merges."""

    def forward(
        self, head_outputs: HeadOutputs, attention_mask: AttentionMask | None = None, past_state: Tensor | None = None
    ) -> tuple[HeadOutputs, Tensor | None]:
        """Return the transformed heads and the state for the next decoding step, if any."""
        raise NotImplementedError


@register_part("merge", "concat")
class ConcatHeads(Merge):
    """Concatenate the heads unchanged."""

    def forward(
        self, head_outputs: HeadOutputs, attention_mask: AttentionMask | None = None, past_state: Tensor | None = None
    ) -> tuple[HeadOutputs, Tensor | None]:
        return head_outputs, None


@register_part("merge", "shift")
class ShiftHeads(Merge):
    """Rotate the order of the heads. A null change: the output projection absorbs it."""

    def __init__(self, sizes: ModelSizes, *, by: int = 1) -> None:
        super().__init__(sizes)
        self.by = by

    def forward(
        self, head_outputs: HeadOutputs, attention_mask: AttentionMask | None = None, past_state: Tensor | None = None
    ) -> tuple[HeadOutputs, Tensor | None]:
        return head_outputs.roll(self.by, dims=1), None


@register_part("merge", "shuffle")
class ShuffleHeads(Merge):
    """Shuffle the heads: once per layer, or again at every forward pass."""

    def __init__(self, sizes: ModelSizes, *, draw: Literal["once", "every-pass"] = "once") -> None:
        """Create a merge whose head order is drawn once per layer, or again at every forward pass."""
        super().__init__(sizes)
        self.draw = draw
        # A buffer, so that it is initialised and saved with the parameters.
        self.register_buffer("order", torch.arange(sizes.heads))
        self.order: Tensor

    def reset_parameters(self) -> None:
        if self.order.device.type != "meta":
            self.order.copy_(torch.randperm(self.sizes.heads))

    @property
    def violates(self) -> frozenset[Invariant]:
        is_random = self.draw == "every-pass" and self.sizes.heads > 1
        return frozenset({"determinism"}) if is_random else frozenset()

    def forward(
        self, head_outputs: HeadOutputs, attention_mask: AttentionMask | None = None, past_state: Tensor | None = None
    ) -> tuple[HeadOutputs, Tensor | None]:
        order = self.order if self.draw == "once" else torch.randperm(self.sizes.heads, device=head_outputs.device)
        return head_outputs[:, order], None


def zero_padding(head_outputs: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Return the head outputs with padding set to zero."""
    return head_outputs if attention_mask is None else head_outputs * attention_mask[:, None, :, None]


def safe_sqrt(squared_norm: Tensor) -> Tensor:
    """Return the square root with a zero gradient at 0, where a row has only padding so far."""
    return squared_norm.clamp_min(torch.finfo(squared_norm.dtype).tiny).sqrt()


def compute_head_weights(head_norms: Tensor, normalise: bool) -> Tensor:
    """Return norms (heads on axis 1) as weights: raw, or scaled to sum to the number of heads."""
    if not normalise:
        return head_norms
    return (
        head_norms * head_norms.shape[1] / head_norms.sum(1, keepdim=True).clamp_min(torch.finfo(head_norms.dtype).tiny)
    )


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
        # With a single head, normalised weights are 1.
        return frozenset() if self.normalise and self.sizes.heads == 1 else frozenset(violated)

    def forward(
        self, head_outputs: HeadOutputs, attention_mask: AttentionMask | None = None, past_state: Tensor | None = None
    ) -> tuple[HeadOutputs, Tensor | None]:
        """Multiply each head by a weight computed from its norm over the sequence or the batch."""
        if not self.at_inference and not self.training:
            return head_outputs, None
        axes = (2, 3) if self.over == "sequence" else (0, 2, 3)
        energy = zero_padding(head_outputs, attention_mask).square().sum(axes, keepdim=True)
        return head_outputs * compute_head_weights(safe_sqrt(energy), self.normalise), None


@register_part("merge", "causal-reweight")
class CausalReweightHeads(Merge):
    """Multiply each head by the norm of its output so far: a causal version of `reweight`."""

    def __init__(self, sizes: ModelSizes, *, normalise: bool = True) -> None:
        super().__init__(sizes)
        self.normalise = normalise

    @property
    def violates(self) -> frozenset[Invariant]:
        return frozenset()

    def forward(
        self, head_outputs: HeadOutputs, attention_mask: AttentionMask | None = None, past_state: Tensor | None = None
    ) -> tuple[HeadOutputs, Tensor | None]:
        """Multiply each head by a weight computed from its norm over the tokens so far.

        The state is the sum of squares over past tokens, (batch, heads, 1, 1).
        """
        energy = zero_padding(head_outputs, attention_mask).square().sum(3, keepdim=True).cumsum(2)
        if past_state is not None:
            energy = energy + past_state
        return head_outputs * compute_head_weights(safe_sqrt(energy), self.normalise), energy[:, :, -1:]
