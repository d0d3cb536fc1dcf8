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

Each = Float[np.ndarray, " experiments"]

POWER = 0.8
MANY = 1e6  # degrees of freedom beyond which t is normal for every purpose here
FAR = 1e4  # standard errors, as good as infinitely many
NODES, HEIGHTS = np.polynomial.legendre.leggauss(64)
QUANTILES, WEIGHTS = (NODES + 1) / 2, HEIGHTS / 2  # a quadrature over chances from 0 to 1


@dataclass(frozen=True, eq=False)
class Components:
    """The parts of the variance of d, for each of many experiments of the same size.

    `of_seeds` is A, `of_examples` is B - R after choice 1, `of_both` is B, `residual` is R; see the top of the file.
    """

    difference: Each
    of_seeds: Each
    of_examples: Each
    of_both: Each
    residual: Each
    skewness: Each
    seeds: int
    examples: int

    def only(self, experiment: int) -> Components:
        """One of the experiments."""
        return self.mapped(lambda array: array[[experiment]])

    def mapped(self, change: Callable[[Each], Each]) -> Components:
        """The same sizes, with every array changed alike."""
        return Components(
            change(self.difference),
            change(self.of_seeds),
            change(self.of_examples),
            change(self.of_both),
            change(self.residual),
            change(self.skewness),
            self.seeds,
            self.examples,
        )

    def resized(self, seeds: int, examples: int) -> Components:
        """What the same noise would give with other numbers of seeds and examples."""
        fewer, shorter = self.seeds / seeds, self.examples / examples
        left = np.minimum(self.of_seeds, self.residual)
        of_examples = self.of_examples * shorter
        return replace(
            self,
            of_seeds=(self.of_seeds - left + left * shorter) * fewer,
            of_examples=of_examples,
            of_both=of_examples + (self.of_both - self.of_examples) * fewer * shorter,
            residual=self.residual * fewer * shorter,
            seeds=seeds,
            examples=examples,
        )


@dataclass(frozen=True, eq=False)
class Spread:
    """A standard error, its degrees of freedom, and the half width of the interval they give."""

    error: Each
    freedom: Each
    half: Each


def components(
    differences: Float[np.ndarray, "experiments seeds examples"],
    weights: Float[np.ndarray, "experiments examples"],
    unseen: Each | None = None,
) -> Components:
    """Measure the parts. `unseen` is a variance to add for examples that did not happen to differ (see `rare`)."""
    _, seeds, examples = differences.shape
    total = weights.sum(axis=-1)
    per_seed = differences.sum(axis=-1) / total[:, None]
    difference = per_seed.mean(axis=-1)
    of_seeds = per_seed.var(axis=-1, ddof=1) / seeds
    nothing = np.zeros_like(difference)
    if examples == 1:
        return Components(difference, of_seeds, nothing, nothing, nothing, nothing, seeds, examples)

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
    if unseen is not None:
        both, of_examples = both + unseen, of_examples + unseen
    # Where all examples agree there is no skewness, and 0/0 is kept out.
    cube = np.sqrt(examples) * (shared**3).sum(axis=-1)
    skewness = np.divide(cube, square**1.5, out=nothing.copy(), where=square**1.5 > 0)
    return Components(difference, of_seeds, of_examples, both, residual, skewness, seeds, examples)


def rare(differences: Float[np.ndarray, "experiments seeds examples"]) -> Each:
    """For right and wrong answers: a variance for the rows that could have differed and did not.

    When no row differs between two variants every variance above is 0, yet new rows may well differ: after E equal
    rows the share that differs may be as large as 3 / E (the rule of three, Hanley and Lippman-Hand, JAMA 1983).
    Counting as if at least two rows had differed, one each way, gives an interval of 2.8 / E.
    """
    examples = differences.shape[-1]
    differing = (differences != 0).any(axis=-2).sum(axis=-1)
    return np.asarray(np.maximum(2.0 - differing, 0.0) / examples**2)


def critical(level: float, freedom: Each) -> Each:
    """How many standard errors a two-sided interval of this level reaches."""
    return np.asarray(special.stdtrit(np.minimum(freedom, MANY), (1 + level) / 2))


