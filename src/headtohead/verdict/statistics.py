"""The arithmetic of a verdict: how far off a paired difference may be, on new seeds and new examples.

The model. Let D[s, e] be variant minus baseline for seed s and example e, as a total over the example's tokens, and
w[e] the tokens. What is estimated is the ratio d = sum D / (seeds x sum w), a mean over tokens. In units of the ratio

    D[s, e] / w[e] = mu + a[s] + b[e] + r[s, e]

with seed effects a, example effects b and a residual r, crossed, as every seed is scored on every example. The target
is mu, so for new seeds and new examples

    Var(d) = var(a) / S + var(b) / E + var(r) / (S E).

What can be measured (the mean squares of a crossed two-way table, Searle, Casella and McCulloch 1992, ch. 4):

    A = variance of the seeds' own differences d[s], over S         expects  var(a)/S + var(r)/(S E)
    B = variance of the seed-averaged example influences, over E    expects  var(b)/E + var(r)/(S E)
    R = variance of what is left of the table, over S E             expects  var(r)/(S E)

A + B counts the residual twice, so Var(d) is A + (B - R). The influence of example e on seed s is its delete-one
(jackknife) effect on the ratio, (E - 1) (D[s, e] - d[s] w[e]) / (sum w - w[e]). It is taken about the seed's own d[s]:
about the common d, a seed effect in proportion to length would look like a residual.

Where the design leaves freedom, four choices, each settled by simulation (docs/judging.md has the table):
 1. B - R is taken as 0 unless it exceeds its own standard error. Cutting at 0 alone adds the positive half of pure
    noise, and intervals at 3 seeds and 50 examples then cover 97 to 98 %.
 2. Degrees of freedom by Satterthwaite (Biometrics Bulletin 2, 1946). With 3 seeds that alone covers only 92.5 %,
    because a small A is both the smaller variance and the greater number of degrees of freedom.
 3. Hence the interval is never narrower than the seeds' own t interval, which holds for the easier question "on this
    test set". That brings the cover to 94.3 to 95.5 %, and is as near at 90, 99 and 99.7 %.
 4. Skewed examples: the t interval of a skewed mean is too short by a term in skewness^2 / E (Hall, Annals of
    Statistics 15, 1987), which near the usual confidences is what E / skewness^2 degrees of freedom would give.
    The examples' degrees of freedom are (E - 1) / (1 + skewness^2 (1 - R/B)^3).
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
MAX_DEGREES_OF_FREEDOM = 1e6  # degrees of freedom beyond which t is normal for every purpose here
MAX_STANDARD_ERRORS = 1e4  # standard errors, as good as infinitely many
LEGENDRE_NODES, LEGENDRE_WEIGHTS = np.polynomial.legendre.leggauss(64)
QUADRATURE_QUANTILES, QUADRATURE_WEIGHTS = (
    (LEGENDRE_NODES + 1) / 2,
    LEGENDRE_WEIGHTS / 2,
)  # a quadrature over chances from 0 to 1


@dataclass(frozen=True, eq=False)
class VarianceComponents:
    """The parts of the variance of d, for each of many experiments of the same size.

    `of_seeds` is A, `of_examples` is B - R after choice 1, `of_both` is B, `residual` is R; see the top of the file.
    """

    difference: PerExperiment
    of_seeds: PerExperiment
    of_examples: PerExperiment
    example_mean_square: PerExperiment
    residual_variance: PerExperiment
    skewness: PerExperiment
    seeds: int
    examples: int

    def select_experiment(self, index: int) -> VarianceComponents:
        """One of the experiments."""
        return self.map_arrays(lambda array: array[[index]])

    def map_arrays(self, transform: Callable[[PerExperiment], PerExperiment]) -> VarianceComponents:
        """The same sizes, with every array changed alike."""
        return VarianceComponents(
            transform(self.difference),
            transform(self.of_seeds),
            transform(self.of_examples),
            transform(self.example_mean_square),
            transform(self.residual_variance),
            transform(self.skewness),
            self.seeds,
            self.examples,
        )

    def extrapolate(self, num_seeds: int, num_examples: int) -> VarianceComponents:
        """What the same noise would give with other numbers of seeds and examples."""
        fewer, shorter = self.seeds / num_seeds, self.examples / num_examples
        left = np.minimum(self.of_seeds, self.residual_variance)
        of_examples = self.of_examples * shorter
        return replace(
            self,
            of_seeds=(self.of_seeds - left + left * shorter) * fewer,
            of_examples=of_examples,
            example_mean_square=of_examples + (self.example_mean_square - self.of_examples) * fewer * shorter,
            residual_variance=self.residual_variance * fewer * shorter,
            seeds=num_seeds,
            examples=num_examples,
        )


@dataclass(frozen=True, eq=False)
class IntervalEstimate:
    """A standard error, its degrees of freedom, and the half width of the interval they give."""

    error: PerExperiment
    degrees_of_freedom: PerExperiment
    half: PerExperiment


def estimate_variance_components(
    differences: Float[np.ndarray, "experiments seeds examples"],
    weights: Float[np.ndarray, "experiments examples"],
    extra_example_variance: PerExperiment | None = None,
) -> VarianceComponents:
    """Measure the parts. `unseen` is a variance to add for examples that did not happen to differ (see `rare`)."""
    _, seeds, examples = differences.shape
    total = weights.sum(axis=-1)
    per_seed = differences.sum(axis=-1) / total[:, None]
    difference = per_seed.mean(axis=-1)
    of_seeds = per_seed.var(axis=-1, ddof=1) / seeds
    nothing = np.zeros_like(difference)
    if examples == 1:
        return VarianceComponents(difference, of_seeds, nothing, nothing, nothing, nothing, seeds, examples)

    influence = differences - per_seed[..., None] * weights[:, None, :]
    influence *= ((examples - 1) / (total[:, None] - weights))[:, None, :]
    shared = influence.mean(axis=-2)
    square = (shared**2).sum(axis=-1)
    influence -= shared[:, None, :]
    both = square / (examples - 1) / examples
    freedom = (seeds - 1) * (examples - 1)
    residual = np.einsum("nse,nse->n", influence, influence) / freedom / (seeds * examples)
    excess = both - residual
    noise = np.sqrt(2 * both**2 / (examples - 1) + 2 * residual**2 / freedom)
    of_examples = np.where(excess > noise, excess, 0.0)
    if extra_example_variance is not None:
        both, of_examples = both + extra_example_variance, of_examples + extra_example_variance
    # Where all examples agree there is no skewness, and 0/0 is kept out.
    cube = np.sqrt(examples) * (shared**3).sum(axis=-1)
    skewness = np.divide(cube, square**1.5, out=nothing.copy(), where=square**1.5 > 0)
    return VarianceComponents(difference, of_seeds, of_examples, both, residual, skewness, seeds, examples)


def compute_rare_difference_variance(differences: Float[np.ndarray, "experiments seeds examples"]) -> PerExperiment:
    """For right and wrong answers: a variance for the rows that could have differed and did not.

    When no row differs between two variants every variance above is 0, yet new rows may well differ: after E equal
    rows the share that differs may be as large as 3 / E (the rule of three, Hanley and Lippman-Hand, JAMA 1983).
    Counting as if at least two rows had differed, one each way, gives an interval of 2.8 / E.
    """
    examples = differences.shape[-1]
    differing = (differences != 0).any(axis=-2).sum(axis=-1)
    return np.asarray(np.maximum(2.0 - differing, 0.0) / examples**2)


def compute_critical_value(confidence: float, degrees_of_freedom: PerExperiment) -> PerExperiment:
    """How many standard errors a two-sided interval of this level reaches."""
    return np.asarray(special.stdtrit(np.minimum(degrees_of_freedom, MAX_DEGREES_OF_FREEDOM), (1 + confidence) / 2))


def compute_seed_interval(components: VarianceComponents, confidence: float) -> IntervalEstimate:
    """For "on this test set": the t interval of the paired differences, one for each seed."""
    error = np.sqrt(components.of_seeds)
    freedom = np.full_like(error, components.seeds - 1)
    return IntervalEstimate(
        error, freedom, compute_critical_value(confidence, freedom[:1]) * error
    )  # the same for all: worked out once


def compute_interval(components: VarianceComponents, confidence: float) -> IntervalEstimate:
    """For "on new text of this kind": the variances of seeds and examples added, never narrower than the seeds'."""
    alone = compute_seed_interval(components, confidence)
    if components.examples == 1:
        return alone
    error, freedom = compute_satterthwaite_error(components)
    half = compute_critical_value(confidence, freedom) * error
    wider = half > alone.half
    return IntervalEstimate(
        np.where(wider, error, alone.error),
        np.where(wider, freedom, alone.degrees_of_freedom),
        np.where(wider, half, alone.half),
    )


