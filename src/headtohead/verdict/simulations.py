"""Simulated experiments for calibration, with an exactly known truth.

A simulation samples tables of variant minus baseline (experiments, seeds, examples) whose true difference is 0. All
statistics are equivariant to a constant added to each token, so other true differences are obtained by a shift.

`ResampledSimulation` samples from the residuals of real trainings. A measured table is decomposed into example effects
(the mean over seeds, less the overall difference) and seed effects on each example (the rest). Both sum to 0 over the
table, so if a new example is a random column and a new seed a random row, the expected total is exactly 0. Tables have
few rows, and sampling bare rows would repeat seeds. Therefore a new seed is a blend of two rows whose squared weights
sum to 1, which preserves mean, variance, tails, and the dependence between examples within a seed. The contribution of
the residual to the seed-averaged columns is removed from their spread, which would otherwise be too large.

`SyntheticSimulation` samples Gaussian, heavy-tailed (Student's t with 3 degrees of freedom) or skewed (exponential)
effects.
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
BLEND_WEIGHT = 0.5
"""weight of the second row of a blend; that of the first is sqrt(1 - BLEND_WEIGHT^2)"""


@dataclass(frozen=True, eq=False)
class SimulatedExperiments:
    """Experiments with a true difference of 0. `test_set_differences` are the true differences on their test sets."""

    differences: Float[np.ndarray, "experiments seeds examples"]
    weights: Float[np.ndarray, "experiments examples"]
    test_set_differences: Float[np.ndarray, " experiments"]


@runtime_checkable
class Simulation(Protocol):
    """A source of simulated experiments."""

    @property
    def name(self) -> str: ...

    def sample(
        self, rng: np.random.Generator, num_experiments: int, num_seeds: int, num_examples: int
    ) -> SimulatedExperiments: ...

    def compute_true_components(self, num_seeds: int, num_examples: int) -> VarianceComponents:
        """Return the true variance components, one entry for each kind of experiment that the simulation mixes."""
        ...


@dataclass(frozen=True)
class SyntheticSimulation:
    """Effects with known distributions. Each standard deviation is the contribution of one source to d."""

    name: str
    seed_std: float = 1.0
    example_std: float = 1.0
    residual_std: float = 1.0
    example_distribution: NoiseDistribution = "gaussian"
    seed_distribution: NoiseDistribution = "gaussian"
    has_variable_lengths: bool = False

    def sample(
        self, rng: np.random.Generator, num_experiments: int, num_seeds: int, num_examples: int
    ) -> SimulatedExperiments:
        seed_noise = _sample_noise(rng, self.seed_distribution, (num_experiments, num_seeds, 1))
        example_noise = _sample_noise(rng, self.example_distribution, (num_experiments, 1, num_examples))
        seed_effects = self.seed_std * np.sqrt(num_seeds) * seed_noise
        example_effects = self.example_std * np.sqrt(num_examples) * example_noise
        differences = _sample_noise(rng, self.example_distribution, (num_experiments, num_seeds, num_examples))
        differences *= self.residual_std * np.sqrt(num_seeds * num_examples)
        weights = np.ones((num_experiments, num_examples))
        if self.has_variable_lengths:  # lognormal, like sentence lengths, with a standard deviation of half the mean
            weights = np.ceil(20 * np.exp(0.5 * rng.standard_normal((num_experiments, num_examples))))
        differences += seed_effects + example_effects
        differences *= weights[:, None, :]
        return SimulatedExperiments(
            differences, weights, (example_effects[:, 0] * weights).sum(axis=-1) / weights.sum(axis=-1)
        )

    def compute_true_components(self, num_seeds: int, num_examples: int) -> VarianceComponents:
        # Unequal lengths reduce the effective number of examples, but not of seeds.
        inflation = np.exp(0.25) if self.has_variable_lengths else 1.0
        residual = np.array([self.residual_std**2 * inflation])
        example_variance = np.array([self.example_std**2 * inflation])
        seed_variance, mean_square = self.seed_std**2 + residual, example_variance + residual
        zeros = np.zeros(1)
        freedom, equivalent = np.full_like(zeros, num_examples - 1), np.full_like(zeros, num_examples)
        return VarianceComponents(
            zeros, seed_variance, mean_square, residual, freedom, equivalent, zeros, num_seeds, num_examples
        )


@dataclass(frozen=True, eq=False)
class _ResidualPool:
    """The example effects, and the seed effects on each example, of one measured table."""

    example_effects: Float[np.ndarray, " examples"]
    seed_effects: Float[np.ndarray, "seeds examples"]
    weights: Float[np.ndarray, " examples"]

    @classmethod
    def from_table(
        cls, differences: Float[np.ndarray, "seeds examples"], weights: Float[np.ndarray, " examples"]
    ) -> _ResidualPool:
        """Decompose one table of paired differences into example effects and seed effects."""
        num_seeds = len(differences)
        seed_mean = differences.mean(axis=0)
        components = estimate_variance_components(differences[None], weights[None])
        mean_square = components.document_mean_square[0]
        example_share = float(components.document_variance[0] / mean_square) if mean_square > 0 else 0.0
        return cls(
            np.sqrt(example_share) * (seed_mean - weights * (seed_mean.sum() / weights.sum())),
            (differences - seed_mean)
            * np.sqrt(num_seeds / (num_seeds - 1)),  # centring removed 1/seeds of the variance
            weights,
        )

    def sample(
        self, rng: np.random.Generator, num_experiments: int, num_seeds: int, num_examples: int
    ) -> SimulatedExperiments:
        """Sample experiments from the effects of this table."""
        column = rng.integers(len(self.weights), size=(num_experiments, num_examples))
        first_row, second_row = rng.integers(len(self.seed_effects), size=(2, num_experiments, num_seeds))
        weights, example_effects = self.weights[column], self.example_effects[column]
        table = np.sqrt(1 - BLEND_WEIGHT**2) * self._gather_seed_effects(first_row, column)
        table = table + BLEND_WEIGHT * self._gather_seed_effects(second_row, column)
        table += example_effects[:, None, :]
        return SimulatedExperiments(table, weights, example_effects.sum(axis=-1) / weights.sum(axis=-1))

    def _gather_seed_effects(
        self, row_index: Int[np.ndarray, "experiments seeds"], column_index: Int[np.ndarray, "experiments examples"]
    ) -> Float[np.ndarray, "experiments seeds examples"]:
        """Return the seed effects at the given rows and columns of the table."""
        flat_index = row_index[:, :, None] * self.seed_effects.shape[1] + column_index[:, None, :]
        return np.asarray(self.seed_effects.ravel()[flat_index])

    def compute_true_variances(self, num_seeds: int, num_examples: int) -> tuple[float, float, float]:
        """Return the variance of d from seeds including the residual, from examples, and from the residual alone."""
        mean_weight = self.weights.mean()
        seed_differences = self.seed_effects.sum(axis=1) / self.weights.sum()
        residual = self.seed_effects - seed_differences[:, None] * self.weights
        residual_variance = float((residual**2).mean() / mean_weight**2) / (num_seeds * num_examples)
        example_variance = float((self.example_effects**2).mean() / mean_weight**2) / num_examples
        return float((seed_differences**2).mean()) / num_seeds + residual_variance, example_variance, residual_variance


class ResampledSimulation:
    """Experiments sampled in equal numbers from measured tables of paired differences (seeds, examples)."""

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
                    f"{name}: a table of differences needs at least 3 seeds, 2 examples and a weight for each example, "
                    f"got shape {table.shape} and {len(weight)} weights"
                )
        self.name = name
        self._pools = [
            _ResidualPool.from_table(table, weight) for table, weight in zip(differences, weights, strict=True)
        ]

    def sample(
        self, rng: np.random.Generator, num_experiments: int, num_seeds: int, num_examples: int
    ) -> SimulatedExperiments:
        counts = [len(chunk) for chunk in np.array_split(np.arange(num_experiments), len(self._pools))]
        samples = [
            pool.sample(rng, count, num_seeds, num_examples)
            for pool, count in zip(self._pools, counts, strict=True)
            if count
        ]
        return SimulatedExperiments(
            np.concatenate([sample.differences for sample in samples]),
            np.concatenate([sample.weights for sample in samples]),
            np.concatenate([sample.test_set_differences for sample in samples]),
        )

    def compute_true_components(self, num_seeds: int, num_examples: int) -> VarianceComponents:
        variances = np.array([pool.compute_true_variances(num_seeds, num_examples) for pool in self._pools])
        seed_variance, example_variance, residual = variances.T
        zeros, mean_square = np.zeros_like(seed_variance), example_variance + residual
        freedom, equivalent = np.full_like(zeros, num_examples - 1), np.full_like(zeros, num_examples)
        return VarianceComponents(
            zeros, seed_variance, mean_square, residual, freedom, equivalent, zeros, num_seeds, num_examples
        )


def _sample_noise(
    rng: np.random.Generator, distribution: NoiseDistribution, size: tuple[int, ...]
) -> Float[np.ndarray, "..."]:
    """Return noise with mean 0 and variance 1."""
    if distribution == "heavy":
        return np.asarray(rng.standard_t(3, size) / np.sqrt(3))
    if distribution == "skewed":
        return np.asarray(rng.standard_exponential(size) - 1)
    return rng.standard_normal(size)
