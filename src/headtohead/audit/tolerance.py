"""Differences between tensors that should be equal, and the tolerances they are checked against.

There are two tolerances. Computations with the same shapes in the same order give bitwise equal results, so almost no
difference is allowed. If shapes or attention implementations differ, sums are computed in a different order. Trained
models may keep some steps in float32, which limits the agreement that can be expected; small models built around one
part have much smaller rounding errors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from headtohead.nn.dispatch_mode import EagerDispatchMode


@dataclass(frozen=True)
class Tolerances:
    """The largest allowed differences, relative to the largest value."""

    exact: float
    """for passes with equal shapes and an equal order of operations"""
    rounding: float
    """for passes with different shapes or attention implementations"""

    def relax_to(self, precision: float) -> Tolerances:
        """Return tolerances of at least 8 times this machine epsilon.

        For float32 computations, return at least the float32 tolerances.
        """
        floor = MODEL_TOLERANCES[torch.float32] if precision == torch.finfo(torch.float32).eps else Tolerances(0, 0)
        coarse = 8 * precision if precision > torch.finfo(torch.float32).eps else 0.0
        return Tolerances(max(self.exact, floor.exact, coarse), max(self.rounding, floor.rounding, coarse))


MODEL_TOLERANCES = {torch.float64: Tolerances(1e-9, 1e-5), torch.float32: Tolerances(1e-5, 1e-3)}
PART_TOLERANCES = {torch.float64: Tolerances(1e-9, 1e-9), torch.float32: Tolerances(1e-5, 1e-4)}


@dataclass(frozen=True)
class Difference:
    """The largest difference found in one comparison."""

    max_abs_difference: float
    scale: float
    """largest absolute value of the reference"""
    label: str
    tolerance: float
    is_gradient: bool = False
    lookahead: int = 0
    """how many positions before the first replaced token an output changed"""

    @property
    def relative_difference(self) -> float:
        """Return the difference relative to the scale; infinite if only the scale is 0."""
        if self.scale > 0 and math.isfinite(self.max_abs_difference):
            return self.max_abs_difference / self.scale
        return 0.0 if self.max_abs_difference == 0 else math.inf

    @property
    def is_within_tolerance(self) -> bool:
        return self.relative_difference <= self.tolerance

    def __str__(self) -> str:
        return f"largest difference {self.max_abs_difference:.2g} for values up to {self.scale:.2g} ({self.label})"


def measure_tensor_difference(
    actual: Tensor, expected: Tensor, label: str, tolerance: float, *, scale: float | None = None
) -> Difference:
    """Return the largest difference. Equal infinities do not differ, and NaN differs infinitely.

    Unless a scale is given, it is taken from `expected`.
    """
    assert actual.shape == expected.shape, (actual.shape, expected.shape)
    scale = max_abs_finite(expected) if scale is None else scale
    if torch.equal(actual, expected):
        return Difference(0.0, scale, label, tolerance)
    difference = torch.where(actual == expected, torch.zeros_like(actual), (actual - expected).abs())
    return Difference(float(difference.nan_to_num(math.inf, math.inf).max()), scale, label, tolerance)


def max_abs_finite(values: Tensor) -> float:
    """Return the largest absolute value, ignoring infinities and NaN."""
    return float(values.nan_to_num(0.0, 0.0, 0.0).abs().max()) if values.numel() else 0.0


def measure_zero_gradient(gradient: Tensor, label: str, tolerance: float, *, scale: float) -> Difference:
    """Return the difference between a gradient and zero."""
    zeros = torch.zeros_like(gradient)
    return replace(measure_tensor_difference(gradient, zeros, label, tolerance, scale=scale), is_gradient=True)


def select_worst(differences: Iterable[Difference]) -> Difference:
    """Return the difference that exceeds its tolerance the most. Changed values take precedence over gradients."""

    def severity(difference: Difference) -> tuple[bool, bool, float]:
        """Return the sorting key: violations first, changed values before gradients, then by excess."""
        is_violation = not difference.is_within_tolerance
        excess = difference.relative_difference / difference.tolerance
        return is_violation, is_violation and not difference.is_gradient, excess

    return max(differences, key=severity)


class _PrecisionRecorder(EagerDispatchMode):
    """Records the coarsest machine epsilon among all operation results."""

    coarsest: float = 0.0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and record the machine epsilon of its floating-point results."""
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, Tensor) and (tensor.is_floating_point() or tensor.is_complex()):
                self.coarsest = max(self.coarsest, torch.finfo(tensor.dtype).eps)
        return result


def find_coarsest_precision(run: Callable[[], object]) -> float:
    """Return the coarsest machine epsilon among the operations of `run`, from which a tolerance is derived."""
    recorder = _PrecisionRecorder()  # type: ignore[no-untyped-call]
    with recorder:
        run()
    return recorder.coarsest
