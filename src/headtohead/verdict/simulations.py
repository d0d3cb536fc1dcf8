"""Worlds for calibration: where paired differences are drawn from, with a truth that is known exactly.

A world draws tables of variant minus baseline (experiments x seeds x examples) whose true difference is 0. Every
statistic of this room moves along with a constant added to each token, so that any other truth is had by a shift.

`Measured` draws from the residuals of real trainings. A measured table is taken apart into what each example adds
(the mean over seeds, less the overall difference) and what each seed adds to each example (the rest). Both sum to 0
over the table by construction, so if a new example is any column and a new seed any row, each as likely as the next,
the expected total is 0 for every expected token: the truth is 0, with no approximation. Tables have few rows, and a
draw of bare rows would repeat seeds, so a drawn seed is a blend of two rows with squares of their weights adding to 1:
that keeps mean and variance, the dependence between examples within a seed, and the tails. What a seed-averaged
column owes to the residual is taken off its spread, as otherwise examples would count too much.

`Synthetic` draws Gaussian, heavy-tailed (Student's t with 3 degrees of freedom) or skewed (exponential) effects.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Int

from headtohead.errors import ScoresError
from headtohead.verdict.statistics import VarianceComponents, estimate_variance_components

NoiseDistribution = Literal["gaussian", "heavy", "skewed"]
BLEND_WEIGHT = 0.5  # the weight of the second row; that of the first is sqrt(1 - BLEND^2)


@dataclass(frozen=True, eq=False)
class SimulatedExperiments:
    """Many experiments with the true difference 0; `here` is the truth on each experiment's own test set."""

    differences: Float[np.ndarray, "experiments seeds examples"]
    weights: Float[np.ndarray, "experiments examples"]
    test_set_differences: Float[np.ndarray, " experiments"]


@runtime_checkable
class Simulation(Protocol):
    """Where experiments come from."""

    @property
    def name(self) -> str: ...

    def draw(
        self, rng: np.random.Generator, num_experiments: int, num_seeds: int, num_examples: int
    ) -> SimulatedExperiments: ...

    def truth(self, num_seeds: int, num_examples: int) -> VarianceComponents:
        """The true parts of the variance, one entry for each kind of experiment that the world mixes."""
        ...


@dataclass(frozen=True)
class SyntheticSimulation:
    """Effects of a known shape. The three sizes are standard deviations that each source gives to the final d."""

    name: str
    of_seeds: float = 1.0
    of_examples: float = 1.0
    residual_std: float = 1.0
    shape: NoiseDistribution = "gaussian"
    seed_distribution: NoiseDistribution = "gaussian"
    lengths: bool = False

    def draw(
        self, rng: np.random.Generator, num_experiments: int, num_seeds: int, num_examples: int
    ) -> SimulatedExperiments:
        a = (
            self.of_seeds
            * np.sqrt(num_seeds)
            * _sample_noise(rng, self.seed_distribution, (num_experiments, num_seeds, 1))
        )
        b = (
            self.of_examples
            * np.sqrt(num_examples)
            * _sample_noise(rng, self.shape, (num_experiments, 1, num_examples))
        )
        r = _sample_noise(rng, self.shape, (num_experiments, num_seeds, num_examples))
        r *= self.residual_std * np.sqrt(num_seeds * num_examples)
        weights = np.ones((num_experiments, num_examples))
        if self.lengths:  # lognormal, as lengths of sentences roughly are; half as much spread as mean
            weights = np.ceil(20 * np.exp(0.5 * rng.standard_normal((num_experiments, num_examples))))
        r += a + b
        r *= weights[:, None, :]
        return SimulatedExperiments(r, weights, (b[:, 0] * weights).sum(axis=-1) / weights.sum(axis=-1))

    def truth(self, num_seeds: int, num_examples: int) -> VarianceComponents:
        # Unequal lengths make fewer examples of the same number; seeds are not touched by it.
        loss = np.exp(0.25) if self.lengths else 1.0
        residual = np.array([self.residual_std**2 * loss])
        of_examples = np.array([self.of_examples**2 * loss])
        seed = self.of_seeds**2 + residual
        both = of_examples + residual
        return VarianceComponents(np.zeros(1), seed, of_examples, both, residual, np.zeros(1), num_seeds, num_examples)


