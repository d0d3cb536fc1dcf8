"""Variance components of a paired difference: how much of its variance is from seeds, documents and the residual.

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

A + B counts the residual twice, so Var(d) is A + X with X = B - R. Simulations settled the choices that the design
leaves open here (table in docs/judging.md); `intervals` lists those of the interval:
 1. X is at least B / 2 if the documents are equivalent to fewer than 5.5 of equal length (1 / P < 5.5), otherwise at
    least 0. With so few documents, B - R is often negative by chance, and coverage would fall to 92 %.
 2. The degrees of freedom D* of X start from those of B, which are P^2 / sum_jk g[j] g[k] (delta_jk - p[j] - p[k] +
    P)^2 if documents differ in length and D - 1 if they do not. If lengths differ this is too small, because B is
    skewed and a long document averages more examples: intervals cover up to 98.5 %, at 10 documents. The geometric mean
    with D - 1 covers 94 to 97.5 %.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

PerExperiment = Float[np.ndarray, " experiments"]

MIN_EQUIVALENT_DOCUMENTS = 5.5
"""number of documents of equal length below which X is at least MIN_DOCUMENT_SHARE of B"""
MIN_DOCUMENT_SHARE = 0.5


@dataclass(frozen=True, eq=False)
class VarianceComponents:
    """A paired difference d and the components of its variance, for each of many experiments of the same size.

    `seed_variance` is A, `document_mean_square` is B, `residual_variance` is R. `document_degrees_of_freedom` is D*
    before the correction for skewness. `equivalent_documents` is 1 / P. `seed_degrees_of_freedom` is S - 1, or that of
    Welch's test if the baseline and the variant have different seeds; `num_seeds` is then the smaller number.
    """

    difference: PerExperiment
    seed_variance: PerExperiment
    document_mean_square: PerExperiment
    residual_variance: PerExperiment
    document_degrees_of_freedom: PerExperiment
    equivalent_documents: PerExperiment
    skewness: PerExperiment
    seed_degrees_of_freedom: PerExperiment
    num_seeds: int
    num_documents: int

    @property
    def document_variance(self) -> PerExperiment:
        """Return X, the part of Var(d) that is from documents."""
        return np.asarray(np.maximum(self.document_mean_square - self.residual_variance, self.min_document_variance))

    @property
    def min_document_variance(self) -> PerExperiment:
        """Return the smallest value of X, which is above 0 only if there are few documents."""
        has_few_documents = self.equivalent_documents < MIN_EQUIVALENT_DOCUMENTS
        return np.where(has_few_documents, MIN_DOCUMENT_SHARE * self.document_mean_square, 0.0)

    def map_arrays(self, transform: Callable[[PerExperiment], PerExperiment]) -> VarianceComponents:
        """Apply a function to every array."""
        return VarianceComponents(
            transform(self.difference),
            transform(self.seed_variance),
            transform(self.document_mean_square),
            transform(self.residual_variance),
            transform(self.document_degrees_of_freedom),
            transform(self.equivalent_documents),
            transform(self.skewness),
            transform(self.seed_degrees_of_freedom),
            self.num_seeds,
            self.num_documents,
        )

    def extrapolate(self, num_seeds: int, num_documents: int) -> VarianceComponents:
        """Return the components to expect with different numbers of seeds and of documents of the same lengths."""
        seed_ratio, document_ratio = self.num_seeds / num_seeds, self.num_documents / num_documents
        residual_variance = np.minimum(self.seed_variance, self.residual_variance)
        return replace(
            self,
            seed_variance=(self.seed_variance - residual_variance + residual_variance * document_ratio) * seed_ratio,
            document_mean_square=(self.document_variance + self.residual_variance * seed_ratio) * document_ratio,
            residual_variance=self.residual_variance * seed_ratio * document_ratio,
            document_degrees_of_freedom=(
                self.document_degrees_of_freedom * (num_documents - 1) / max(self.num_documents - 1, 1)
            ),
            equivalent_documents=self.equivalent_documents / document_ratio,
            seed_degrees_of_freedom=self.seed_degrees_of_freedom * (num_seeds - 1) / (self.num_seeds - 1),
            num_seeds=num_seeds,
            num_documents=num_documents,
        )


def estimate_variance_components(
    differences: Float[np.ndarray, "experiments seeds documents"],
    weights: Float[np.ndarray, "experiments documents"],
    extra_document_variance: PerExperiment | None = None,
) -> VarianceComponents:
    """Estimate the components from paired differences: variant minus baseline totals of each seed and document.

    `extra_document_variance` is added to account for examples that happened not to differ (see
    `compute_rare_difference_variance`).
    """
    return _combine_mean_squares(_compute_mean_squares(differences, weights), weights, extra_document_variance)


def estimate_unpaired_components(
    baseline_totals: Float[np.ndarray, "experiments baseline_seeds documents"],
    variant_totals: Float[np.ndarray, "experiments variant_seeds documents"],
    weights: Float[np.ndarray, "experiments documents"],
    extra_document_variance: PerExperiment | None = None,
) -> VarianceComponents:
    """Estimate the components from totals of the same documents with different seeds (Welch, Biometrika 34, 1947)."""
    baseline, variant = (_compute_mean_squares(totals, weights) for totals in (baseline_totals, variant_totals))
    seed_variance = baseline.seed_variance + variant.seed_variance
    uncertainty = (
        baseline.seed_variance**2 / baseline.seed_degrees_of_freedom
        + variant.seed_variance**2 / variant.seed_degrees_of_freedom
    )
    smaller_degrees_of_freedom = np.minimum(baseline.seed_degrees_of_freedom, variant.seed_degrees_of_freedom)
    mean_squares = _MeanSquares(
        variant.mean - baseline.mean,
        seed_variance,
        np.divide(seed_variance**2, uncertainty, out=smaller_degrees_of_freedom, where=uncertainty > 0),
        variant.document_deviations - baseline.document_deviations,
        baseline.residual_variance + variant.residual_variance,
        min(baseline.num_seeds, variant.num_seeds),
    )
    return _combine_mean_squares(mean_squares, weights, extra_document_variance)


@dataclass(frozen=True, eq=False)
class _MeanSquares:
    """Mean squares of a seed-by-document table, or of the difference between two such tables."""

    mean: PerExperiment
    seed_variance: PerExperiment
    seed_degrees_of_freedom: PerExperiment
    document_deviations: Float[np.ndarray, "experiments documents"]
    """e[j]: deviation of each document from the mean, averaged over seeds"""
    residual_variance: PerExperiment
    num_seeds: int


def _compute_mean_squares(
    totals: Float[np.ndarray, "experiments seeds documents"], weights: Float[np.ndarray, "experiments documents"]
) -> _MeanSquares:
    """Return the mean squares from which variance components are estimated, with seeds and documents as factors."""
    num_seeds = totals.shape[1]
    seed_means = totals.sum(axis=-1) / weights.sum(axis=-1)[:, None]
    mean = seed_means.mean(axis=-1)
    residuals = totals / weights[:, None, :] - seed_means[..., None]
    document_deviations = residuals.mean(axis=-2)
    residuals -= document_deviations[:, None, :]
    factors = _compute_document_shares(weights).mean_square_factors
    residual_variance = np.einsum("nj,nsj,nsj->n", factors, residuals, residuals) / (num_seeds * (num_seeds - 1))
    seed_variance = seed_means.var(axis=-1, ddof=1) / num_seeds
    degrees_of_freedom = np.full_like(mean, num_seeds - 1.0)
    return _MeanSquares(mean, seed_variance, degrees_of_freedom, document_deviations, residual_variance, num_seeds)


class _DocumentShares(NamedTuple):
    """The shares of the documents in all tokens, and the factors of the mean squares that follow from them."""

    shares: Float[np.ndarray, "experiments documents"]
    """p[j]"""
    mean_square_factors: Float[np.ndarray, "experiments documents"]
    """g[j]; 0 with a single document"""
    sum_of_squares: PerExperiment
    """P"""


def _compute_document_shares(weights: Float[np.ndarray, "experiments documents"]) -> _DocumentShares:
    """Return p[j], g[j] and P, the document shares in the variance components."""
    shares = weights / weights.sum(axis=-1, keepdims=True)
    sum_of_squares = (shares**2).sum(axis=-1)
    denominators = 1 - 2 * shares + sum_of_squares[:, None]
    factors = np.divide(shares**2, denominators, out=np.zeros_like(shares), where=denominators > 0)
    return _DocumentShares(shares, factors, sum_of_squares)


def _combine_mean_squares(
    mean_squares: _MeanSquares,
    weights: Float[np.ndarray, "experiments documents"],
    extra_document_variance: PerExperiment | None,
) -> VarianceComponents:
    """Return the variance components over seeds and documents, with their degrees of freedom."""
    num_documents = weights.shape[-1]
    zeros = np.zeros_like(mean_squares.mean)
    if num_documents == 1:
        return VarianceComponents(
            mean_squares.mean,
            mean_squares.seed_variance,
            zeros,
            zeros,
            zeros,
            zeros + 1,
            zeros,
            mean_squares.seed_degrees_of_freedom,
            mean_squares.num_seeds,
            num_documents,
        )
    document_shares = _compute_document_shares(weights)
    deviations = mean_squares.document_deviations
    document_mean_square = (document_shares.mean_square_factors * deviations**2).sum(axis=-1)
    if extra_document_variance is not None:
        document_mean_square = document_mean_square + extra_document_variance
    influence = np.sqrt(document_shares.shares) * deviations
    spread = (influence**2).sum(axis=-1) ** 1.5
    third_moment = np.sqrt(num_documents) * (influence**3).sum(axis=-1)
    # If all documents agree, the skewness is 0 instead of 0/0.
    skewness = np.divide(third_moment, spread, out=zeros.copy(), where=spread > 0)
    return VarianceComponents(
        mean_squares.mean,
        mean_squares.seed_variance,
        document_mean_square,
        mean_squares.residual_variance,
        np.sqrt(_compute_document_degrees_of_freedom(document_shares) * (num_documents - 1)),
        1 / document_shares.sum_of_squares,
        skewness,
        mean_squares.seed_degrees_of_freedom,
        mean_squares.num_seeds,
        num_documents,
    )


def _compute_document_degrees_of_freedom(document_shares: _DocumentShares) -> PerExperiment:
    """Return the degrees of freedom of B, assuming that all documents have the same variance."""
    shares, factors, sum_of_squares = document_shares
    sums = [(factors * shares**power).sum(axis=-1) for power in range(3)]
    off_diagonal = (
        sum_of_squares**2 * sums[0] ** 2
        - 4 * sum_of_squares * sums[0] * sums[1]
        + 2 * sums[0] * sums[2]
        + 2 * sums[1] ** 2
    )
    diagonal = (factors**2 * (1 + 2 * (sum_of_squares[:, None] - 2 * shares))).sum(axis=-1)
    return np.asarray(sum_of_squares**2 / (off_diagonal + diagonal))


def compute_rare_difference_variance(differences: Float[np.ndarray, "experiments seeds examples"]) -> PerExperiment:
    """Return the variance to add for binary scores if fewer than two examples differ.

    If no example differs between two variants, every estimated variance is 0, yet new examples may differ: after E
    equal examples the share that differs may be as large as 3 / E (the rule of three, Hanley and Lippman-Hand, JAMA
    1983). Assuming that at least two examples differ, one in each direction, gives an interval of 2.8 / E.
    """
    num_examples = differences.shape[-1]
    num_differing = (differences != 0).any(axis=-2).sum(axis=-1)
    return np.asarray(np.maximum(2.0 - num_differing, 0.0) / num_examples**2)