def compute_satterthwaite_error(components: VarianceComponents) -> tuple[PerExperiment, PerExperiment]:
    """The standard error of d for new seeds and examples, and its degrees of freedom (choices 2 and 4)."""
    variance = components.of_seeds + components.of_examples
    own = np.divide(
        components.of_examples,
        components.example_mean_square,
        out=np.zeros_like(variance),
        where=components.example_mean_square > 0,
    )
    freedom_of_examples = (components.examples - 1) / (1 + components.skewness**2 * own**3)
    freedom_of_residual = (components.seeds - 1) * (components.examples - 1)
    from_examples = (
        components.example_mean_square**2 / freedom_of_examples + components.residual_variance**2 / freedom_of_residual
    )
    wobble = components.of_seeds**2 / (components.seeds - 1) + np.where(components.of_examples > 0, from_examples, 0.0)
    freedom = np.divide(variance**2, wobble, out=np.full_like(variance, components.seeds - 1.0), where=wobble > 0)
    return np.sqrt(variance), np.maximum(freedom, 1.0)


def compute_detection_power(components: VarianceComponents, effect: float, confidence: float) -> float:
    """How often the interval of such an experiment excludes 0 when the true difference is `effect`.

    `parts` is one experiment and is taken for the truth. d is normal, the seeds' variance a chi-square with S - 1
    degrees of freedom and independent of d, the examples' variance as good as known: the chance is an integral over
    the chi-square. Where examples add nothing this is the noncentral t distribution.
    """
    possible, error = _expand_over_seed_variance(components)
    half = compute_interval(possible, confidence).half
    chance = special.ndtr(_to_standard_errors(-half - effect, error)) + special.ndtr(
        _to_standard_errors(effect - half, error)
    )
    return float(QUADRATURE_WEIGHTS @ chance)


