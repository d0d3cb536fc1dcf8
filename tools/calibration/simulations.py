"""Simulated experiments with a known truth: tables of variant minus baseline (experiments, seeds, documents).

The true difference for new seeds and new documents is 0. The statistics are equivariant to a constant added to every
token, so other true differences are obtained by a shift.

`SyntheticDocuments` draws effects of seeds, documents, their interaction, and examples nested in documents from known
distributions. `MeasuredDocuments` redraws whole documents and seeds, with replacement, from a table that was measured
in real trainings and centered on its own mean: the measured seeds and documents are the population, so the truth is
exactly 0. Two seeds of a real experiment are never equal. Among 3 seeds redrawn from 320, two are equal in 0.9 % of
experiments.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import numpy as np

from .addresses import read_addresses
from .comparison_training import FIRST_YEAR

Distribution = Literal["gaussian", "heavy", "skewed"]
Lengths = Literal["equal", "unequal"]
LENGTHS: tuple[Lengths, ...] = ("equal", "unequal")
LENGTH_SPREAD = 0.7
"""standard deviation of the logarithm of unequal lengths; that of the addresses is 0.68"""


@dataclass(frozen=True, eq=False)
class SimulatedExperiments:
    """Totals of the difference (experiments, seeds, documents) and lengths (experiments, documents)."""

    differences: np.ndarray
    weights: np.ndarray


class Simulation(Protocol):
    """A source of simulated experiments."""

    @property
    def name(self) -> str: ...

    def sample(
        self, rng: np.random.Generator, experiments: int, seeds: int, documents: int, lengths: Lengths
    ) -> SimulatedExperiments: ...


@dataclass(frozen=True)
class SyntheticDocuments:
    """Effects with known distributions. The difference per token of seed s and document j is a[s] + b[j] + r[s, j] +
    q[s, j]. The last term is the mean over the examples of a document; its variance, half of it common to all seeds, is
    inversely proportional to the length of the document.
    """

    name: str
    seed_std: float = 1.0
    document_std: float = 1.0
    residual_std: float = 0.0
    example_std: float = 0.0
    document_distribution: Distribution = "gaussian"
    seed_distribution: Distribution = "gaussian"

    def sample(
        self, rng: np.random.Generator, experiments: int, seeds: int, documents: int, lengths: Lengths
    ) -> SimulatedExperiments:
        weights = np.ones((experiments, documents))
        if lengths == "unequal":
            weights = np.exp(LENGTH_SPREAD * rng.standard_normal((experiments, documents)))
        difference_per_token = self.seed_std * _draw_noise(rng, self.seed_distribution, (experiments, seeds, 1))
        difference_per_token = difference_per_token + self.document_std * _draw_noise(
            rng, self.document_distribution, (experiments, 1, documents)
        )
        shape = (experiments, seeds, documents)
        if self.residual_std:
            difference_per_token = difference_per_token + self.residual_std * _draw_noise(
                rng, self.document_distribution, shape
            )
        if self.example_std:
            relative_lengths = weights / weights.mean(axis=-1, keepdims=True)
            example_noise = rng.standard_normal((experiments, 1, documents)) + rng.standard_normal(shape)
            difference_per_token = difference_per_token + self.example_std * example_noise / np.sqrt(
                2 * relative_lengths[:, None, :]
            )
        return SimulatedExperiments(difference_per_token * weights[:, None, :], weights)


def _draw_noise(rng: np.random.Generator, distribution: Distribution, shape: tuple[int, ...]) -> np.ndarray:
    """Return noise with a distribution, mean 0 and variance 1."""
    if distribution == "gaussian":
        return rng.standard_normal(shape)
    if distribution == "skewed":
        return rng.exponential(size=shape) - 1
    return rng.standard_t(3, size=shape) / np.sqrt(3)


@dataclass(frozen=True, eq=False)
class MeasuredDocuments:
    """Seeds and documents of a real comparison, resampled with replacement."""

    name: str
    totals: np.ndarray
    """difference of the summed loss, (seeds, documents)"""
    tokens: np.ndarray
    """tokens of each document"""

    def sample(
        self, rng: np.random.Generator, experiments: int, seeds: int, documents: int, lengths: Lengths
    ) -> SimulatedExperiments:
        seed_indices = rng.integers(len(self.totals), size=(experiments, seeds, 1))
        document_indices = rng.integers(len(self.tokens), size=(experiments, documents))
        totals, tokens = self.totals, self.tokens
        if lengths == "equal":
            totals, tokens = totals / tokens, np.ones_like(tokens)
        centered_totals = totals - totals.sum() / (len(totals) * tokens.sum()) * tokens
        return SimulatedExperiments(
            centered_totals[seed_indices, document_indices[:, None, :]], tokens[document_indices]
        )


def load_comparisons(cache: Path) -> list[MeasuredDocuments]:
    """Return the measured comparisons: each variant against the base model, on recent and on all test addresses."""
    totals_by_variant: dict[str, list[np.ndarray]] = {}
    for path in sorted((cache / "comparisons").glob("*-*.npz")):
        with np.load(path) as file:
            documents, weights = file["documents"], file["weights"].astype(float)
            document_indices, document_positions = np.unique(documents, return_inverse=True)
            totals = np.stack([np.bincount(document_positions, losses) for losses in file["scores"].astype(float)])
            totals_by_variant.setdefault(path.stem.split("-")[0], []).append(totals)
    tokens = np.bincount(document_positions, weights)
    years = np.array([read_addresses()[index].year for index in document_indices])
    comparisons = []
    baseline = np.concatenate(totals_by_variant.pop("baseline"))
    for variant, seed_chunks in totals_by_variant.items():
        scores = np.concatenate(seed_chunks)
        difference = scores - baseline[: len(scores)]
        for period, is_selected in ((f"since {FIRST_YEAR}", years >= FIRST_YEAR), ("1790 to today", years > 0)):
            name = f"{variant}, {is_selected.sum()} addresses {period}"
            comparisons.append(MeasuredDocuments(name, difference[:, is_selected], tokens[is_selected]))
    return comparisons
