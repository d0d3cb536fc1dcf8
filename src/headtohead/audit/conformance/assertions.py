"""Assertions of the checks for parts: tensors with the expected shape, dtype and values."""

from __future__ import annotations

import torch
from torch import Tensor

from headtohead.audit.tolerance import PART_TOLERANCES, measure_tensor_difference


class CheckFailedError(Exception):
    """A part fails a check. The message describes what was observed."""


def assert_tensor(actual: object, shape: tuple[int, ...], dtype: torch.dtype, label: str) -> None:
    """Assert that a value from a part is a tensor with this shape and dtype and finite values."""
    if not isinstance(actual, Tensor):
        raise CheckFailedError(f"{label}: {type(actual).__name__} instead of a tensor")
    if tuple(actual.shape) != shape:
        raise CheckFailedError(f"{label}: shape {tuple(actual.shape)} instead of {shape}")
    if actual.dtype != dtype:
        raise CheckFailedError(f"{label}: {actual.dtype} instead of {dtype}")
    if not actual.isfinite().all():
        raise CheckFailedError(f"{label}: {int((~actual.isfinite()).sum())} of {actual.numel()} values are not finite")


def assert_close(label: str, actual: Tensor, expected: Tensor) -> None:
    """Raise CheckFailedError unless two tensors agree up to rounding errors."""
    difference = measure_tensor_difference(actual, expected, label, PART_TOLERANCES[expected.dtype].rounding)
    if not difference.is_within_tolerance:
        raise CheckFailedError(str(difference))
