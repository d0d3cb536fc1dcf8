"""The variance that tuning adds to a comparison: settings were chosen on noisy validation scores.

The baseline and the variant of a tuned comparison are each judged at their own optimum. With different tuning seeds, a
different point of the search space might have been chosen. Let m[g] be the mean score of point g over T seeds and c the
chosen point. New means are drawn with the noise of one point against the others: the residuals of the scores after the
means of points and of seeds, which all points share, are removed. With g* the best point of a draw, the variance is the
mean of (m[g*] - m[c])^2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from headtohead.verdict.intervals import compute_critical_value
from headtohead.verdict.variance_components import PerExperiment

NUM_DRAWS = 10_000


@dataclass(frozen=True)
class TuningVariance:
    """The variance that the choice of settings adds to a difference, and the degrees of freedom of its estimate."""

    variance: float
    degrees_of_freedom: int

    def add(self, other: TuningVariance) -> TuningVariance:
        """Return the variance of two independent choices, such as those of the baseline and of the variant."""
        return TuningVariance(self.variance + other.variance, min(self.degrees_of_freedom, other.degrees_of_freedom))

    def widen(self, half_width: PerExperiment, confidence: float) -> PerExperiment:
        """Return the half-width of an interval that also covers the choice of settings."""
        if self.variance == 0:
            return half_width
        critical_value = compute_critical_value(confidence, np.array([float(self.degrees_of_freedom)]))
        return np.asarray(np.hypot(half_width, critical_value * math.sqrt(self.variance)))


NO_TUNING_VARIANCE = TuningVariance(0.0, 1)
"""of a comparison without tuning"""


def estimate_tuning_variance(scores: Float[np.ndarray, "points seeds"], chosen_point: int) -> TuningVariance:
    """Return the variance of choosing among at least two points with at least two seeds; higher scores are better."""
    num_points, num_seeds = scores.shape
    means = scores.mean(axis=1)
    residuals = scores - means[:, None] - scores.mean(axis=0) + scores.mean()
    degrees_of_freedom = (num_points - 1) * (num_seeds - 1)
    standard_error = np.sqrt((residuals**2).sum() / degrees_of_freedom / num_seeds)
    draws = means + standard_error * np.random.default_rng(0).standard_normal((NUM_DRAWS, num_points))
    losses = means[draws.argmax(axis=1)] - means[chosen_point]
    return TuningVariance(float((losses**2).mean()), degrees_of_freedom)
