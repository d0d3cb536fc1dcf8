"""Noise between the seeds of a search's points, pooled over points, and the intervals that follow from it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import scipy

from headtohead.search.points import compute_mean

CONFIDENCE_LEVEL = 0.95
SeedScores = Sequence[float]
"""scores of a point, one per seed"""


def compute_pooled_std(scores_by_point: Sequence[SeedScores]) -> tuple[float, int]:
    """Return the standard deviation between seeds, pooled over points, and its degrees of freedom; (nan, 0) if none."""
    degrees_of_freedom, sum_of_squares = 0, 0.0
    for scores in scores_by_point:
        mean = compute_mean(scores) if scores else 0.0
        sum_of_squares += sum((score - mean) ** 2 for score in scores)
        degrees_of_freedom += max(0, len(scores) - 1)
    return (math.sqrt(sum_of_squares / degrees_of_freedom), degrees_of_freedom) if degrees_of_freedom else (math.nan, 0)


def compute_mean_half_width(std: float, degrees_of_freedom: int, num_seeds: int) -> float | None:
    """Return half the width of the t interval that the noise between seeds gives a point's mean.

    `std` is pooled over points, because the standard deviation of two or three seeds is unreliable.
    """
    if not degrees_of_freedom or not num_seeds:
        return None
    return float(scipy.special.stdtrit(degrees_of_freedom, (1 + CONFIDENCE_LEVEL) / 2)) * std / math.sqrt(num_seeds)
