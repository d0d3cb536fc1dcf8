"""Simulated experiments with a known truth: tables of variant minus baseline (experiments, seeds, documents).

The true difference for new seeds and new documents is 0. The statistics are equivariant to a constant added to every
token, so other true differences are obtained by a shift.

`SyntheticDocuments` draws effects of seeds, documents, their interaction, and examples nested in documents from known
distributions. `MeasuredDocuments` redraws whole documents and seeds, with replacement, from a table that was measured
in real trainings and centred on its own mean: the measured seeds and documents are the population, so the truth is
exactly 0. Two seeds of a real experiment are never equal, but two of 40 redrawn seeds often are, which alone lowers the
coverage of a t interval of Gaussian seeds to 94.0 % with 3 seeds. Therefore a new seed is a blend of two different
measured seeds whose squared weights sum to 1; this keeps mean and variance, and the interval covers 94.7 %.
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
BLEND_WEIGHT = 0.5
"""weight of the second seed of a blend; that of the first is sqrt(1 - BLEND_WEIGHT^2)"""


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
        per_token = self.seed_std * _draw(rng, self.seed_distribution, (experiments, seeds, 1))
        per_token = per_token + self.document_std * _draw(rng, self.document_distribution, (experiments, 1, documents))
        cells = (experiments, seeds, documents)
        if self.residual_std:
            per_token = per_token + self.residual_std * _draw(rng, self.document_distribution, cells)
        if self.example_std:
            share = weights / weights.mean(axis=-1, keepdims=True)
            shared = rng.standard_normal((experiments, 1, documents)) + rng.standard_normal(cells)
            per_token = per_token + self.example_std * shared / np.sqrt(2 * share[:, None, :])
        return SimulatedExperiments(per_token * weights[:, None, :], weights)


def _draw(rng: np.random.Generator, distribution: Distribution, shape: tuple[int, ...]) -> np.ndarray:
    """Return noise with mean 0 and variance 1."""
    if distribution == "gaussian":
        return rng.standard_normal(shape)
    if distribution == "skewed":
        return rng.exponential(size=shape) - 1
    return rng.standard_t(3, size=shape) / np.sqrt(3)


@dataclass(frozen=True, eq=False)
class MeasuredDocuments:
    """Seeds and documents of a real comparison, redrawn with replacement."""

    name: str
    totals: np.ndarray
    """difference of the summed loss, (seeds, documents)"""
    tokens: np.ndarray
    """tokens of each document"""
    blend_weight: float = BLEND_WEIGHT

    def sample(
        self, rng: np.random.Generator, experiments: int, seeds: int, documents: int, lengths: Lengths
    ) -> SimulatedExperiments:
        first = rng.integers(len(self.totals), size=(experiments, seeds, 1))
        second = (first + rng.integers(1, len(self.totals), size=first.shape)) % len(self.totals)
        columns = rng.integers(len(self.tokens), size=(experiments, documents))
        totals, tokens = self.totals, self.tokens
        if lengths == "equal":
            totals, tokens = totals / tokens, np.ones_like(tokens)
        shared = totals.mean(axis=0)
        of_documents = shared - shared.sum() / tokens.sum() * tokens
        of_seeds = totals - shared
        drawn = columns[:, None, :]
        weight = self.blend_weight
        differences = np.sqrt(1 - weight**2) * of_seeds[first, drawn] + weight * of_seeds[second, drawn]
        return SimulatedExperiments(of_documents[drawn] + differences, tokens[columns])


def load_comparisons(cache: Path, blend_weight: float = BLEND_WEIGHT) -> list[MeasuredDocuments]:
    """Return the measured comparisons: each variant against the base model, on recent and on all test addresses."""
    tables: dict[str, list[np.ndarray]] = {}
    for path in sorted((cache / "comparisons").glob("*-*.npz")):
        with np.load(path) as file:
            documents, weights = file["documents"], file["weights"].astype(float)
            names, positions = np.unique(documents, return_inverse=True)
            totals = np.stack([np.bincount(positions, row) for row in file["scores"].astype(float)])
            tables.setdefault(path.stem.split("-")[0], []).append(totals)
    tokens = np.bincount(positions, weights)
    years = np.array([read_addresses()[i].year for i in names])
    loaded = []
    baseline = np.concatenate(tables.pop("baseline"))
    for variant, chunks in tables.items():
        scores = np.concatenate(chunks)
        difference = scores - baseline[: len(scores)]
        for label, selected in ((f"since {FIRST_YEAR}", years >= FIRST_YEAR), ("1790 to today", years > 0)):
            name = f"{variant}, {selected.sum()} addresses {label}" + ("" if blend_weight else ", seeds redrawn")
            loaded.append(MeasuredDocuments(name, difference[:, selected], tokens[selected], blend_weight))
    return loaded
