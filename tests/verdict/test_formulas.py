"""The formulas of the interval, written again as loops over seeds and documents, and figures worked out by hand."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
from scipy import integrate, stats

from headtohead.verdict.intervals import compute_critical_value, compute_interval, compute_mean_interval
from headtohead.verdict.power import compute_min_detectable_effect
from headtohead.verdict.tuning_variance import NO_TUNING_VARIANCE, TuningVariance, estimate_tuning_variance
from headtohead.verdict.variance_components import (
    VarianceComponents,
    compute_rare_difference_variance,
    estimate_unpaired_components,
    estimate_variance_components,
)


@dataclass
class ExpectedComponents:
    """The components of one experiment, from the formulas of the module's docstring."""

    d: float
    A: float
    B: float
    R: float
    D: float
    equivalent: float
    skewness: float

    def compute_document_variance(self) -> float:
        """Return X."""
        return max(self.B - self.R, self.B / 2 if self.equivalent < 5.5 else 0.0)


def derive_components(y: np.ndarray, lengths: np.ndarray) -> ExpectedComponents:
    """`y` holds totals per seed and document; there are at least two documents."""
    num_seeds, num_documents = y.shape
    seeds, documents = range(num_seeds), range(num_documents)
    p = [length / sum(lengths) for length in lengths]
    P = sum(share**2 for share in p)
    d = [sum(y[s]) / sum(lengths) for s in seeds]
    mean = sum(d) / num_seeds
    A = sum((value - mean) ** 2 for value in d) / (num_seeds - 1) / num_seeds
    e = [[y[s, j] / lengths[j] - d[s] for j in documents] for s in seeds]
    e_mean = [sum(e[s][j] for s in seeds) / num_seeds for j in documents]
    g = [p[j] ** 2 / (1 - 2 * p[j] + P) for j in documents]
    B = sum(g[j] * e_mean[j] ** 2 for j in documents)
    R = sum(g[j] * (e[s][j] - e_mean[j]) ** 2 for s in seeds for j in documents) / (num_seeds * (num_seeds - 1))
    squares = sum(g[j] * g[k] * ((j == k) - p[j] - p[k] + P) ** 2 for j in documents for k in documents)
    freedom = math.sqrt(P**2 / squares * (num_documents - 1))
    q = [math.sqrt(p[j]) * e_mean[j] for j in documents]
    second, third = sum(x**2 for x in q), sum(x**3 for x in q)
    skewness = math.sqrt(num_documents) * third / second**1.5 if second else 0.0
    return ExpectedComponents(mean, A, B, R, freedom, 1 / P, skewness)


def derive_half_width(components: ExpectedComponents, seed_freedom: float, confidence: float) -> float:
    def t(freedom: float) -> float:
        return float(stats.t.ppf((1 + confidence) / 2, freedom))

    A, B, R, X = components.A, components.B, components.R, components.compute_document_variance()
    D = max(components.D / (1 + components.skewness**2 * (X / B) ** 3), 1.0)
    floor = B / 2 if components.equivalent < 5.5 else 0.0
    is_excess = floor < B - R
    f = (A + X) ** 2 / (
        A**2 / seed_freedom + (B**2 / D if X > 0 else 0.0) + (R**2 / (seed_freedom * D) if is_excess else 0.0)
    )
    both = t(max(f, 1.0)) * math.sqrt(A + X)
    of_seeds, of_documents = t(seed_freedom) * math.sqrt(A), t(D) * math.sqrt(X)
    return min(math.sqrt(of_seeds**2 + of_documents**2), max(both, of_seeds, of_documents))


