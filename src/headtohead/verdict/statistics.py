"""The statistics of a verdict: the error of a paired difference on new seeds and new examples.

The model. Let D[s, e] be variant minus baseline for seed s and example e, as a total over the example's tokens, and
w[e] the number of tokens. The estimate is the ratio d = sum D / (seeds x sum w), a mean over tokens. In units of the
ratio

    D[s, e] / w[e] = mu + a[s] + b[e] + r[s, e]

with seed effects a, example effects b and a residual r. The design is crossed, since every seed is scored on every
example. The target is mu, so for new seeds and new examples

    Var(d) = var(a) / S + var(b) / E + var(r) / (S E).

Three mean squares of the crossed two-way table can be measured (Searle, Casella and McCulloch 1992, ch. 4):

    A = variance of the per-seed differences d[s], over S           expectation  var(a)/S + var(r)/(S E)
    B = variance of the seed-averaged example influences, over E    expectation  var(b)/E + var(r)/(S E)
    R = variance of the rest of the table, over S E                 expectation  var(r)/(S E)

A + B counts the residual twice, so Var(d) is A + (B - R). The influence of example e on seed s is its delete-one
(jackknife) effect on the ratio, (E - 1) (D[s, e] - d[s] w[e]) / (sum w - w[e]). It is centred on d[s] of its seed:
centred on the common d, a seed effect proportional to length would look like a residual.

Four choices that the design leaves open were settled by simulation (table in docs/judging.md):
 1. B - R is set to 0 unless it exceeds its own standard error. Clipping at 0 alone adds the positive half of pure
    noise, and intervals at 3 seeds and 50 examples then cover 97 to 98 %.
 2. Degrees of freedom by Satterthwaite (Biometrics Bulletin 2, 1946). With 3 seeds that alone covers only 92.5 %,
    because a small A gives both a smaller variance and more degrees of freedom.
 3. Therefore the interval is never narrower than the t interval over seeds, which answers the easier question "on this
    test set". The coverage becomes 94.3 to 95.5 %, and is as close at 90, 99 and 99.7 %.
 4. Skewed examples: the t interval of a skewed mean is too short by a term in skewness^2 / E (Hall, Annals of
    Statistics 15, 1987), which near the usual confidences has the effect of E / skewness^2 degrees of freedom.
    The degrees of freedom of the examples are (E - 1) / (1 + skewness^2 (1 - R/B)^3).
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
MAX_DEGREES_OF_FREEDOM = 1e6
"""degrees of freedom beyond which t is indistinguishable from normal"""
MAX_STANDARD_ERRORS = 1e4
"""finite substitute for infinity"""
LEGENDRE_NODES, LEGENDRE_WEIGHTS = np.polynomial.legendre.leggauss(64)
QUADRATURE_QUANTILES, QUADRATURE_WEIGHTS = (LEGENDRE_NODES + 1) / 2, LEGENDRE_WEIGHTS / 2
"""Gauss-Legendre quadrature over probabilities from 0 to 1"""


@dataclass(frozen=True, eq=False)
class VarianceComponents:
    """The components of the variance of d, for each of many experiments of the same size.

    `seed_variance` is A, `example_variance` is B - R after choice 1, `example_mean_square` is B, `residual_variance` is
    R.
    """

    difference: PerExperiment
    seed_variance: PerExperiment
    example_variance: PerExperiment
    example_mean_square: PerExperiment
    residual_variance: PerExperiment
    skewness: PerExperiment
    num_seeds: int
    num_examples: int

    def select_experiment(self, index: int) -> VarianceComponents:
        return self.map_arrays(lambda array: array[[index]])

    def map_arrays(self, transform: Callable[[PerExperiment], PerExperiment]) -> VarianceComponents:
        """Apply a function to every array."""
        return VarianceComponents(
            transform(self.difference),
            transform(self.seed_variance),
            transform(self.example_variance),
            transform(self.example_mean_square),
            transform(self.residual_variance),
            transform(self.skewness),
            self.num_seeds,
            self.num_examples,
        )

    def extrapolate(self, num_seeds: int, num_examples: int) -> VarianceComponents:
        """Return the components to expect with other numbers of seeds and examples."""
        seed_ratio, example_ratio = self.num_seeds / num_seeds, self.num_examples / num_examples
        residual = np.minimum(self.seed_variance, self.residual_variance)
        example_variance = self.example_variance * example_ratio
        seed_examples_residual = self.example_mean_square - self.example_variance
        return replace(
            self,
            seed_variance=(self.seed_variance - residual + residual * example_ratio) * seed_ratio,
            example_variance=example_variance,
            example_mean_square=example_variance + seed_examples_residual * seed_ratio * example_ratio,
            residual_variance=self.residual_variance * seed_ratio * example_ratio,
            num_seeds=num_seeds,
            num_examples=num_examples,
        )


@dataclass(frozen=True, eq=False)
class IntervalEstimate:
    """A standard error, its degrees of freedom, and the half width of the resulting interval."""

    standard_error: PerExperiment
    degrees_of_freedom: PerExperiment
    half_width: PerExperiment


def estimate_variance_components(
    differences: Float[np.ndarray, "experiments seeds examples"],
    weights: Float[np.ndarray, "experiments examples"],
    extra_example_variance: PerExperiment | None = None,
) -> VarianceComponents:
    """Estimate the components. `extra_example_variance` is added for examples that did not happen to differ (see
    `compute_rare_difference_variance`)."""
    _, seeds, examples = differences.shape
    total = weights.sum(axis=-1)
    per_seed = differences.sum(axis=-1) / total[:, None]
    difference = per_seed.mean(axis=-1)
    seed_variance = per_seed.var(axis=-1, ddof=1) / seeds
    zeros = np.zeros_like(difference)
    if examples == 1:
        return VarianceComponents(difference, seed_variance, zeros, zeros, zeros, zeros, seeds, examples)

    influence = differences - per_seed[..., None] * weights[:, None, :]
    influence *= ((examples - 1) / (total[:, None] - weights))[:, None, :]
    shared = influence.mean(axis=-2)
    square = (shared**2).sum(axis=-1)
    influence -= shared[:, None, :]
    mean_square = square / (examples - 1) / examples
    freedom = (seeds - 1) * (examples - 1)
    residual = np.einsum("nse,nse->n", influence, influence) / freedom / (seeds * examples)
    excess = mean_square - residual
    excess_error = np.sqrt(2 * mean_square**2 / (examples - 1) + 2 * residual**2 / freedom)
    example_variance = np.where(excess > excess_error, excess, 0.0)
    if extra_example_variance is not None:
        mean_square = mean_square + extra_example_variance
        example_variance = example_variance + extra_example_variance
    # If all examples agree, the skewness is 0 instead of 0/0.
    cube = np.sqrt(examples) * (shared**3).sum(axis=-1)
    skewness = np.divide(cube, square**1.5, out=zeros.copy(), where=square**1.5 > 0)
    return VarianceComponents(
        difference, seed_variance, example_variance, mean_square, residual, skewness, seeds, examples
    )


def compute_rare_difference_variance(differences: Float[np.ndarray, "experiments seeds examples"]) -> PerExperiment:
    """Return the variance to add for binary scores of which fewer than two examples differ.

    If no example differs between two variants, every estimated variance is 0, yet new examples may differ: after E
    equal examples the share that differs may be as large as 3 / E (the rule of three, Hanley and Lippman-Hand, JAMA
    1983). Assuming that at least two examples differ, one in each direction, gives an interval of 2.8 / E.
    """
    examples = differences.shape[-1]
    differing = (differences != 0).any(axis=-2).sum(axis=-1)
    return np.asarray(np.maximum(2.0 - differing, 0.0) / examples**2)


def compute_critical_value(confidence: float, degrees_of_freedom: PerExperiment) -> PerExperiment:
    """Return the half width of a two-sided t interval in standard errors."""
    return np.asarray(special.stdtrit(np.minimum(degrees_of_freedom, MAX_DEGREES_OF_FREEDOM), (1 + confidence) / 2))


def compute_seed_interval(components: VarianceComponents, confidence: float) -> IntervalEstimate:
    """Return the t interval over the paired differences of the seeds, which holds on this test set."""
    error = np.sqrt(components.seed_variance)
    freedom = np.full_like(error, components.num_seeds - 1)
    return IntervalEstimate(error, freedom, compute_critical_value(confidence, freedom[:1]) * error)


def compute_interval(components: VarianceComponents, confidence: float) -> IntervalEstimate:
    """Return the interval for new seeds and new examples, which is never narrower than the one over seeds."""
    seed_interval = compute_seed_interval(components, confidence)
    if components.num_examples == 1:
        return seed_interval
    error, freedom = compute_satterthwaite_error(components)
    half_width = compute_critical_value(confidence, freedom) * error
    is_wider = half_width > seed_interval.half_width
    return IntervalEstimate(
        np.where(is_wider, error, seed_interval.standard_error),
        np.where(is_wider, freedom, seed_interval.degrees_of_freedom),
        np.where(is_wider, half_width, seed_interval.half_width),
    )


def compute_satterthwaite_error(components: VarianceComponents) -> tuple[PerExperiment, PerExperiment]:
    """Return the standard error of d for new seeds and examples, and its degrees of freedom (choices 2 and 4)."""
    variance = components.seed_variance + components.example_variance
    example_share = np.divide(
        components.example_variance,
        components.example_mean_square,
        out=np.zeros_like(variance),
        where=components.example_mean_square > 0,
    )
    example_freedom = (components.num_examples - 1) / (1 + components.skewness**2 * example_share**3)
    residual_freedom = (components.num_seeds - 1) * (components.num_examples - 1)
    from_examples = (
        components.example_mean_square**2 / example_freedom + components.residual_variance**2 / residual_freedom
    )
    from_seeds = components.seed_variance**2 / (components.num_seeds - 1)
    denominator = from_seeds + np.where(components.example_variance > 0, from_examples, 0.0)
    default = np.full_like(variance, components.num_seeds - 1.0)
    freedom = np.divide(variance**2, denominator, out=default, where=denominator > 0)
    return np.sqrt(variance), np.maximum(freedom, 1.0)


def compute_detection_power(components: VarianceComponents, effect: float, confidence: float) -> float:
    """Return the probability that the interval excludes 0 if the true difference is `effect`.

    `components` describes one experiment and is taken as the truth. d is normal, the seed variance follows a chi-square
    distribution with S - 1 degrees of freedom independent of d, and the example variance is taken as known. The power
    is an integral over the chi-square. Without example variance this is the noncentral t distribution.
    """
    possible, error = _expand_over_seed_variance(components)
    half_width = compute_interval(possible, confidence).half_width
    below = special.ndtr(_to_standard_errors(-half_width - effect, error))
    above = special.ndtr(_to_standard_errors(effect - half_width, error))
    return float(QUADRATURE_WEIGHTS @ (below + above))


def compute_equivalence_power(
    components: VarianceComponents, effect: float, confidence: float, equivalence_band: tuple[float, float]
) -> float:
    """Return the probability that the interval lies within the band if the true difference is `effect`."""
    possible, error = _expand_over_seed_variance(components)
    half_width = compute_interval(possible, confidence).half_width
    low, high = equivalence_band
    too_low = special.ndtr(_to_standard_errors(low + half_width - effect, error))
    not_too_high = special.ndtr(_to_standard_errors(high - half_width - effect, error))
    return float(QUADRATURE_WEIGHTS @ np.maximum(not_too_high - too_low, 0.0))


def compute_min_detectable_effect(components: VarianceComponents, confidence: float) -> float:
    """Return the smallest true difference whose interval excludes 0 with the target power."""
    unit = float(np.sqrt(components.seed_variance[0] + components.example_variance[0]))
    if unit == 0:
        return 0.0
    high = 4.0
    while compute_detection_power(components, high * unit, confidence) < TARGET_POWER:
        high *= 2
    return unit * float(
        optimize.brentq(
            lambda x: compute_detection_power(components, x * unit, confidence) - TARGET_POWER, 0.0, high, xtol=1e-6
        )
    )


def _expand_over_seed_variance(components: VarianceComponents) -> tuple[VarianceComponents, PerExperiment]:
    """Return the experiments to expect if `components` is the truth, one for each quantile of the chi-square."""
    assert components.difference.size == 1
    freedom = components.num_seeds - 1
    factor = special.chdtri(freedom, 1 - QUADRATURE_QUANTILES) / freedom
    truth = components.map_arrays(lambda array: np.full_like(factor, array[0]))
    error = np.sqrt(truth.seed_variance + truth.example_variance)
    return replace(truth, seed_variance=truth.seed_variance * factor), error


def _to_standard_errors(effect: PerExperiment, standard_error: PerExperiment) -> PerExperiment:
    """Return the effect in units of its standard error.

    If the standard error is 0, return the largest value with the sign of the effect.
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return np.asarray(
            np.nan_to_num(effect / standard_error, nan=0.0, posinf=MAX_STANDARD_ERRORS, neginf=-MAX_STANDARD_ERRORS)
        )


def compute_mean_interval(values: Sequence[float], confidence: float = 0.95) -> list[float] | None:
    """Return the t interval of a mean as [low, high]; None for fewer than two values."""
    if len(values) < 2:
        return None
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    half_width = float(special.stdtrit(len(values) - 1, (1 + confidence) / 2)) * error
    mean = float(np.mean(values))
    return [mean - half_width, mean + half_width]
