"""The statistics behind a verdict: the error of a paired difference on new seeds and new documents.

The model. Let y[s, j] be variant minus baseline per token, for seed s and document j, and p[j] the document's share of
all tokens. Examples from one document are correlated, so the document is the unit; its total absorbs the examples. The
estimate is d = mean over seeds of d[s], where d[s] = sum_j p[j] y[s, j], and

    y[s, j] = mu + a[s] + b[j] + r[s, j]

with seed effects a, document effects b and a residual r. The design is crossed, since every seed is scored on every
document. The target is mu, so for new seeds and new documents Var(d) = var(a)/S + P var(b) + P var(r)/S with P = sum of
p[j]^2. Three mean squares can be measured (Searle, Casella and McCulloch 1992, ch. 4). With e[s, j] = y[s, j] - d[s],
its mean over seeds e[j], and g[j] = p[j]^2 / (1 - 2 p[j] + P):

    A = variance of d[s], over S                                  expectation  var(a)/S + P var(r)/S
    B = sum_j g[j] e[j]^2                                         expectation  P var(b) + P var(r)/S
    R = sum_j g[j] sum_s (e[s, j] - e[j])^2 / (S (S - 1))         expectation  P var(r)/S

A + B counts the residual twice, so Var(d) is A + X with X = B - R. The interval is

    half width = min( sqrt(t_S^2 A + t_D^2 X),  max( t_f sqrt(A + X), t_S sqrt(A), t_D sqrt(X) ) )

with t_S, t_D and t_f the t quantiles at S - 1, D* and Satterthwaite's f degrees of freedom. The choices that the design
leaves open were settled by simulation (table in docs/judging.md):
 1. X is at least B / 2 if the documents are equivalent to fewer than 5.5 of equal length (1 / P < 5.5), otherwise at
    least 0. With so few documents, B - R is often negative by chance, and coverage would fall to 92 %.
 2. The interval is never narrower than the t interval of either source alone: Satterthwaite's formula covers 89 % with
    2 documents. The root of the sum of squares is an upper bound.
 3. D* starts from the degrees of freedom of B, which are P^2 / sum_jk g[j] g[k] (delta_jk - p[j] - p[k] + P)^2 if
    documents differ in length and D - 1 if they do not. If lengths differ this is too small, because B is skewed and a
    long document averages more examples: intervals cover up to 98.5 %, at 10 documents. The geometric mean with D - 1
    covers 94 to 97.5 %.
 4. Skewed documents: the t interval of a skewed mean is too short by a term in skewness^2 / D (Hall, Annals of
    Statistics 15, 1987), which near the usual confidences has the effect of D / skewness^2 degrees of freedom, so
    D* is divided by 1 + skewness^2 (X/B)^3, with the skewness of sqrt(p[j]) e[j].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float
from scipy import optimize, special

PerExperiment = Float[np.ndarray, " experiments"]

TARGET_POWER = 0.8
MIN_EQUIVALENT_DOCUMENTS = 5.5
"""number of documents of equal length below which X is at least MIN_DOCUMENT_SHARE of B"""
MIN_DOCUMENT_SHARE = 0.5
MAX_DEGREES_OF_FREEDOM = 1e6
"""degrees of freedom beyond which t is indistinguishable from normal"""
MAX_STANDARD_ERRORS = 1e4
"""finite substitute for infinity"""
LEGENDRE_NODES, LEGENDRE_WEIGHTS = np.polynomial.legendre.leggauss(32)
QUADRATURE_QUANTILES, QUADRATURE_WEIGHTS = (LEGENDRE_NODES + 1) / 2, LEGENDRE_WEIGHTS / 2
"""Gauss-Legendre quadrature over probabilities from 0 to 1"""


@dataclass(frozen=True, eq=False)
class VarianceComponents:
    """The components of the variance of d, for each of many experiments of the same size.

    `seed_variance` is A, `document_mean_square` is B, `residual_variance` is R. `document_freedom` is D* before the
    skewness correction. `equivalent_documents` is 1 / P. `seed_freedom` is S - 1, or that of Welch's test if the
    seeds of the two sides differ; `num_seeds` is then the smaller number.
    """

    difference: PerExperiment
    seed_variance: PerExperiment
    document_mean_square: PerExperiment
    residual_variance: PerExperiment
    document_freedom: PerExperiment
    equivalent_documents: PerExperiment
    skewness: PerExperiment
    seed_freedom: PerExperiment
    num_seeds: int
    num_documents: int

    @property
    def document_variance(self) -> PerExperiment:
        """Return X."""
        return np.asarray(np.maximum(self.document_mean_square - self.residual_variance, self.min_document_variance))

    @property
    def min_document_variance(self) -> PerExperiment:
        has_few_documents = self.equivalent_documents < MIN_EQUIVALENT_DOCUMENTS
        return np.where(has_few_documents, MIN_DOCUMENT_SHARE * self.document_mean_square, 0.0)

    def map_arrays(self, transform: Callable[[PerExperiment], PerExperiment]) -> VarianceComponents:
        """Apply a function to every array."""
        return VarianceComponents(
            transform(self.difference),
            transform(self.seed_variance),
            transform(self.document_mean_square),
            transform(self.residual_variance),
            transform(self.document_freedom),
            transform(self.equivalent_documents),
            transform(self.skewness),
            transform(self.seed_freedom),
            self.num_seeds,
            self.num_documents,
        )

    def extrapolate(self, num_seeds: int, num_documents: int) -> VarianceComponents:
        """Return the components to expect with different numbers of seeds and of documents of the same lengths."""
        seed_ratio, document_ratio = self.num_seeds / num_seeds, self.num_documents / num_documents
        residual = np.minimum(self.seed_variance, self.residual_variance)
        return replace(
            self,
            seed_variance=(self.seed_variance - residual + residual * document_ratio) * seed_ratio,
            document_mean_square=(self.document_variance + self.residual_variance * seed_ratio) * document_ratio,
            residual_variance=self.residual_variance * seed_ratio * document_ratio,
            document_freedom=self.document_freedom * (num_documents - 1) / max(self.num_documents - 1, 1),
            equivalent_documents=self.equivalent_documents / document_ratio,
            seed_freedom=self.seed_freedom * (num_seeds - 1) / (self.num_seeds - 1),
            num_seeds=num_seeds,
            num_documents=num_documents,
        )


@dataclass(frozen=True, eq=False)
class IntervalEstimate:
    """A standard error and the half-width of the resulting interval."""

    standard_error: PerExperiment
    half_width: PerExperiment


def estimate_variance_components(
    differences: Float[np.ndarray, "experiments seeds documents"],
    weights: Float[np.ndarray, "experiments documents"],
    extra_document_variance: PerExperiment | None = None,
) -> VarianceComponents:
    """Estimate the components from document totals paired by seed.

    `extra_document_variance` is added to account for examples that happened not to differ (see
    `compute_rare_difference_variance`).
    """
    return _combine_mean_squares(_compute_mean_squares(differences, weights), weights, extra_document_variance)


def estimate_unpaired_components(
    baseline: Float[np.ndarray, "experiments baseline_seeds documents"],
    variant: Float[np.ndarray, "experiments variant_seeds documents"],
    weights: Float[np.ndarray, "experiments documents"],
    extra_document_variance: PerExperiment | None = None,
) -> VarianceComponents:
    """Estimate the components from totals of the same documents with different seeds (Welch, Biometrika 34, 1947)."""
    first, second = (_compute_mean_squares(totals, weights) for totals in (baseline, variant))
    seed_variance = first.seed_variance + second.seed_variance
    uncertainty = first.seed_variance**2 / first.seed_freedom + second.seed_variance**2 / second.seed_freedom
    smaller_freedom = np.minimum(first.seed_freedom, second.seed_freedom)
    difference = _MeanSquares(
        second.mean - first.mean,
        seed_variance,
        np.divide(seed_variance**2, uncertainty, out=smaller_freedom, where=uncertainty > 0),
        second.deviations - first.deviations,
        first.residual_variance + second.residual_variance,
        min(first.num_seeds, second.num_seeds),
    )
    return _combine_mean_squares(difference, weights, extra_document_variance)


@dataclass(frozen=True, eq=False)
class _MeanSquares:
    """Mean squares of a seed-by-document table, or of the difference between two such tables."""

    mean: PerExperiment
    seed_variance: PerExperiment
    seed_freedom: PerExperiment
    deviations: Float[np.ndarray, "experiments documents"]
    """deviation of each document from the mean, averaged over seeds"""
    residual_variance: PerExperiment
    num_seeds: int


def _compute_mean_squares(
    totals: Float[np.ndarray, "experiments seeds documents"], weights: Float[np.ndarray, "experiments documents"]
) -> _MeanSquares:
    """Return the mean squares of a two-way layout with seeds and documents as factors."""
    seeds = totals.shape[1]
    per_seed = totals.sum(axis=-1) / weights.sum(axis=-1)[:, None]
    mean = per_seed.mean(axis=-1)
    deviations = totals / weights[:, None, :] - per_seed[..., None]
    shared = deviations.mean(axis=-2)
    deviations -= shared[:, None, :]
    factors = _compute_factors(weights)[1]
    residual = np.einsum("nj,nsj,nsj->n", factors, deviations, deviations) / (seeds * (seeds - 1))
    seed_variance = per_seed.var(axis=-1, ddof=1) / seeds
    return _MeanSquares(mean, seed_variance, np.full_like(mean, seeds - 1.0), shared, residual, seeds)


def _compute_factors(
    weights: Float[np.ndarray, "experiments documents"],
) -> tuple[Float[np.ndarray, "experiments documents"], Float[np.ndarray, "experiments documents"], PerExperiment]:
    """Return p[j], g[j] and P. With a single document, g[j] is 0."""
    shares = weights / weights.sum(axis=-1, keepdims=True)
    square_sum = (shares**2).sum(axis=-1)
    denominators = 1 - 2 * shares + square_sum[:, None]
    factors = np.divide(shares**2, denominators, out=np.zeros_like(shares), where=denominators > 0)
    return shares, factors, square_sum


def _combine_mean_squares(
    squares: _MeanSquares,
    weights: Float[np.ndarray, "experiments documents"],
    extra_document_variance: PerExperiment | None,
) -> VarianceComponents:
    """Return the variance components over seeds and documents, with their degrees of freedom."""
    documents = weights.shape[-1]
    zeros = np.zeros_like(squares.mean)
    if documents == 1:
        return VarianceComponents(
            squares.mean,
            squares.seed_variance,
            zeros,
            zeros,
            zeros,
            zeros + 1,
            zeros,
            squares.seed_freedom,
            squares.num_seeds,
            documents,
        )
    shares, factors, square_sum = _compute_factors(weights)
    mean_square = (factors * squares.deviations**2).sum(axis=-1)
    if extra_document_variance is not None:
        mean_square = mean_square + extra_document_variance
    influence = np.sqrt(shares) * squares.deviations
    spread = (influence**2).sum(axis=-1) ** 1.5
    # If all documents agree, the skewness is 0 instead of 0/0.
    skewness = np.divide(np.sqrt(documents) * (influence**3).sum(axis=-1), spread, out=zeros.copy(), where=spread > 0)
    return VarianceComponents(
        squares.mean,
        squares.seed_variance,
        mean_square,
        squares.residual_variance,
        np.sqrt(_compute_document_freedom(shares, factors, square_sum) * (documents - 1)),
        1 / square_sum,
        skewness,
        squares.seed_freedom,
        squares.num_seeds,
        documents,
    )


def _compute_document_freedom(
    shares: Float[np.ndarray, "experiments documents"],
    factors: Float[np.ndarray, "experiments documents"],
    square_sum: PerExperiment,
) -> PerExperiment:
    """Return the degrees of freedom of B, assuming that all documents have the same variance."""
    sums = [(factors * shares**power).sum(axis=-1) for power in range(3)]
    off_diagonal = (
        square_sum**2 * sums[0] ** 2 - 4 * square_sum * sums[0] * sums[1] + 2 * sums[0] * sums[2] + 2 * sums[1] ** 2
    )
    diagonal = (factors**2 * (1 + 2 * (square_sum[:, None] - 2 * shares))).sum(axis=-1)
    return np.asarray(square_sum**2 / (off_diagonal + diagonal))


def compute_rare_difference_variance(differences: Float[np.ndarray, "experiments seeds examples"]) -> PerExperiment:
    """Return the variance to add for binary scores if fewer than two examples differ.

    If no example differs between two variants, every estimated variance is 0, yet new examples may differ: after E
    equal examples the share that differs may be as large as 3 / E (the rule of three, Hanley and Lippman-Hand, JAMA
    1983). Assuming that at least two examples differ, one in each direction, gives an interval of 2.8 / E.
    """
    examples = differences.shape[-1]
    differing = (differences != 0).any(axis=-2).sum(axis=-1)
    return np.asarray(np.maximum(2.0 - differing, 0.0) / examples**2)


def compute_critical_value(confidence: float, degrees_of_freedom: PerExperiment) -> PerExperiment:
    """Return the half-width of a two-sided t interval, in units of the standard error."""
    return np.asarray(special.stdtrit(np.minimum(degrees_of_freedom, MAX_DEGREES_OF_FREEDOM), (1 + confidence) / 2))


def compute_seed_interval(components: VarianceComponents, confidence: float) -> IntervalEstimate:
    """Return the t interval over the per-seed paired differences, which holds for these documents only."""
    error = np.sqrt(components.seed_variance)
    return IntervalEstimate(error, compute_critical_value(confidence, components.seed_freedom) * error)


def compute_interval(components: VarianceComponents, confidence: float) -> IntervalEstimate:
    """Return the interval for new seeds and new documents, which is never narrower than the one over seeds."""
    seed_interval = compute_seed_interval(components, confidence)
    if components.num_documents == 1:
        return seed_interval
    seed_freedom = components.seed_freedom
    from_seeds, from_documents = components.seed_variance, components.document_variance
    mean_square, residual = components.document_mean_square, components.residual_variance
    has_documents = from_documents > 0
    share = np.divide(from_documents, mean_square, out=np.zeros_like(mean_square), where=mean_square > 0)
    document_freedom = np.maximum(components.document_freedom / (1 + components.skewness**2 * share**3), 1.0)
    is_excess = mean_square - residual > components.min_document_variance
    uncertainty = (
        from_seeds**2 / seed_freedom
        + np.where(has_documents, mean_square**2, 0.0) / document_freedom
        + np.where(is_excess, residual**2, 0.0) / (seed_freedom * document_freedom)
    )
    variance = from_seeds + from_documents
    freedom = np.divide(variance**2, uncertainty, out=seed_freedom.copy(), where=uncertainty > 0)
    from_both = compute_critical_value(confidence, np.maximum(freedom, 1.0)) * np.sqrt(variance)
    document_half_width = compute_critical_value(confidence, document_freedom) * np.sqrt(from_documents)
    bound = np.hypot(seed_interval.half_width, document_half_width)
    half_width = np.maximum.reduce([from_both, seed_interval.half_width, document_half_width])
    return IntervalEstimate(np.sqrt(variance), np.minimum(bound, half_width))


def compute_min_detectable_effect(components: VarianceComponents, confidence: float) -> float:
    """Return the smallest true difference whose interval excludes 0 with the target power."""
    half_width, weights, error = _list_possible_half_widths(components, confidence)
    if error == 0:
        return 0.0

    def compute_missing_power(standard_errors: float) -> float:
        return (
            float(weights @ _compute_exclusion_probability(standard_errors * error, half_width, error)) - TARGET_POWER
        )

    high = 4.0
    while compute_missing_power(high) < 0:
        high *= 2
    return error * float(optimize.brentq(compute_missing_power, 0.0, high, xtol=1e-6))


def _compute_exclusion_probability(effect: float, half_width: PerExperiment, error: float) -> PerExperiment:
    below = special.ndtr(_to_standard_errors(-half_width - effect, error))
    above = special.ndtr(_to_standard_errors(effect - half_width, error))
    return np.asarray(below + above)


def _list_possible_half_widths(
    components: VarianceComponents, confidence: float
) -> tuple[PerExperiment, PerExperiment, float]:
    """Return the half-widths to expect if `components` is the truth, their probabilities, and the true error."""
    assert components.difference.size == 1
    error = float(np.sqrt(components.seed_variance[0] + components.document_variance[0]))
    seed_factor, document_factor = (
        special.chdtri(freedom, 1 - QUADRATURE_QUANTILES) / freedom
        for freedom in (float(components.seed_freedom[0]), max(float(components.document_freedom[0]), 1.0))
    )
    if components.num_documents == 1:
        document_factor = np.ones(1)
    weights = np.outer(QUADRATURE_WEIGHTS, np.ones(1) if components.num_documents == 1 else QUADRATURE_WEIGHTS)
    pairs = np.stack(np.broadcast_arrays(seed_factor[:, None], document_factor[None, :]))
    seed_factors, document_factors = pairs.reshape(2, -1)
    possible = components.map_arrays(lambda array: np.full(weights.size, array[0]))
    possible = replace(
        possible,
        seed_variance=possible.seed_variance * seed_factors,
        document_mean_square=possible.document_mean_square * document_factors,
    )
    return compute_interval(possible, confidence).half_width, weights.ravel(), error


def _to_standard_errors(effect: PerExperiment, standard_error: float) -> PerExperiment:
    """Return the effect in units of its standard error.

    If the standard error is 0, return the largest value with the sign of the effect.
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return np.asarray(
            np.nan_to_num(effect / standard_error, nan=0.0, posinf=MAX_STANDARD_ERRORS, neginf=-MAX_STANDARD_ERRORS)
        )


def compute_mean_interval(values: Sequence[float], confidence: float = 0.95) -> list[float] | None:
    """Return the t interval for a mean as [low, high], or None if there are fewer than two values."""
    if len(values) < 2:
        return None
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    half_width = float(special.stdtrit(len(values) - 1, (1 + confidence) / 2)) * error
    mean = float(np.mean(values))
    return [mean - half_width, mean + half_width]