def compute_equivalence_power(
    components: VarianceComponents, effect: float, confidence: float, equivalence_band: tuple[float, float]
) -> float:
    """How often the interval lies inside the band when the true difference is `effect`."""
    possible, error = _expand_over_seed_variance(components)
    half = compute_interval(possible, confidence).half
    low, high = equivalence_band
    above = special.ndtr(_to_standard_errors(low + half - effect, error))
    below = special.ndtr(_to_standard_errors(high - half - effect, error))
    return float(QUADRATURE_WEIGHTS @ np.maximum(below - above, 0.0))


def compute_min_detectable_effect(components: VarianceComponents, confidence: float) -> float:
    """The smallest true difference that an interval of this level tells from 0 four times in five."""
    unit = float(np.sqrt(components.of_seeds[0] + components.of_examples[0]))
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
    """The experiments that could come out where `parts` is the truth, one for each quantile of the chi-square."""
    assert components.difference.size == 1
    freedom = components.seeds - 1
    luck = special.chdtri(freedom, 1 - QUADRATURE_QUANTILES) / freedom
    truth = components.map_arrays(lambda array: np.full_like(luck, array[0]))
    return replace(truth, of_seeds=truth.of_seeds * luck), np.sqrt(truth.of_seeds + truth.of_examples)


def _to_standard_errors(effect: PerExperiment, standard_error: PerExperiment) -> PerExperiment:
    """In standard errors; with no error at all the sign alone counts."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return np.asarray(
            np.nan_to_num(effect / standard_error, nan=0.0, posinf=MAX_STANDARD_ERRORS, neginf=-MAX_STANDARD_ERRORS)
        )


def compute_mean_interval(values: Sequence[float], confidence: float = 0.95) -> list[float] | None:
    """The t interval of a mean; none from fewer than two values."""
    if len(values) < 2:
        return None
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    reach = float(special.stdtrit(len(values) - 1, (1 + confidence) / 2)) * error
    mean = float(np.mean(values))
    return [mean - reach, mean + reach]
