"""How far apart two answers are that should be equal, in units of the answer, and how far is too far.

Two limits. When the same shapes are computed in the same order, what should not matter does not change a single bit,
and next to nothing is allowed. When shapes or roads differ, sums are taken in another order; the limit is then what
rounding can do in a network that keeps some of its steps in float32, and still too little to move any score.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

EXACT_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5}
ROUNDING_TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-3}


@dataclass(frozen=True)
class Difference:
    """The largest difference of one comparison."""

    absolute: float
    scale: float
    """the largest value of what was compared"""
    where: str
    limit: float
    gradient: bool = False

    @property
    def relative(self) -> float:
        if self.scale > 0 and math.isfinite(self.absolute):
            return self.absolute / self.scale
        return 0.0 if self.absolute == 0 else math.inf

    @property
    def equal(self) -> bool:
        return self.relative <= self.limit

    def __str__(self) -> str:
        return f"{self.absolute:.2g} where values reach {self.scale:.2g} ({self.where})"


def measure_difference(
    actual: Tensor, expected: Tensor, label: str, tolerance: float, *, scale: float | None = None
) -> Difference:
    """Equal infinities are equal; what is no number is infinitely far off. `other` sets the scale if none is given."""
    assert actual.shape == expected.shape, (actual.shape, expected.shape)
    size = max_abs_finite(expected) if scale is None else scale
    if torch.equal(actual, expected):
        return Difference(0.0, size, label, tolerance)
    gap = torch.where(actual == expected, torch.zeros_like(actual), (actual - expected).abs())
    return Difference(float(gap.nan_to_num(math.inf, math.inf).max()), size, label, tolerance)


def max_abs_finite(values: Tensor) -> float:
    """The largest finite size."""
    return float(values.nan_to_num(0.0, 0.0, 0.0).abs().max()) if values.numel() else 0.0


def measure_zero_gradient(gradient: Tensor, label: str, tolerance: float, *, scale: float) -> Difference:
    """A gradient that should be 0."""
    return replace(
        measure_difference(gradient, torch.zeros_like(gradient), label, tolerance, scale=scale), gradient=True
    )


def select_worst(differences: Iterable[Difference]) -> Difference:
    """The one that is furthest beyond its limit speaks for all; a value that moves says more than a gradient."""
    return max(
        differences, key=lambda one: (not one.equal, not one.equal and not one.gradient, one.relative / one.limit)
    )
