"""Estimate how many additional seeds or documents would settle an open verdict.

The probability that more data settles a verdict is computed under the posterior predictive distribution: the true
difference and noise are drawn from their posterior given the data so far (normal model, Jeffreys prior), new seeds or
documents are drawn from these, and old and new data are judged together at the significance level of the next analysis.
Point estimates of the effect and the noise would make the advice far too optimistic after a lucky start and too
pessimistic otherwise. Draws are quasi-random (additive recurrence) and fixed, so that advice is reproducible.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import scipy
from jaxtyping import Float

from headtohead.verdict.decision_rule import find_settled_experiments
from headtohead.verdict.intervals import compute_interval
from headtohead.verdict.tuning_variance import NO_TUNING_VARIANCE, TuningVariance
from headtohead.verdict.variance_components import PerExperiment, VarianceComponents

TARGET_PROBABILITY = 0.8
REQUIRED_PREDICTION = 0.84
"""predicted probability at which advice is true in 80 % of cases (docs/calibration.md). The prior of the difference is
flat, while true differences are mostly small compared with the noise, so predictions are too optimistic."""
MAX_SEEDS = 1_000
MAX_DOCUMENTS = 10_000_000
NUM_DRAWS = 512
NUM_VARIABLES = 8
"""random variables of one draw: four for the new seeds and four for the new documents"""
UniformDraws = Float[np.ndarray, "4 draws"]


@dataclass(frozen=True)
class AdditionalData:
    """The additional seeds or documents that would settle an open verdict, each alone or both together."""

    seeds: int | None = None
    documents: int | None = None
    is_either_sufficient: bool = True


def estimate_additional_data(
    components: VarianceComponents,
    compute_confidence: Callable[[int, int], float],
    equivalence_bounds: tuple[float, float],
    min_half_width: float = 0.0,
    tuning_variance: TuningVariance = NO_TUNING_VARIANCE,
) -> AdditionalData:
    """Return the number of additional seeds or documents that would settle a verdict with a probability of 80 %.

    `compute_confidence` returns the confidence level of the next analysis, given its seeds and documents. If neither
    seeds nor documents alone are sufficient, both are increased by the same factor. `tuning_variance` stays as it is.
    """
    num_seeds, num_documents = components.num_seeds, components.num_documents

    def is_sufficient(total_seeds: int, total_documents: int) -> bool:
        """Return whether this much data would settle the comparison with the required probability."""
        probability = compute_settled_probability(
            components,
            total_seeds,
            total_documents,
            compute_confidence(total_seeds, total_documents),
            equivalence_bounds,
            min_half_width,
            tuning_variance,
        )
        return probability >= REQUIRED_PREDICTION

    def scale_documents(total_seeds: int) -> int:
        """Return the number of documents after an increase by the same factor as the seeds, rounded up."""
        return -(-num_documents * total_seeds // num_seeds)

    more_seeds = _find_smallest_increase(lambda count: is_sufficient(count, num_documents), num_seeds, MAX_SEEDS)
    if num_documents == 1:
        return AdditionalData(more_seeds, None)
    more_documents = _find_smallest_increase(
        lambda count: is_sufficient(num_seeds, count), num_documents, MAX_DOCUMENTS
    )
    if more_seeds is not None or more_documents is not None:
        return AdditionalData(more_seeds, more_documents)
    seeds_with_documents = _find_smallest_increase(
        lambda count: is_sufficient(count, scale_documents(count)), num_seeds, MAX_SEEDS
    )
    if seeds_with_documents is None:
        return AdditionalData()
    return AdditionalData(seeds_with_documents, scale_documents(seeds_with_documents), is_either_sufficient=False)


def compute_settled_probability(
    components: VarianceComponents,
    num_seeds: int,
    num_documents: int,
    confidence: float,
    equivalence_bounds: tuple[float, float],
    min_half_width: float = 0.0,
    tuning_variance: TuningVariance = NO_TUNING_VARIANCE,
) -> float:
    """Return the probability that this much additional data, seeds and documents, settles the verdict.

    `components` describes a single experiment with at most this many seeds and documents.
    """
    assert components.difference.size == 1
    uniforms = _draw_uniforms()
    difference = np.full(NUM_DRAWS, components.difference[0])
    expected = components.extrapolate(num_seeds, num_documents).map_arrays(lambda array: np.repeat(array, NUM_DRAWS))
    if num_seeds > components.num_seeds:
        shift, ratio = _draw_extended_mean(
            components.seed_variance,
            components.seed_degrees_of_freedom,
            components.num_seeds,
            num_seeds,
            uniforms[:4],
        )
        difference = difference + shift
        expected = replace(expected, seed_variance=expected.seed_variance * ratio)
    if num_documents > components.num_documents:
        degrees_of_freedom = np.maximum(components.document_degrees_of_freedom, 1.0)
        shift, ratio = _draw_extended_mean(
            components.document_variance, degrees_of_freedom, components.num_documents, num_documents, uniforms[4:]
        )
        difference = difference + shift
        expected = replace(expected, document_mean_square=expected.document_mean_square * ratio)
    half_width, equivalence_half_width = (
        np.maximum(tuning_variance.widen(compute_interval(expected, level).half_width, level), min_half_width)
        for level in (confidence, 2 * confidence - 1)
    )
    return float(find_settled_experiments(difference, half_width, equivalence_half_width, equivalence_bounds).mean())


def _draw_extended_mean(
    variance: PerExperiment,
    degrees_of_freedom: PerExperiment,
    num_units: int,
    new_num_units: int,
    uniforms: UniformDraws,
) -> tuple[Float[np.ndarray, " draws"], Float[np.ndarray, " draws"]]:
    """Draw the mean over old and additional data: seeds or documents that grow from `num_units` to `new_num_units`.

    `variance` is the estimated variance of the mean over the old units. Return the change in the mean, and the
    estimated variance of the new mean as a multiple of `variance * num_units / new_num_units`.
    """
    num_added = new_num_units - num_units
    true_variance = degrees_of_freedom / scipy.special.chdtri(degrees_of_freedom, uniforms[0])  # in units of `variance`
    true_mean = np.sqrt(true_variance) * scipy.special.ndtri(uniforms[1])
    added_mean = true_mean + np.sqrt(true_variance * num_units / num_added) * scipy.special.ndtri(uniforms[2])
    added_squares = true_variance * scipy.special.chdtri(num_added - 1, uniforms[3]) if num_added > 1 else 0.0
    between_squares = num_added / new_num_units * added_mean**2
    ratio = (degrees_of_freedom + added_squares + between_squares) / (degrees_of_freedom + num_added)
    return np.sqrt(variance) * added_mean * num_added / new_num_units, np.asarray(ratio)


def _draw_uniforms() -> Float[np.ndarray, "variables draws"]:
    """Return points of the additive recurrence with the generalized golden ratio, from which additional data are drawn.

    The second half mirrors the means of the first half, so that swapping baseline and variant does not change the
    advice.
    """
    ratio = 1.5
    for _ in range(30):
        ratio = (1 + ratio) ** (1 / (NUM_VARIABLES + 1))
    increments = ratio ** -np.arange(1.0, NUM_VARIABLES + 1)
    points = (0.5 + increments[:, None] * np.arange(1, NUM_DRAWS // 2 + 1)) % 1
    is_mean = np.isin(np.arange(NUM_VARIABLES) % 4, (1, 2))
    return np.concatenate([points, np.where(is_mean[:, None], 1 - points, points)], axis=1)


def _find_smallest_increase(is_sufficient: Callable[[int], bool], current: int, maximum: int) -> int | None:
    """Return the smallest sufficient increase of the data, to within 1 %, or None if `maximum` is not sufficient."""
    if not is_sufficient(maximum):
        return None
    too_few, enough = current, current + 1
    while not is_sufficient(enough):
        too_few, enough = enough, min(2 * enough, maximum)
    while enough - too_few > max(1, enough // 100):
        middle = (too_few + enough) // 2
        too_few, enough = (too_few, middle) if is_sufficient(middle) else (middle, enough)
    return enough - current
