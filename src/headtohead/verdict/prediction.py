"""Estimate how many more seeds or documents would settle an open verdict.

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
from jaxtyping import Float
from scipy import special

from headtohead.verdict.rule import find_settled
from headtohead.verdict.statistics import PerExperiment, VarianceComponents, compute_interval

TARGET_PROBABILITY = 0.8
REQUIRED_PREDICTION = 0.84
"""predicted probability at which advice is true in 80 % of cases (docs/calibration.md). The prior of the difference is
flat, while true differences are mostly small compared with the noise, so predictions are too optimistic."""
MAX_SEEDS = 1_000
MAX_DOCUMENTS = 10_000_000
NUM_DRAWS = 512
NUM_VARIABLES = 8
Draws = Float[np.ndarray, "4 draws"]


@dataclass(frozen=True)
class AdditionalData:
    """The additional seeds or documents that would settle an open verdict, each alone or both together."""

    seeds: int | None = None
    documents: int | None = None
    is_either_sufficient: bool = True


def estimate_additional_data(
    components: VarianceComponents,
    compute_confidence: Callable[[int], float],
    equivalence_band: tuple[float, float],
    min_half_width: float = 0.0,
) -> AdditionalData:
    """Return how many more seeds or documents would settle a verdict with a probability of 80 %.

    `compute_confidence` returns the confidence level of the next analysis, given its number of seeds. If neither seeds
    nor documents alone are sufficient, both are increased by the same factor.
    """
    seeds, documents = components.num_seeds, components.num_documents

    def is_sufficient(num_seeds: int, num_documents: int) -> bool:
        """Return whether this much data would settle the comparison with the required probability."""
        confidence = compute_confidence(num_seeds)
        return (
            compute_settled_probability(
                components, num_seeds, num_documents, confidence, equivalence_band, min_half_width
            )
            >= REQUIRED_PREDICTION
        )

    more_seeds = _find_smallest_increase(lambda n: is_sufficient(n, documents), seeds, MAX_SEEDS)
    if documents == 1:
        return AdditionalData(more_seeds, None)
    more_documents = _find_smallest_increase(lambda n: is_sufficient(seeds, n), documents, MAX_DOCUMENTS)
    if more_seeds is not None or more_documents is not None:
        return AdditionalData(more_seeds, more_documents)
    together = _find_smallest_increase(lambda n: is_sufficient(n, -(-documents * n // seeds)), seeds, MAX_SEEDS)
    if together is None:
        return AdditionalData()
    return AdditionalData(together, -(-documents * together // seeds), is_either_sufficient=False)


def compute_settled_probability(
    components: VarianceComponents,
    num_seeds: int,
    num_documents: int,
    confidence: float,
    equivalence_band: tuple[float, float],
    min_half_width: float = 0.0,
) -> float:
    """Return the probability that the verdict is settled with this many seeds and documents.

    `components` describes a single experiment with at most this many seeds and documents.
    """
    assert components.difference.size == 1
    uniforms = _draw_uniforms()
    difference = np.full(NUM_DRAWS, components.difference[0])
    expected = components.extrapolate(num_seeds, num_documents).map_arrays(lambda array: np.repeat(array, NUM_DRAWS))
    if num_seeds > components.num_seeds:
        shift, ratio = _predict_mean(
            components.seed_variance, components.seed_freedom, components.num_seeds, num_seeds, uniforms[:4]
        )
        difference = difference + shift
        expected = replace(expected, seed_variance=expected.seed_variance * ratio)
    if num_documents > components.num_documents:
        freedom = np.maximum(components.document_freedom, 1.0)
        shift, ratio = _predict_mean(
            components.document_variance, freedom, components.num_documents, num_documents, uniforms[4:]
        )
        difference = difference + shift
        expected = replace(expected, document_mean_square=expected.document_mean_square * ratio)
    half_width, equivalence_half_width = (
        np.maximum(compute_interval(expected, level).half_width, min_half_width)
        for level in (confidence, 2 * confidence - 1)
    )
    return float(find_settled(difference, half_width, equivalence_half_width, equivalence_band).mean())


def _predict_mean(
    variance: PerExperiment, freedom: PerExperiment, num_units: int, new_num_units: int, uniforms: Draws
) -> tuple[Float[np.ndarray, " draws"], Float[np.ndarray, " draws"]]:
    """Draw the mean over old and new units, whose number grows from `num_units` to `new_num_units`.

    `variance` is the estimated variance of the mean over the old units. Return the change in the mean, and the
    estimated variance of the new mean as a multiple of `variance * num_units / new_num_units`.
    """
    num_added = new_num_units - num_units
    true_variance = freedom / special.chdtri(freedom, uniforms[0])  # in units of `variance`
    true_mean = np.sqrt(true_variance) * special.ndtri(uniforms[1])
    added_mean = true_mean + np.sqrt(true_variance * num_units / num_added) * special.ndtri(uniforms[2])
    added_squares = true_variance * special.chdtri(num_added - 1, uniforms[3]) if num_added > 1 else 0.0
    between = num_added / new_num_units * added_mean**2
    ratio = (freedom + added_squares + between) / (freedom + num_added)
    return np.sqrt(variance) * added_mean * num_added / new_num_units, np.asarray(ratio)


def _draw_uniforms() -> Float[np.ndarray, "variables draws"]:
    """Return points of the additive recurrence with the generalised golden ratio, the root of x^(d+1) = x + 1.

    The second half mirrors the means of the first half, so that swapping the two sides does not change the advice.
    """
    ratio = 1.5
    for _ in range(30):
        ratio = (1 + ratio) ** (1 / (NUM_VARIABLES + 1))
    steps = ratio ** -np.arange(1.0, NUM_VARIABLES + 1)
    points = (0.5 + steps[:, None] * np.arange(1, NUM_DRAWS // 2 + 1)) % 1
    is_mean = np.isin(np.arange(NUM_VARIABLES) % 4, (1, 2))
    return np.concatenate([points, np.where(is_mean[:, None], 1 - points, points)], axis=1)


def _find_smallest_increase(is_sufficient: Callable[[int], bool], current: int, maximum: int) -> int | None:
    """Return the smallest sufficient increase, to within 1 %, or None if even `maximum` is not sufficient."""
    if not is_sufficient(maximum):
        return None
    too_few, enough = current, current + 1
    while not is_sufficient(enough):
        too_few, enough = enough, min(2 * enough, maximum)
    while enough - too_few > max(1, enough // 100):
        middle = (too_few + enough) // 2
        too_few, enough = (too_few, middle) if is_sufficient(middle) else (middle, enough)
    return enough - current
