"""Merge: what happens to the heads' outputs before the output projection, which belongs to the attention.

A merge may carry something from step to step when decoding: it is handed in as `past` and handed back, because state
is passed, not parked.
"""

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from headtohead.nn.parts.base import Law, Part, Sizes
from headtohead.nn.parts.registry import part

Heads = Float[Tensor, "batch heads length head_dim"]
Valid = Bool[Tensor, "batch length"]


class Merge(Part):
    """The contract."""

    def forward(
        self, heads: Heads, valid: Valid | None = None, past: Tensor | None = None
    ) -> tuple[Heads, Tensor | None]:
        """The heads, changed; and what the next step of decoding must know."""
        raise NotImplementedError


@part("merge", "concat")
class Concat(Merge):
    """The heads side by side, as they are."""

    def forward(
        self, heads: Heads, valid: Valid | None = None, past: Tensor | None = None
    ) -> tuple[Heads, Tensor | None]:
        return heads, None


@part("merge", "shift")
class Shift(Merge):
    """The heads moved on by so many places (report C). The output projection absorbs it: a null change by algebra."""

    def __init__(self, sizes: Sizes, *, by: int = 1) -> None:
        super().__init__(sizes)
        self.by = by

    def forward(
        self, heads: Heads, valid: Valid | None = None, past: Tensor | None = None
    ) -> tuple[Heads, Tensor | None]:
        return heads.roll(self.by, dims=1), None


@part("merge", "shuffle")
class Shuffle(Merge):
    """The heads in random order (report C): drawn once for each layer, or anew at every pass."""

    def __init__(self, sizes: Sizes, *, draw: Literal["once", "every-pass"] = "once") -> None:
        super().__init__(sizes)
        self.draw = draw
        # A buffer and not a constant: it is drawn with the model's other initial values and saved with them.
        self.register_buffer("order", torch.arange(sizes.heads))
        self.order: Tensor

    def reset_parameters(self) -> None:
        if self.order.device.type != "meta":
            self.order.copy_(torch.randperm(self.sizes.heads))

    @property
    def breaks(self) -> frozenset[Law]:
        # One head has one order only.
        anew = self.draw == "every-pass" and self.sizes.heads > 1
        return frozenset({"repeatable"}) if anew else frozenset()

    def forward(
        self, heads: Heads, valid: Valid | None = None, past: Tensor | None = None
    ) -> tuple[Heads, Tensor | None]:
        order = self.order if self.draw == "once" else torch.randperm(self.sizes.heads, device=heads.device)
        return heads[:, order], None


def masked(heads: Tensor, valid: Tensor | None) -> Tensor:
    """Zero where there is padding."""
    return heads if valid is None else heads * valid[:, None, :, None]


def root(energy: Tensor) -> Tensor:
    """The square root, which has no slope at 0: where a row is padding so far, none is asked for."""
    return energy.clamp_min(torch.finfo(energy.dtype).tiny).sqrt()


def shares(norm: Tensor, normalise: bool) -> Tensor:
    """Norms (heads on axis 1) as weights: raw, or so that they sum to the number of heads."""
    if not normalise:
        return norm
    return norm * norm.shape[1] / norm.sum(1, keepdim=True).clamp_min(torch.finfo(norm.dtype).tiny)


@part("merge", "reweight")
class Reweight(Merge):
    """Each head times the norm of its whole output (a reconstruction of report C). Reads the future."""

    def __init__(
        self,
        sizes: Sizes,
        *,
        over: Literal["sequence", "batch"] = "sequence",
        normalise: bool = False,
        at_inference: bool = True,
    ) -> None:
        super().__init__(sizes)
        self.over, self.normalise, self.at_inference = over, normalise, at_inference

    @property
    def breaks(self) -> frozenset[Law]:
        if not self.at_inference and not self.training:
            return frozenset()
        laws: set[Law] = {"cache"}
        if self.sizes.causal:
            laws.add("causal")
        if self.over == "batch":
            laws.add("batch")
        # With a single head, normalised weights are 1 and nothing is left to break.
        return frozenset() if self.normalise and self.sizes.heads == 1 else frozenset(laws)

    def forward(
        self, heads: Heads, valid: Valid | None = None, past: Tensor | None = None
    ) -> tuple[Heads, Tensor | None]:
        if not self.at_inference and not self.training:
            return heads, None
        axes = (2, 3) if self.over == "sequence" else (0, 2, 3)
        energy = masked(heads, valid).square().sum(axes, keepdim=True)
        return heads * shares(root(energy), self.normalise), None


@part("merge", "causal-reweight")
class CausalReweight(Merge):
    """Each head times the norm of its output so far: the re-weighting of report C without its look ahead."""

    def __init__(self, sizes: Sizes, *, normalise: bool = True) -> None:
        super().__init__(sizes)
        self.normalise = normalise

    @property
    def breaks(self) -> frozenset[Law]:
        return frozenset()

    def forward(
        self, heads: Heads, valid: Valid | None = None, past: Tensor | None = None
    ) -> tuple[Heads, Tensor | None]:
        energy = masked(heads, valid).square().sum(3, keepdim=True).cumsum(2)
        if past is not None:
            energy = energy + past
        return heads * shares(root(energy), self.normalise), energy[:, :, -1:]
