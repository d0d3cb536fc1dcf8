"""Confidence intervals for a paired difference, from its variance components; and t intervals for plain means.

With A the seed variance, B the document mean square, R the residual variance and X the document variance (see
`variance_components`), the interval for new seeds and new documents is

    half width = min( sqrt(t_S^2 A + t_D^2 X),  max( t_f sqrt(A + X), t_S sqrt(A), t_D sqrt(X) ) )

with t_S, t_D and t_f the t quantiles at S - 1, D* and Satterthwaite's f degrees of freedom. Simulations settled the
choices that the design leaves open here (table in docs/judging.md):
 1. The interval is never narrower than the t interval of either source of variance alone: Satterthwaite's formula
    covers 89 % with 2 documents. The root of the sum of squares is an upper bound.
 2. Skewed documents: the t interval of a skewed mean is too short by a term in skewness^2 / D (Hall, Annals of
    Statistics 15, 1987), which near the usual confidences has the effect of D / skewness^2 degrees of freedom, so
    D* is divided by 1 + skewness^2 (X/B)^3, with the skewness of sqrt(p[j]) e[j].
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy

from headtohead.verdict.variance_components import PerExperiment, VarianceComponents

MAX_DEGREES_OF_FREEDOM = 1e6
"""degrees of freedom beyond which t is indistinguishable from normal"""


@dataclass(frozen=True, eq=False)
class IntervalEstimate:
    """A standard error and the half-width of the resulting interval."""

    standard_error: PerExperiment
    half_width: PerExperiment


def compute_critical_value(confidence: float, degrees_of_freedom: PerExperiment) -> PerExperiment:
    """Return the half-width of a two-sided t interval, in units of the standard error."""
    return np.asarray(
        scipy.special.stdtrit(np.minimum(degrees_of_freedom, MAX_DEGREES_OF_FREEDOM), (1 + confidence) / 2)
    )


def compute_seed_interval(components: VarianceComponents, confidence: float) -> IntervalEstimate:
    """Return the t interval over the per-seed paired differences, which does not generalize to new documents."""
    standard_error = np.sqrt(components.seed_variance)
    critical_value = compute_critical_value(confidence, components.seed_degrees_of_freedom)
    return IntervalEstimate(standard_error, critical_value * standard_error)


def compute_interval(components: VarianceComponents, confidence: float) -> IntervalEstimate:
    """Return the interval for new seeds and new documents, which is never narrower than the one over seeds."""
    seed_interval = compute_seed_interval(components, confidence)
    if components.num_documents == 1:
        return seed_interval
    document_degrees_of_freedom = _correct_for_skewness(components)
    variance = components.seed_variance + components.document_variance
    degrees_of_freedom = _compute_satterthwaite_degrees_of_freedom(components, document_degrees_of_freedom)
    combined_half_width = compute_critical_value(confidence, np.maximum(degrees_of_freedom, 1.0)) * np.sqrt(variance)
    document_critical_value = compute_critical_value(confidence, document_degrees_of_freedom)
    document_half_width = document_critical_value * np.sqrt(components.document_variance)
    upper_bound = np.hypot(seed_interval.half_width, document_half_width)
    half_width = np.maximum.reduce([combined_half_width, seed_interval.half_width, document_half_width])
    return IntervalEstimate(np.sqrt(variance), np.minimum(upper_bound, half_width))


def _correct_for_skewness(components: VarianceComponents) -> PerExperiment:
    """Return the degrees of freedom with which the interval allows for skewed documents; at least 1."""
    mean_square = components.document_mean_square
    share = np.divide(components.document_variance, mean_square, out=np.zeros_like(mean_square), where=mean_square > 0)
    corrected = components.document_degrees_of_freedom / (1 + components.skewness**2 * share**3)
    return np.asarray(np.maximum(corrected, 1.0))


def _compute_satterthwaite_degrees_of_freedom(
    components: VarianceComponents, document_degrees_of_freedom: PerExperiment
) -> PerExperiment:
    """Return the degrees of freedom of A + X for an interval; those of A if the variance is 0.

    The term of R applies only if X is B - R rather than its smallest value.
    """
    seed_variance, document_variance = components.seed_variance, components.document_variance
    mean_square, residual_variance = components.document_mean_square, components.residual_variance
    seed_degrees_of_freedom = components.seed_degrees_of_freedom
    is_difference = mean_square - residual_variance > components.min_document_variance
    uncertainty = (
        seed_variance**2 / seed_degrees_of_freedom
        + np.where(document_variance > 0, mean_square**2, 0.0) / document_degrees_of_freedom
        + np.where(is_difference, residual_variance**2, 0.0) / (seed_degrees_of_freedom * document_degrees_of_freedom)
    )
    variance = seed_variance + document_variance
    return np.asarray(np.divide(variance**2, uncertainty, out=seed_degrees_of_freedom.copy(), where=uncertainty > 0))


def compute_mean_interval(values: Sequence[float], confidence: float = 0.95) -> list[float] | None:
    """Return the t interval for a mean as [low, high], or None if there are fewer than two values."""
    if len(values) < 2:
        return None
    standard_error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    half_width = float(scipy.special.stdtrit(len(values) - 1, (1 + confidence) / 2)) * standard_error
    mean = float(np.mean(values))
    return [mean - half_width, mean + half_width]
