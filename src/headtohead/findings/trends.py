"""Fit a trend: the effect of a variant along an axis of sizes or budgets, and where its sign becomes unclear.

The effect at a level is the mean over the sweep cells with this value; the trend is the slope of a least-squares line
against the base-2 logarithm of x. Level effects, slope and extrapolated effects are contrasts of the cells.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from headtohead.findings.contrasts import Contrast, PairedDifferences, estimate_contrast

MAX_DOUBLINGS = 6
"""doublings beyond the tested values over which a trend is extrapolated"""
TrendDirection = Literal["grows", "shrinks", "stays", "cannot tell"]


@dataclass(frozen=True)
class AxisLevel:
    """One value of an axis: its label, its numeric value, and the names of the cells with this value."""

    label: str
    x: float
    cells: tuple[str, ...]


@dataclass(frozen=True)
class TrendEstimate:
    """The levels of an axis sorted by x, and the paired differences of each cell of one corpus."""

    levels: Sequence[AxisLevel]
    differences: Mapping[str, PairedDifferences]

    @property
    def log2_positions(self) -> list[float]:
        """The base-2 logarithm of x at each level."""
        return [math.log2(level.x) for level in self.levels]

    def estimate_slope(self) -> Contrast | None:
        """Return the change of the effect per doubling of x, or None if it cannot be estimated."""
        return self._estimate_weighted_sum(self._slope_weights)

    def estimate_level_effect(self, index: int) -> Contrast | None:
        """Return the effect at the level with this index, or None if it cannot be estimated."""
        return self._estimate_weighted_sum([float(level_index == index) for level_index in range(len(self.levels))])

    def find_unclear_sign(self) -> tuple[float | None, bool]:
        """Return the lowest x from which the interval of the effect includes 0, and whether it was extrapolated.

        The first item is None if the interval excludes 0 up to `MAX_DOUBLINGS` doublings beyond the last level.
        """
        level_effects = [self.estimate_level_effect(index) for index in range(len(self.levels))]
        last_effect = level_effects[-1]
        if last_effect is None:
            return None, False
        if not last_effect.is_clear:
            clear_indices = [
                index for index, effect in enumerate(level_effects) if effect is not None and effect.is_clear
            ]
            return self.levels[max(clear_indices, default=-1) + 1].x, False
        for doubling in range(1, MAX_DOUBLINGS + 1):
            position = self.log2_positions[-1] + doubling
            distance = position - statistics.fmean(self.log2_positions)
            predicted_effect = self._estimate_weighted_sum(
                [1 / len(self.levels) + distance * weight for weight in self._slope_weights]
            )
            if (
                predicted_effect is not None
                and predicted_effect.value * math.copysign(1.0, last_effect.value) <= predicted_effect.half_width
            ):
                return self.levels[-1].x * 2**doubling, True
        return None, False

    @property
    def _slope_weights(self) -> list[float]:
        """The weights of the level effects in the least-squares slope."""
        mean = statistics.fmean(self.log2_positions)
        sum_of_squares = sum((position - mean) ** 2 for position in self.log2_positions)
        return [(position - mean) / sum_of_squares for position in self.log2_positions]

    def _estimate_weighted_sum(self, level_weights: Sequence[float]) -> Contrast | None:
        """Return the contrast with one weight per level, divided equally among the cells of the level."""
        weights = {
            cell: weight / len(level.cells)
            for weight, level in zip(level_weights, self.levels, strict=True)
            for cell in level.cells
        }
        return estimate_contrast(self.differences, weights)


def classify_trend_direction(
    first_effect: float, slope: Contrast, num_doublings: float, equivalence_margin: float
) -> TrendDirection:
    """Return whether an effect grows, shrinks or stays constant along the axis, given the effect at the first level.

    "stays" means that the interval of the total change over `num_doublings` lies within the equivalence margin.
    """
    if slope.is_clear:
        return "grows" if (slope.value > 0) == (first_effect > 0) else "shrinks"
    return "stays" if (abs(slope.value) + slope.half_width) * num_doublings <= equivalence_margin else "cannot tell"
