"""Statistical power: the smallest true difference that a comparison would have detected with a probability of 80 %."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import scipy

from headtohead.verdict.intervals import compute_interval
from headtohead.verdict.variance_components import PerExperiment, VarianceComponents

TARGET_POWER = 0.8
MAX_STANDARD_ERRORS = 1e4
"""finite substitute for infinity"""
LEGENDRE_NODES, LEGENDRE_WEIGHTS = np.polynomial.legendre.leggauss(32)
QUADRATURE_QUANTILES, QUADRATURE_WEIGHTS = (LEGENDRE_NODES + 1) / 2, LEGENDRE_WEIGHTS / 2
"""Gauss-Legendre quadrature over probabilities from 0 to 1"""


def compute_min_detectable_effect(components: VarianceComponents, confidence: float) -> float:
    """Return the smallest true difference whose interval excludes 0 with the target power."""
    from scipy import optimize  # slow to import, and not needed by workers

    half_widths, probabilities, standard_error = _integrate_over_half_widths(components, confidence)
    if standard_error == 0:
        return 0.0

    def compute_excess_power(num_standard_errors: float) -> float:
        """Return the power to detect a difference of this many standard errors, minus the target power."""
        power = _compute_power_by_half_width(num_standard_errors * standard_error, half_widths, standard_error)
        return float(probabilities @ power) - TARGET_POWER

    high = 4.0
    while compute_excess_power(high) < 0:
        high *= 2
    return standard_error * float(optimize.brentq(compute_excess_power, 0.0, high, xtol=1e-6))


def _compute_power_by_half_width(
    true_difference: float, half_widths: PerExperiment, standard_error: float
) -> PerExperiment:
    """Return the probability that an interval of each half-width excludes 0 on either side."""
    below = scipy.special.ndtr(_divide_by_standard_error(-half_widths - true_difference, standard_error))
    above = scipy.special.ndtr(_divide_by_standard_error(true_difference - half_widths, standard_error))
    return np.asarray(below + above)


def _integrate_over_half_widths(
    components: VarianceComponents, confidence: float
) -> tuple[PerExperiment, PerExperiment, float]:
    """Return the half-widths to expect if `components` is the truth, their probabilities, and the true standard error.

    The power is the mean over these half-widths, because the noise of an experiment is estimated from its own data.
    """
    assert components.difference.size == 1
    standard_error = float(np.sqrt(components.seed_variance[0] + components.document_variance[0]))
    seed_factors, document_factors = (
        scipy.special.chdtri(degrees_of_freedom, 1 - QUADRATURE_QUANTILES) / degrees_of_freedom
        for degrees_of_freedom in (
            float(components.seed_degrees_of_freedom[0]),
            max(float(components.document_degrees_of_freedom[0]), 1.0),
        )
    )
    document_weights = QUADRATURE_WEIGHTS
    if components.num_documents == 1:
        document_factors = document_weights = np.ones(1)
    probabilities = np.outer(QUADRATURE_WEIGHTS, document_weights)
    factor_pairs = np.stack(np.broadcast_arrays(seed_factors[:, None], document_factors[None, :]))
    seed_factors, document_factors = factor_pairs.reshape(2, -1)
    possible = components.map_arrays(lambda array: np.full(probabilities.size, array[0]))
    possible = replace(
        possible,
        seed_variance=possible.seed_variance * seed_factors,
        document_mean_square=possible.document_mean_square * document_factors,
    )
    return compute_interval(possible, confidence).half_width, probabilities.ravel(), standard_error


def _divide_by_standard_error(difference: PerExperiment, standard_error: float) -> PerExperiment:
    """Return the difference in units of its standard error, of which the statistical power is a function.

    If the standard error is 0, return the largest value with the sign of the difference.
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return np.asarray(
            np.nan_to_num(difference / standard_error, nan=0.0, posinf=MAX_STANDARD_ERRORS, neginf=-MAX_STANDARD_ERRORS)
        )
