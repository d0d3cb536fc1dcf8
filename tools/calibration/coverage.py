"""Coverage of the 95 % interval for new seeds and new documents, on synthetic and on measured documents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from headtohead.verdict.intervals import compute_interval
from headtohead.verdict.variance_components import estimate_variance_components

from .results import ResultStore
from .simulations import LENGTHS, Lengths, SimulatedExperiments, Simulation, SyntheticDocuments

SEED_COUNTS = (3, 5, 8, 12)
DOCUMENT_COUNTS = (2, 3, 5, 8, 10, 20, 30)
DRAWS = 4_000
REFINED_DRAWS = 40_000
"""draws of a cell whose first estimate misses its target"""
MAX_BATCH_CELLS = 1_000_000
"""maximum number of simulated values in memory"""
MANY_DOCUMENTS = 10
TARGETS = {False: (0.93, 1.0), True: (0.935, 0.97)}
"""lowest and highest coverage, with few and with many documents"""

_VARIANCE_RATIOS = ((0, 0), (0, 1), (0.1, 0), (0.1, 1), (0.3, 0), (0.3, 1), (1, 0), (1, 1), (3, 1), (10, 1), (30, 0))
"""standard deviations of document effects and of the interaction, relative to that of seeds"""


def list_synthetic_groups() -> dict[str, list[SyntheticDocuments]]:
    """Return the synthetic simulations by distribution."""
    groups: dict[str, list[SyntheticDocuments]] = {"Gaussian": [], "heavy tails": [], "skewed": []}
    for document_std, residual_std in _VARIANCE_RATIOS:
        for example_std in (0, 1):
            name = f"documents {document_std:g}, interaction {residual_std:g}, examples {example_std:g}"
            stds = (1.0, document_std, residual_std, example_std)
            groups["Gaussian"].append(SyntheticDocuments(f"Gaussian: {name}", *stds))
            if not example_std:
                groups["heavy tails"].append(SyntheticDocuments(f"heavy tails: {name}", *stds, "heavy", "heavy"))
                groups["skewed"].append(SyntheticDocuments(f"skewed: {name}", *stds, "skewed"))
    return groups


@dataclass(frozen=True)
class CoverageCell:
    """Coverage of one simulation with one number of seeds and documents."""

    simulation: str
    lengths: Lengths
    seeds: int
    documents: int
    draws: int
    coverage: float
    half_width: float
    """median half width in true standard errors"""

    @property
    def target(self) -> tuple[float, float]:
        return TARGETS[self.documents >= MANY_DOCUMENTS]

    @property
    def misses_target(self) -> bool:
        low, high = self.target
        return not low <= self.coverage <= high


def measure_group_coverage(store: ResultStore, simulations: Sequence[Simulation]) -> list[CoverageCell]:
    """Return the coverage of some simulations in every cell. Cells that miss their target are measured again."""
    cells = []
    for simulation, lengths, documents, seeds in product(simulations, LENGTHS, DOCUMENT_COUNTS, SEED_COUNTS):
        key = f"{simulation.name}; {lengths}; {documents}; {seeds}"
        cell = _get_cached_cell(store, key, simulation, lengths, seeds, documents, DRAWS)
        if cell.misses_target:
            cell = _get_cached_cell(store, f"{key}; refined", simulation, lengths, seeds, documents, REFINED_DRAWS)
        cells.append(cell)
    return cells


def _get_cached_cell(
    store: ResultStore, key: str, simulation: Simulation, lengths: Lengths, seeds: int, documents: int, draws: int
) -> CoverageCell:
    """Return the coverage of one cell, measured now or earlier."""
    return store.get(
        "coverage", key, CoverageCell, lambda: measure_coverage(simulation, lengths, seeds, documents, draws)
    )


def measure_coverage(
    simulation: Simulation, lengths: Lengths, seeds: int, documents: int, draws: int, confidence: float = 0.95
) -> CoverageCell:
    """Return the coverage of the interval in one cell: one simulation, number of seeds and number of documents."""
    rng = np.random.default_rng([draws, seeds, documents, lengths == "unequal", *simulation.name.encode()])
    num_covered, differences, half_widths = 0, [], []
    for sample in sample_in_batches(simulation, rng, draws, seeds, documents, lengths):
        components = estimate_variance_components(sample.differences, sample.weights)
        half_width = compute_interval(components, confidence).half_width
        num_covered += int((np.abs(components.difference) <= half_width).sum())
        differences.append(components.difference)
        half_widths.append(half_width)
    true_standard_error = float(np.concatenate(differences).std())
    relative_half_width = float(np.median(np.concatenate(half_widths))) / true_standard_error
    return CoverageCell(simulation.name, lengths, seeds, documents, draws, num_covered / draws, relative_half_width)


def sample_in_batches(
    simulation: Simulation, rng: np.random.Generator, draws: int, seeds: int, documents: int, lengths: Lengths
) -> Iterator[SimulatedExperiments]:
    """Yield all experiments in batches of limited memory."""
    batch_size = max(MAX_BATCH_CELLS // (seeds * documents), 1)
    for start in range(0, draws, batch_size):
        yield simulation.sample(rng, min(batch_size, draws - start), seeds, documents, lengths)
