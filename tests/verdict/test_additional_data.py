"""Advice: the posterior predictive distribution, the search for the smallest increase, and what is advised."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from headtohead.verdict import additional_data
from headtohead.verdict.additional_data import AdditionalData, compute_settled_probability, estimate_additional_data
from headtohead.verdict.tuning_variance import TuningVariance
from headtohead.verdict.variance_components import VarianceComponents

EQUIVALENCE_BOUNDS = (-0.3, 0.3)


def make_components(
    difference: float, seed_variance: float, document_variance: float, seeds: int = 4, documents: int = 12
) -> VarianceComponents:
    freedom = documents - 1.0
    values = (difference, seed_variance, document_variance, 0.0, freedom, float(documents), 0.0, seeds - 1.0)
    return VarianceComponents(*(np.array([value]) for value in values), num_seeds=seeds, num_documents=documents)


def simulate_settled(
    components: VarianceComponents, num_seeds: int, confidence: float, num_draws: int = 200_000, extra: float = 0.0
) -> float:
    """Draw the truth from its posterior, then new seeds, and judge all seeds together (one document)."""
    rng = np.random.default_rng(0)
    seeds, added = components.num_seeds, num_seeds - components.num_seeds
    variance = components.seed_variance[0] * seeds  # of one seed
    true_variance = variance * (seeds - 1) / rng.chisquare(seeds - 1, num_draws)
    true_mean = components.difference[0] + np.sqrt(true_variance / seeds) * rng.standard_normal(num_draws)
    new_mean = true_mean + np.sqrt(true_variance / added) * rng.standard_normal(num_draws)
    new_squares = true_variance * rng.chisquare(added - 1, num_draws) if added > 1 else 0.0
    mean = (seeds * components.difference[0] + added * new_mean) / num_seeds
    between = seeds * added / num_seeds * (new_mean - components.difference[0]) ** 2
    error = np.sqrt((variance * (seeds - 1) + new_squares + between) / (num_seeds - 1) / num_seeds)
    widths = [
        np.hypot(stats.t.ppf((1 + level) / 2, num_seeds - 1) * error, stats.t.ppf((1 + level) / 2, 5) * extra)
        for level in (confidence, 2 * confidence - 1)
    ]
    inside = [(mean - width >= EQUIVALENCE_BOUNDS[0]) & (mean + width <= EQUIVALENCE_BOUNDS[1]) for width in widths]
    return float((((np.abs(mean) > widths[0]) & ~inside[0]) | inside[1]).mean())


@pytest.mark.parametrize(("difference", "seeds"), [(0.4, 5), (0.4, 9), (-0.2, 40), (0.05, 12)])
def test_the_probability_is_that_of_the_posterior_predictive_distribution(difference: float, seeds: int) -> None:
    components = make_components(difference, 0.04, 0.0, documents=1)
    expected = simulate_settled(components, seeds, 0.97)
    assert compute_settled_probability(components, seeds, 1, 0.97, EQUIVALENCE_BOUNDS) == pytest.approx(
        expected, abs=0.025
    )


def test_more_documents_are_predicted_like_more_seeds() -> None:
    """Noise of documents alone, with n + 1 documents of equal length, is noise of n + 1 seeds alone."""
    by_seeds = make_components(0.4, 0.04, 0.0, seeds=7, documents=1)
    by_documents = make_components(0.4, 0.0, 0.04, seeds=3, documents=7)
    for count in (8, 12, 50):
        expected = simulate_settled(by_seeds, count, 0.97)
        assert compute_settled_probability(by_documents, 3, count, 0.97, EQUIVALENCE_BOUNDS) == pytest.approx(
            expected, abs=0.025
        )


def test_the_same_data_settle_what_they_settle_now() -> None:
    assert compute_settled_probability(make_components(1.0, 0.01, 0.01), 4, 12, 0.95, EQUIVALENCE_BOUNDS) == 1.0
    assert compute_settled_probability(make_components(0.2, 0.01, 0.01), 4, 12, 0.95, EQUIVALENCE_BOUNDS) == 0.0


def test_neither_a_rounding_step_nor_the_choice_of_settings_shrinks_with_more_data() -> None:
    components = make_components(1.0, 0.001, 0.0, documents=1)
    assert compute_settled_probability(components, 50, 1, 0.95, EQUIVALENCE_BOUNDS) == 1.0
    assert compute_settled_probability(components, 50, 1, 0.95, EQUIVALENCE_BOUNDS, min_half_width=1.2) < 0.02
    tuning_variance = TuningVariance(0.09, 5)
    expected = simulate_settled(make_components(0.8, 0.04, 0.0, documents=1), 12, 0.95, extra=0.3)
    settled_probability = compute_settled_probability(
        make_components(0.8, 0.04, 0.0, documents=1), 12, 1, 0.95, EQUIVALENCE_BOUNDS, tuning_variance=tuning_variance
    )
    assert settled_probability == pytest.approx(expected, abs=0.025)
    assert 0.1 < settled_probability < 0.9


def test_draws_are_spread_evenly_and_mirrored() -> None:
    draws = additional_data._draw_uniforms()
    assert draws.shape == (8, 512)
    root = 1.5
    for _ in range(200):
        root -= (root**9 - root - 1) / (9 * root**8 - 1)
    first = [(0.5 + root**-k) % 1 for k in range(1, 9)]
    assert draws[:, 0] == pytest.approx(first)
    assert draws[:, 1] == pytest.approx([(0.5 + 2 * root**-k) % 1 for k in range(1, 9)])
    assert draws[:, 255] == pytest.approx([(0.5 + 256 * root**-k) % 1 for k in range(1, 9)])
    for row, (early, late) in enumerate(zip(draws[:, :256], draws[:, 256:], strict=True)):
        assert late == pytest.approx(1 - early if row in (1, 2, 5, 6) else early)
    for row in draws:
        assert np.sort(row) == pytest.approx((np.arange(512) + 0.5) / 512, abs=0.06)


@pytest.mark.parametrize(
    ("threshold", "current", "maximum", "expected"),
    [
        (6, 5, 1000, 1),
        (7, 5, 1000, 2),
        (12, 5, 1000, 7),
        (13, 5, 1000, 8),
        (40, 5, 1000, 35),
        (150, 3, 1000, 147),
        (999, 3, 1000, 997),
        (1000, 3, 1000, 997),
        (1001, 3, 1000, None),
        (300, 3, 301, 298),
    ],
)
def test_the_smallest_increase_is_found(threshold: int, current: int, maximum: int, expected: int | None) -> None:
    assert additional_data._find_smallest_increase(lambda count: count >= threshold, current, maximum) == expected


def test_large_increases_are_found_to_within_a_percent() -> None:
    request: list[int] = []
    for threshold in (12_345, 1_234_567):
        smallest_increase = additional_data._find_smallest_increase(
            lambda count, threshold=threshold: request.append(count) or count >= threshold, 100, 10_000_000
        )
        assert smallest_increase is not None
        assert threshold <= smallest_increase + 100 <= 1.01 * threshold + 1
    assert len(request) < 70


def test_seeds_and_documents_are_advised_alone_or_together() -> None:
    confidence = 0.96

    def advise(components: VarianceComponents, **more: object) -> AdditionalData:
        return estimate_additional_data(components, lambda seeds, documents: confidence, EQUIVALENCE_BOUNDS, **more)  # type: ignore[arg-type]

    by_seeds = advise(make_components(0.8, 0.3, 0.0001))
    assert by_seeds.seeds is not None
    assert by_seeds.documents is None
    assert by_seeds.is_either_sufficient
    by_documents = advise(make_components(0.8, 0.0001, 0.3))
    assert by_documents.seeds is None
    assert by_documents.documents is not None
    either = advise(make_components(0.8, 0.06, 0.06, seeds=8))
    assert either.seeds is not None
    assert either.documents is not None
    alone = advise(make_components(0.8, 0.3, 0.0, documents=1))
    assert alone.seeds is not None
    assert alone.documents is None
    both = advise(make_components(0.1, 2.0, 2.0))
    assert not both.is_either_sufficient
    assert both.seeds is not None
    assert both.documents is not None
    assert advise(make_components(0.1, 2.0, 2.0), min_half_width=5.0) == AdditionalData()


def test_the_confidence_of_the_next_analysis_depends_on_its_data() -> None:
    request: set[tuple[int, int]] = set()

    def compute_confidence(seeds: int, documents: int) -> float:
        request.add((seeds, documents))
        return 0.96

    additional_data = estimate_additional_data(make_components(0.1, 2.0, 2.0), compute_confidence, EQUIVALENCE_BOUNDS)
    assert {(1000, 12), (4, 10_000_000)} <= request
    assert additional_data.seeds is not None
    together = {pair for pair in request if pair[0] != 4 and pair[1] != 12}
    assert (1000, 3000) in together
    assert all(documents == math.ceil(12 * seeds / 4) for seeds, documents in together)
    assert additional_data.documents == math.ceil(12 * additional_data.seeds / 4)
