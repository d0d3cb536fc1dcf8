"""Statistics: equal to scipy where scipy implements them, otherwise unbiased, and independent of order."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from headtohead.verdict.intervals import compute_critical_value, compute_interval, compute_seed_interval
from headtohead.verdict.power import compute_min_detectable_effect
from headtohead.verdict.variance_components import (
    VarianceComponents,
    compute_rare_difference_variance,
    estimate_unpaired_components,
    estimate_variance_components,
)

SIZES = st.tuples(st.integers(2, 8), st.integers(2, 30), st.integers(0, 2**32 - 1))


def simulate_totals(seeds: int, examples: int, random_seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(random_seed)
    weights = rng.integers(1, 40, examples).astype(float)
    rates = rng.normal(0, 1, (seeds, 1)) + rng.normal(0, 1, examples) + rng.normal(0, 1, (seeds, examples))
    return weights * rates, weights


def estimate_components(differences: np.ndarray, weights: np.ndarray) -> VarianceComponents:
    return estimate_variance_components(differences[None], weights[None])


def build_components(
    seed_variance: float, example_variance: float, seeds: int, examples: int = 1000
) -> VarianceComponents:
    shared, nothing, freedom = np.array([example_variance]), np.zeros(1), np.array([examples - 1.0])
    seed_freedom = np.array([seeds - 1.0])
    return VarianceComponents(
        nothing,
        np.array([seed_variance]),
        shared,
        nothing,
        freedom,
        freedom + 1,
        nothing,
        seed_freedom,
        seeds,
        examples,
    )


@given(SIZES, st.sampled_from([0.9, 0.95, 0.99]))
def test_the_seeds_interval_is_the_paired_t_interval(size: tuple[int, int, int], level: float) -> None:
    differences, weights = simulate_totals(*size)
    components = estimate_components(differences, weights)
    per_seed = differences.sum(axis=1) / weights.sum()
    interval = stats.ttest_rel(per_seed, np.zeros_like(per_seed)).confidence_interval(level)
    half_width = compute_seed_interval(components, level).half_width[0]
    assert [components.difference[0] - half_width, components.difference[0] + half_width] == pytest.approx(
        list(interval)
    )


def test_with_seeds_alone_both_intervals_are_the_same() -> None:
    components = estimate_components(np.array([[1.0], [2.0], [4.0]]), np.ones(1))
    assert compute_interval(components, 0.95).half_width == pytest.approx(
        compute_seed_interval(components, 0.95).half_width
    )


@given(SIZES)
def test_the_interval_for_new_text_is_never_the_narrower(size: tuple[int, int, int]) -> None:
    components = estimate_components(*simulate_totals(*size))
    assert compute_interval(components, 0.95).half_width[0] >= compute_seed_interval(components, 0.95).half_width[0]


@given(SIZES, st.floats(0.01, 100), st.floats(-3, 3))
def test_order_and_unit_and_truth_do_not_matter(size: tuple[int, int, int], unit: float, shift: float) -> None:
    differences, weights = simulate_totals(*size)
    rng = np.random.default_rng(0)
    rows, columns = rng.permutation(len(differences)), rng.permutation(len(weights))
    plain = compute_interval(estimate_components(differences, weights), 0.95).half_width[0]
    mixed = compute_interval(estimate_components(differences[rows][:, columns], weights[columns]), 0.95).half_width[0]
    weighed = compute_interval(estimate_components(differences, weights * unit), 0.95).half_width[0] * unit
    moved = compute_interval(estimate_components(differences + shift * weights, weights), 0.95).half_width[0]
    assert [mixed, weighed, moved] == pytest.approx([plain] * 3, rel=1e-6)


def test_the_parts_of_the_variance_are_unbiased_and_the_residual_is_counted_once() -> None:
    rng = np.random.default_rng(1)
    seeds, examples, tables = 4, 40, 4000
    a = 0.3 * rng.standard_normal((tables, seeds, 1))
    b = 1.0 * rng.standard_normal((tables, 1, examples))
    r = 2.0 * rng.standard_normal((tables, seeds, examples))
    components = estimate_variance_components(a + b + r, np.ones((tables, examples)))
    residual = 4.0 / (seeds * examples)
    assert components.residual_variance.mean() == pytest.approx(residual, rel=0.02)
    assert components.seed_variance.mean() == pytest.approx(0.09 / seeds + residual, rel=0.05)
    assert components.document_mean_square.mean() == pytest.approx(1.0 / examples + residual, rel=0.02)
    true = components.difference.var()
    assert (components.seed_variance + components.document_variance).mean() == pytest.approx(true, rel=0.08)
    assert (components.seed_variance + components.document_mean_square).mean() > 1.2 * true


def test_a_seed_effect_in_proportion_to_length_is_no_residual() -> None:
    weights = np.array([1.0, 5.0, 20.0, 3.0])
    components = estimate_components(np.array([[0.5], [-0.2], [0.1]]) * weights, weights)
    assert components.residual_variance[0] == pytest.approx(0, abs=1e-25)
    assert components.seed_variance[0] > 0


def test_documents_of_equal_length_have_one_degree_of_freedom_less_than_their_number() -> None:
    components = estimate_components(simulate_totals(4, 12, 3)[0], np.full(12, 7.0))
    assert components.document_degrees_of_freedom[0] == pytest.approx(11)
    assert components.equivalent_documents[0] == pytest.approx(12)
    uneven = estimate_components(*simulate_totals(4, 12, 3))
    assert 1 <= uneven.document_degrees_of_freedom[0] < 11
    assert uneven.equivalent_documents[0] < 12


def test_documents_alone_give_the_t_interval_over_documents() -> None:
    # Equal seeds: all variance is of the documents.
    differences = np.tile(np.random.default_rng(0).normal(0, 1, 40), (3, 1))
    low, high = stats.ttest_1samp(differences[0], 0).confidence_interval(0.95)
    components = estimate_components(differences, np.ones(40))
    components = replace(components, skewness=np.zeros(1))
    assert compute_interval(components, 0.95).half_width[0] == pytest.approx((high - low) / 2)


def test_rows_that_did_not_differ_may_yet_differ() -> None:
    equal = np.zeros((1, 3, 100))
    components = estimate_variance_components(equal, np.ones((1, 100)), compute_rare_difference_variance(equal))
    assert compute_interval(components, 0.95).half_width[0] == pytest.approx(3 / 100, rel=0.1)  # the rule of three
    many = equal.copy()
    many[0, 0, :2] = 1
    assert compute_rare_difference_variance(many)[0] == 0


def test_answers_that_rarely_differ_are_covered() -> None:
    # One row in a hundred differs, either way: most tables of 50 rows show no difference at all.
    rows = np.random.default_rng(0).choice([-1.0, 0.0, 1.0], p=[0.005, 0.99, 0.005], size=(2000, 1, 50))
    differences, weights = np.repeat(rows, 3, axis=1), np.ones((2000, 50))
    true_difference = 0.005  # an interval without width never contains it
    coverage = [
        (np.abs(components.difference - true_difference) <= compute_interval(components, 0.95).half_width).mean()
        for components in (
            estimate_variance_components(differences, weights),
            estimate_variance_components(differences, weights, compute_rare_difference_variance(differences)),
        )
    ]
    assert coverage[0] < 0.6
    assert coverage[1] > 0.93


def test_nothing_differs_at_all() -> None:
    components = estimate_components(np.zeros((3, 10)), np.ones(10))
    assert compute_interval(components, 0.95).half_width[0] == 0
    assert compute_min_detectable_effect(components, 0.95) == 0


@pytest.mark.parametrize("seeds", [2, 3, 5, 12])
def test_the_power_at_the_detectable_effect_is_that_of_the_noncentral_t(seeds: int) -> None:
    effect = compute_min_detectable_effect(build_components(1.0, 0.0, seeds, 1), 0.95)
    reach = compute_critical_value(0.95, np.array([seeds - 1.0]))[0]
    power = stats.nct.sf(reach, seeds - 1, effect) + stats.nct.cdf(-reach, seeds - 1, effect)
    assert power == pytest.approx(0.8, abs=2e-3)


def test_the_effect_detectable_by_examples_alone_is_the_normal_one() -> None:
    effect = compute_min_detectable_effect(build_components(0.0, 1.0, 3, 100_000), 0.95)
    assert effect == pytest.approx(1.96 + stats.norm.ppf(0.8), abs=0.01)


def test_unpaired_seeds_give_the_interval_of_welch() -> None:
    rng = np.random.default_rng(0)
    first, second = rng.normal(0, 1, 4), rng.normal(0, 3, 7)
    components = estimate_unpaired_components(first[None, :, None], second[None, :, None], np.ones((1, 1)))
    low, high = stats.ttest_ind(second, first, equal_var=False).confidence_interval(0.95)
    assert compute_interval(components, 0.95).half_width[0] == pytest.approx((high - low) / 2)
    assert components.difference[0] == pytest.approx(second.mean() - first.mean())


def test_unpaired_seeds_and_documents_are_covered() -> None:
    rng = np.random.default_rng(1)
    experiments, documents = 4000, 10
    sides = [
        rng.standard_normal((experiments, seeds, 1)) + rng.standard_normal((experiments, seeds, documents))
        for seeds in (4, 6)
    ]
    effects = 2 * rng.standard_normal((experiments, 1, documents))
    components = estimate_unpaired_components(sides[0], sides[1] + effects, np.ones((experiments, documents)))
    coverage = (np.abs(components.difference) <= compute_interval(components, 0.95).half_width).mean()
    assert 0.94 <= coverage <= 0.98


def test_resizing_to_the_same_size_changes_nothing() -> None:
    components = estimate_components(*simulate_totals(5, 30, 0))
    second_result = components.extrapolate(5, 30)
    assert compute_interval(second_result, 0.95).half_width == pytest.approx(
        compute_interval(components, 0.95).half_width
    )


def test_more_seeds_do_not_help_where_examples_are_too_few() -> None:
    components = build_components(1.0, 1.0, 5)
    assert compute_interval(components.extrapolate(100_000, 1000), 0.95).half_width[0] == pytest.approx(1.96, rel=0.01)
    assert compute_interval(components.extrapolate(5, 10**9), 0.95).half_width[0] == pytest.approx(
        compute_critical_value(0.95, np.array([4.0]))[0], rel=0.01
    )