def spread_of_seeds(parts: Components, level: float) -> Spread:
    """For "on this test set": the t interval of the paired differences, one for each seed."""
    error = np.sqrt(parts.of_seeds)
    freedom = np.full_like(error, parts.seeds - 1)
    return Spread(error, freedom, critical(level, freedom[:1]) * error)  # the same for all: worked out once


def spread(parts: Components, level: float) -> Spread:
    """For "on new text of this kind": the variances of seeds and examples added, never narrower than the seeds'."""
    alone = spread_of_seeds(parts, level)
    if parts.examples == 1:
        return alone
    error, freedom = satterthwaite(parts)
    half = critical(level, freedom) * error
    wider = half > alone.half
    return Spread(
        np.where(wider, error, alone.error),
        np.where(wider, freedom, alone.freedom),
        np.where(wider, half, alone.half),
    )


def satterthwaite(parts: Components) -> tuple[Each, Each]:
    """The standard error of d for new seeds and examples, and its degrees of freedom (choices 2 and 4)."""
    variance = parts.of_seeds + parts.of_examples
    own = np.divide(parts.of_examples, parts.of_both, out=np.zeros_like(variance), where=parts.of_both > 0)
    freedom_of_examples = (parts.examples - 1) / (1 + parts.skewness**2 * own**3)
    freedom_of_residual = (parts.seeds - 1) * (parts.examples - 1)
    from_examples = parts.of_both**2 / freedom_of_examples + parts.residual**2 / freedom_of_residual
    wobble = parts.of_seeds**2 / (parts.seeds - 1) + np.where(parts.of_examples > 0, from_examples, 0.0)
    freedom = np.divide(variance**2, wobble, out=np.full_like(variance, parts.seeds - 1.0), where=wobble > 0)
    return np.sqrt(variance), np.maximum(freedom, 1.0)


def power_to_differ(parts: Components, effect: float, level: float) -> float:
    """How often the interval of such an experiment excludes 0 when the true difference is `effect`.

    `parts` is one experiment and is taken for the truth. d is normal, the seeds' variance a chi-square with S - 1
    degrees of freedom and independent of d, the examples' variance as good as known: the chance is an integral over
    the chi-square. Where examples add nothing this is the noncentral t distribution.
    """
    possible, error = _possible(parts)
    half = spread(possible, level).half
    chance = special.ndtr(_in_errors(-half - effect, error)) + special.ndtr(_in_errors(effect - half, error))
    return float(WEIGHTS @ chance)


def power_to_agree(parts: Components, effect: float, level: float, band: tuple[float, float]) -> float:
    """How often the interval lies inside the band when the true difference is `effect`."""
    possible, error = _possible(parts)
    half = spread(possible, level).half
    low, high = band
    above = special.ndtr(_in_errors(low + half - effect, error))
    below = special.ndtr(_in_errors(high - half - effect, error))
    return float(WEIGHTS @ np.maximum(below - above, 0.0))


def detectable(parts: Components, level: float) -> float:
    """The smallest true difference that an interval of this level tells from 0 four times in five."""
    unit = float(np.sqrt(parts.of_seeds[0] + parts.of_examples[0]))
    if unit == 0:
        return 0.0
    high = 4.0
    while power_to_differ(parts, high * unit, level) < POWER:
        high *= 2
    return unit * float(
        optimize.brentq(lambda x: power_to_differ(parts, x * unit, level) - POWER, 0.0, high, xtol=1e-6)
    )


def _possible(parts: Components) -> tuple[Components, Each]:
    """The experiments that could come out where `parts` is the truth, one for each quantile of the chi-square."""
    assert parts.difference.size == 1
    freedom = parts.seeds - 1
    luck = special.chdtri(freedom, 1 - QUANTILES) / freedom
    truth = parts.mapped(lambda array: np.full_like(luck, array[0]))
    return replace(truth, of_seeds=truth.of_seeds * luck), np.sqrt(truth.of_seeds + truth.of_examples)


def _in_errors(effect: Each, error: Each) -> Each:
    """In standard errors; with no error at all the sign alone counts."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return np.asarray(np.nan_to_num(effect / error, nan=0.0, posinf=FAR, neginf=-FAR))


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> list[float] | None:
    """The t interval of a mean; none from fewer than two values."""
    if len(values) < 2:
        return None
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    reach = float(special.stdtrit(len(values) - 1, (1 + confidence) / 2)) * error
    mean = float(np.mean(values))
    return [mean - reach, mean + reach]