@dataclass(frozen=True, eq=False)
class _ResidualPool:
    """One measured table, taken apart: what examples add, and what seeds add to each."""

    of_examples: Float[np.ndarray, " examples"]
    of_seeds: Float[np.ndarray, "seeds examples"]
    weights: Float[np.ndarray, " examples"]

    @classmethod
    def of(
        cls, differences: Float[np.ndarray, "seeds examples"], weights: Float[np.ndarray, " examples"]
    ) -> _ResidualPool:
        seeds = len(differences)
        mean = differences.mean(axis=0)
        parts = estimate_variance_components(differences[None], weights[None])
        own = float(parts.of_examples[0] / parts.example_mean_square[0]) if parts.example_mean_square[0] > 0 else 0.0
        return cls(
            np.sqrt(own) * (mean - weights * (mean.sum() / weights.sum())),
            (differences - mean) * np.sqrt(seeds / (seeds - 1)),  # centring took 1/seeds of the variance
            weights,
        )

    def draw(
        self, rng: np.random.Generator, num_experiments: int, num_seeds: int, num_examples: int
    ) -> SimulatedExperiments:
        column = rng.integers(len(self.weights), size=(num_experiments, num_examples))
        first, second = rng.integers(len(self.of_seeds), size=(2, num_experiments, num_seeds))
        weights, shared = self.weights[column], self.of_examples[column]
        table = np.sqrt(1 - BLEND_WEIGHT**2) * self._rows(first, column) + BLEND_WEIGHT * self._rows(second, column)
        table += shared[:, None, :]
        return SimulatedExperiments(table, weights, shared.sum(axis=-1) / weights.sum(axis=-1))

    def _rows(
        self, row_index: Int[np.ndarray, "experiments seeds"], column_index: Int[np.ndarray, "experiments examples"]
    ) -> Float[np.ndarray, "experiments seeds examples"]:
        flat = row_index[:, :, None] * self.of_seeds.shape[1] + column_index[:, None, :]
        return np.asarray(self.of_seeds.ravel()[flat])

    def truth(self, num_seeds: int, num_examples: int) -> tuple[float, float, float]:
        """What seeds (with the residual), examples and the residual alone give to the variance of d."""
        mean = self.weights.mean()
        per_seed = self.of_seeds.sum(axis=1) / self.weights.sum()
        residual = self.of_seeds - per_seed[:, None] * self.weights
        of_residual = float((residual**2).mean() / mean**2) / (num_seeds * num_examples)
        of_examples = float((self.of_examples**2).mean() / mean**2) / num_examples
        return float((per_seed**2).mean()) / num_seeds + of_residual, of_examples, of_residual


class ResampledSimulation:
    """Experiments drawn from measured tables of paired differences (seeds x examples), an equal share from each."""

    def __init__(
        self,
        name: str,
        differences: Sequence[Float[np.ndarray, "_ _"]],
        weights: Sequence[Float[np.ndarray, " _"]],
    ) -> None:
        if not differences or len(differences) != len(weights):
            raise ScoresError(f"{name}: {len(differences)} tables of differences and {len(weights)} of weights")
        for table, weight in zip(differences, weights, strict=True):
            if table.ndim != 2 or len(table) < 3 or table.shape[1] < 2 or table.shape[1:] != weight.shape:
                raise ScoresError(
                    f"{name}: a table of differences needs 3 seeds and 2 examples or more and a weight for each "
                    f"example, but has the shape {table.shape} and {len(weight)} weights"
                )
        self.name = name
        self._pools = [_ResidualPool.of(table, weight) for table, weight in zip(differences, weights, strict=True)]

    def draw(
        self, rng: np.random.Generator, num_experiments: int, num_seeds: int, num_examples: int
    ) -> SimulatedExperiments:
        shares = [len(part) for part in np.array_split(np.arange(num_experiments), len(self._pools))]
        draws = [
            pool.draw(rng, share, num_seeds, num_examples)
            for pool, share in zip(self._pools, shares, strict=True)
            if share
        ]
        return SimulatedExperiments(
            np.concatenate([draw.differences for draw in draws]),
            np.concatenate([draw.weights for draw in draws]),
            np.concatenate([draw.test_set_differences for draw in draws]),
        )

    def truth(self, num_seeds: int, num_examples: int) -> VarianceComponents:
        seed, shared, residual = np.array([pool.truth(num_seeds, num_examples) for pool in self._pools]).T
        nothing = np.zeros_like(seed)
        return VarianceComponents(nothing, seed, shared, shared + residual, residual, nothing, num_seeds, num_examples)


def _sample_noise(
    rng: np.random.Generator, distribution: NoiseDistribution, size: tuple[int, ...]
) -> Float[np.ndarray, "..."]:
    """Mean 0, variance 1."""
    if distribution == "heavy":
        return np.asarray(rng.standard_t(3, size) / np.sqrt(3))
    if distribution == "skewed":
        return np.asarray(rng.standard_exponential(size) - 1)
    return rng.standard_normal(size)