def draw_table(seeds: int, documents: int, spreads: tuple[float, float, float], random_seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(random_seed)
    of_seeds, of_documents, residual = spreads
    rates = 0.3 + of_seeds * rng.normal(size=(seeds, 1)) + of_documents * rng.exponential(size=documents) ** 2
    return rates + residual * rng.normal(size=(seeds, documents))


SPREADS = [(1.0, 0.1, 0.3), (0.1, 1.0, 0.1), (0.2, 0.02, 1.5), (0.5, 0.5, 0.5), (0.01, 3.0, 0.01)]
LENGTHS = {2: [3.0, 4.0], 4: [1.0, 2.0, 3.0, 9.0], 5: [7.0] * 5, 6: [2.0] * 6, 9: [5, 1, 2, 2, 8, 3, 3, 1, 30.0]}


@pytest.mark.parametrize("spreads", SPREADS)
@pytest.mark.parametrize("documents", LENGTHS)
@pytest.mark.parametrize("seeds", [2, 3, 7])
def test_the_components_and_the_interval_are_those_of_the_formulas(
    seeds: int, documents: int, spreads: tuple[float, float, float]
) -> None:
    lengths = np.array(LENGTHS[documents])
    table = draw_table(seeds, documents, spreads) * lengths
    expected = derive_components(table, lengths)
    X = expected.compute_document_variance()
    components = estimate_variance_components(table[None], lengths[None])
    assert components.difference[0] == pytest.approx(expected.d)
    assert components.seed_variance[0] == pytest.approx(expected.A)
    assert components.document_mean_square[0] == pytest.approx(expected.B)
    assert components.residual_variance[0] == pytest.approx(expected.R)
    assert components.document_degrees_of_freedom[0] == pytest.approx(expected.D)
    assert components.equivalent_documents[0] == pytest.approx(expected.equivalent)
    assert components.skewness[0] == pytest.approx(expected.skewness)
    assert components.document_variance[0] == pytest.approx(X)
    assert (components.seed_degrees_of_freedom[0], components.num_seeds, components.num_documents) == (
        seeds - 1,
        seeds,
        documents,
    )
    for confidence in (0.6, 0.95, 0.999):
        interval = compute_interval(components, confidence)
        assert interval.half_width[0] == pytest.approx(derive_half_width(expected, seeds - 1, confidence))
        assert interval.standard_error[0] == pytest.approx(math.sqrt(expected.A + X))


def test_tables_of_many_experiments_are_judged_one_by_one() -> None:
    lengths = np.array([LENGTHS[4], LENGTHS[4][::-1]])
    tables = np.stack([draw_table(3, 4, SPREADS[0], seed) for seed in (1, 2)]) * lengths[:, None]
    together = compute_interval(estimate_variance_components(tables, lengths), 0.95).half_width
    apart = [
        compute_interval(estimate_variance_components(table[None], length[None]), 0.95).half_width[0]
        for table, length in zip(tables, lengths, strict=True)
    ]
    assert together == pytest.approx(apart)


def test_the_floor_of_the_document_variance_ends_at_five_and_a_half_equal_documents() -> None:
    nothing, item = np.zeros(1), np.ones(1)
    components = VarianceComponents(nothing, item, item, 0.9 * item, item, 5.49 * item, nothing, item, 2, 9)
    assert components.document_variance[0] == pytest.approx(0.5)
    for equivalent in (5.5, 5.51):
        many = replace(components, equivalent_documents=np.array([equivalent]))
        assert many.document_variance[0] == pytest.approx(0.1)
        assert replace(many, residual_variance=2 * item).document_variance[0] == 0


def test_documents_have_at_least_one_degree_of_freedom() -> None:
    """A strong skewness would leave less."""
    nothing, item = np.zeros(1), np.ones(1)
    components = VarianceComponents(nothing, nothing, item, nothing, 4 * item, 9 * item, 3 * item, 5 * item, 6, 9)
    assert compute_interval(components, 0.95).half_width[0] == pytest.approx(stats.t.ppf(0.975, 1))
    mild = replace(components, skewness=item)  # 4 / (1 + 1) degrees of freedom
    assert compute_interval(mild, 0.95).half_width[0] == pytest.approx(stats.t.ppf(0.975, 2))


def test_one_document_has_no_document_variance() -> None:
    components = estimate_variance_components(np.array([[[2.0], [6.0], [7.0]]]), np.array([[4.0]]))
    assert components.difference[0] == pytest.approx(1.25)
    assert components.seed_variance[0] == pytest.approx(np.var([0.5, 1.5, 1.75], ddof=1) / 3)
    zeros = (
        components.document_mean_square,
        components.residual_variance,
        components.document_degrees_of_freedom,
        components.skewness,
    )
    assert [array[0] for array in zeros] == [0, 0, 0, 0]
    assert (components.equivalent_documents[0], components.seed_degrees_of_freedom[0], components.num_documents) == (
        1,
        2,
        1,
    )
    assert compute_interval(components, 0.95).standard_error[0] == pytest.approx(math.sqrt(components.seed_variance[0]))


def test_rare_differences_count_as_documents_that_disagree() -> None:
    table, lengths = draw_table(3, 6, SPREADS[3])[None], np.ones((1, 6))
    plain, more = (estimate_variance_components(table, lengths, extra) for extra in (None, np.array([0.25])))
    assert more.document_mean_square[0] == pytest.approx(plain.document_mean_square[0] + 0.25)


def test_the_variance_of_rare_differences() -> None:
    differences = np.zeros((4, 2, 10))
    differences[1, 0, 3] = 1
    differences[2, :, 3] = -1  # the same example with both seeds
    differences[3, 0, 3] = differences[3, 1, 4] = 1
    assert compute_rare_difference_variance(differences) == pytest.approx([0.02, 0.01, 0.01, 0.0])
    differences[3, 0, 5] = 1
    assert compute_rare_difference_variance(differences)[3] == 0


@pytest.mark.parametrize(("seeds", "documents"), [((3, 5), 4), ((6, 4), 9)])
def test_unpaired_tables_add_their_variances(seeds: tuple[int, int], documents: int) -> None:
    lengths = np.array(LENGTHS[documents])
    tables = [draw_table(n, documents, SPREADS[3], n) * lengths for n in seeds]
    sides = [derive_components(table, lengths) for table in tables]
    components = estimate_unpaired_components(tables[0][None], tables[1][None], lengths[None])
    A = sides[0].A + sides[1].A
    freedom = A**2 / sum(side.A**2 / (n - 1) for side, n in zip(sides, seeds, strict=True))
    assert components.difference[0] == pytest.approx(sides[1].d - sides[0].d)
    assert components.seed_variance[0] == pytest.approx(A)
    assert components.residual_variance[0] == pytest.approx(sides[0].R + sides[1].R)
    assert components.seed_degrees_of_freedom[0] == pytest.approx(freedom)
    assert components.num_seeds == min(seeds)
    means = np.stack([table.mean(axis=0) for table in tables])
    between = derive_components(
        np.repeat(np.diff(means, axis=0), 2, axis=0), lengths
    )  # documents differ as in these means
    assert components.document_mean_square[0] == pytest.approx(between.B)
    assert components.skewness[0] == pytest.approx(between.skewness)


def test_unpaired_tables_without_seed_noise_have_the_freedom_of_the_smaller_side() -> None:
    components = estimate_unpaired_components(np.ones((1, 5, 2)), 2 * np.ones((1, 3, 2)), np.ones((1, 2)))
    assert (components.seed_variance[0], components.seed_degrees_of_freedom[0], components.difference[0]) == (0, 2, 1)


def test_components_of_more_data() -> None:
    components = VarianceComponents(
        *(np.array([value]) for value in (0.5, 0.3, 0.9, 0.2, 7.0, 8.0, 0.4, 3.0)), num_seeds=4, num_documents=10
    )
    more = components.extrapolate(12, 30)  # three times each
    assert more.seed_variance[0] == pytest.approx((0.1 + 0.2 / 3) / 3)
    assert more.document_mean_square[0] == pytest.approx((0.7 + 0.2 / 3) / 3)
    assert more.residual_variance[0] == pytest.approx(0.2 / 9)
    assert more.document_degrees_of_freedom[0] == pytest.approx(7 * 29 / 9)
    assert more.equivalent_documents[0] == pytest.approx(24)
    assert more.seed_degrees_of_freedom[0] == pytest.approx(11)
    assert (more.skewness[0], more.difference[0], more.num_seeds, more.num_documents) == (0.4, 0.5, 12, 30)
    noisy = replace(components, residual_variance=np.array([0.5])).extrapolate(4, 20)
    assert noisy.seed_variance[0] == pytest.approx(0.15), "the residual is at most the variance between seeds"
    single = replace(components, num_documents=1, document_degrees_of_freedom=np.zeros(1)).extrapolate(8, 1)
    assert (single.document_degrees_of_freedom[0], single.seed_variance[0]) == (0, pytest.approx(0.15))


def test_confidence_and_degrees_of_freedom_of_the_critical_value() -> None:
    assert compute_critical_value(0.95, np.array([1.0, 4.0])) == pytest.approx([12.7062, 2.7764], abs=1e-4)
    assert compute_critical_value(0.9, np.array([1e9]))[0] == compute_critical_value(0.9, np.array([1e6]))[0]
    assert compute_critical_value(0.9, np.array([9e5]))[0] != compute_critical_value(0.9, np.array([1e6]))[0]


def test_the_interval_of_a_mean() -> None:
    assert compute_mean_interval([3.0]) is None
    assert compute_mean_interval([1.0, 2.0, 6.0]) == pytest.approx(
        list(stats.t.interval(0.95, 2, 3.0, stats.sem([1.0, 2.0, 6.0])))
    )
    assert compute_mean_interval([1.0, 2.0], 0.8) == pytest.approx(
        list(stats.t.interval(0.8, 1, 1.5, stats.sem([1.0, 2.0])))
    )


@pytest.mark.parametrize(("A", "X"), [(1.0, 0.0), (0.2, 1.0), (1.0, 0.3)])
def test_the_detectable_effect_has_a_power_of_80_percent(A: float, X: float) -> None:
    """Power by numerical integration over the mean squares that an experiment may observe."""
    seed_freedom, document_freedom = 4.0, 12.0
    arrays = (np.array([value]) for value in (0.0, A, X, 0.0, document_freedom, 13.0, 0.0, seed_freedom))
    components = VarianceComponents(*arrays, num_seeds=5, num_documents=13)
    effect, error = compute_min_detectable_effect(components, 0.95), math.sqrt(A + X)

    levels = (np.arange(100) + 0.5) / 100
    factors = [stats.chi2.ppf(levels, freedom) / freedom for freedom in (seed_freedom, document_freedom)]
    of_seeds, of_documents = (array.ravel() for array in np.meshgrid(A * factors[0], X * factors[1]))
    visited = replace(
        components.map_arrays(lambda array: np.full(of_seeds.size, array[0])),
        seed_variance=of_seeds,
        document_mean_square=of_documents,
    )
    reach = compute_interval(visited, 0.95).half_width
    power = np.mean(stats.norm.cdf((effect - reach) / error) + stats.norm.cdf((-effect - reach) / error))
    assert power == pytest.approx(0.8, abs=0.003)


def test_the_detectable_effect_of_one_document_is_exact() -> None:
    components = estimate_variance_components(np.array([[[1.0], [2.0], [4.0], [4.5]]]), np.ones((1, 1)))
    error, reach = math.sqrt(components.seed_variance[0]), stats.t.ppf(0.995, 3)
    effect = compute_min_detectable_effect(components, 0.99) / error

    def reject(factor: float) -> float:
        bound = reach * math.sqrt(factor / 3)
        return float((stats.norm.cdf(effect - bound) + stats.norm.cdf(-effect - bound)) * stats.chi2.pdf(factor, 3))

    assert integrate.quad(reject, 0, np.inf)[0] == pytest.approx(0.8, abs=2e-3)


# ---- tuned comparisons


def test_the_tuning_variance_is_the_expected_square_of_the_loss_of_a_wrong_choice() -> None:
    scores = np.array([[1.0, 1.2, 1.1], [1.05, 1.3, 1.2], [0.0, 0.3, 0.0]])
    tuning_variance = estimate_tuning_variance(scores, 1)
    residuals = scores - scores.mean(axis=1, keepdims=True) - scores.mean(axis=0) + scores.mean()
    error = math.sqrt((residuals**2).sum() / 4 / 3)
    gap = scores[1].mean() - scores[0].mean()
    # The third point is too far away to be chosen, so the first is chosen if its noise exceeds the gap.
    probability = stats.norm.sf(gap / (error * math.sqrt(2)))
    assert tuning_variance.degrees_of_freedom == 4
    assert tuning_variance.variance == pytest.approx(probability * gap**2, rel=0.05)
    assert estimate_tuning_variance(scores, 0).variance == pytest.approx((1 - probability) * gap**2, rel=0.05)


def test_clear_choices_have_no_error_and_choices_add_up() -> None:
    clear = estimate_tuning_variance(np.array([[1.0, 1.1, 1.2, 1.15], [9.0, 9.1, 9.3, 9.15]]), 1)
    assert clear == TuningVariance(0.0, 3)
    assert TuningVariance(0.25, 6).add(TuningVariance(0.5, 2)) == TuningVariance(0.75, 2)
    assert TuningVariance(0.25, 2).add(TuningVariance(0.5, 6)) == TuningVariance(0.75, 2)
    assert TuningVariance(0.0, 1) == NO_TUNING_VARIANCE


def test_the_tuning_variance_widens_an_interval() -> None:
    half_width = np.array([3.0])
    assert NO_TUNING_VARIANCE.widen(half_width, 0.95) is half_width
    critical = stats.t.ppf(0.95, 4)
    assert TuningVariance(0.25, 4).widen(half_width, 0.9)[0] == pytest.approx(math.hypot(3, critical * 0.5))
