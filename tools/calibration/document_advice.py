"""False verdicts if advice on documents is followed: the same runs are scored on more and more documents.

The true difference is 0: documents are Gaussian, or resampled from real addresses and centered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from headtohead.verdict.compare import compare_scores
from headtohead.verdict.decision_rule import HELPED, HURT, NO_PRACTICAL_DIFFERENCE, OPEN_OUTCOMES
from headtohead.verdict.interim import AlphaBudget
from headtohead.verdict.record import Verdict
from headtohead.verdict.scores import Scores

from .results import ResultStore
from .simulations import SimulatedExperiments, Simulation

NUM_EXPERIMENTS = 1_000
SEED_COUNTS = (5, 8, 12)
FIRST_DOCUMENTS = 10
MAX_DOCUMENTS = 2_000
MARGIN = 0.5
"""in true standard errors of the first analysis"""


@dataclass(frozen=True)
class DocumentAdviceRow:
    """How experiments without a true difference end if they get the documents that each verdict asks for."""

    simulation: str
    seeds: int
    experiments: int
    false: int
    equivalent: int
    analyses: float
    documents: float
    """median number at the end"""

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the share of false verdicts (Clopper and Pearson)."""
        interval = stats.binomtest(self.false, self.experiments).proportion_ci()
        return float(interval.low), float(interval.high)

    @property
    def misses_target(self) -> bool:
        return self.interval[0] > 0.05


def study_document_advice(store: ResultStore, simulations: Sequence[Simulation]) -> list[DocumentAdviceRow]:
    """Return a row for each simulation and number of seeds."""
    return [
        store.get(
            "document-advice",
            f"{simulation.name}; {seeds}; {NUM_EXPERIMENTS}",
            DocumentAdviceRow,
            lambda simulation=simulation, seeds=seeds: _measure_document_advice(simulation, seeds),  # type: ignore[misc]
        )
        for simulation in simulations
        for seeds in SEED_COUNTS
    ]


def _measure_document_advice(simulation: Simulation, seeds: int) -> DocumentAdviceRow:
    """Follow the advice of many simulated experiments without a true difference."""
    rng = np.random.default_rng([seeds, *simulation.name.encode()])
    first_sample = simulation.sample(rng, 4_000, seeds, FIRST_DOCUMENTS, "equal")
    standard_error = float((first_sample.differences.sum(axis=(1, 2)) / first_sample.weights.sum(axis=1) / seeds).std())
    results = [
        follow_document_advice(simulation.sample(rng, 1, seeds, MAX_DOCUMENTS, "equal"), MARGIN * standard_error)
        for _ in range(NUM_EXPERIMENTS)
    ]
    outcomes = [verdict.outcome for verdict, _ in results]
    return DocumentAdviceRow(
        simulation.name,
        seeds,
        NUM_EXPERIMENTS,
        outcomes.count(HELPED) + outcomes.count(HURT),
        outcomes.count(NO_PRACTICAL_DIFFERENCE),
        float(np.mean([num_analyses for _, num_analyses in results])),
        float(np.median([verdict.documents for verdict, _ in results])),
    )


def follow_document_advice(sample: SimulatedExperiments, margin: float) -> tuple[Verdict, int]:
    """Return the last verdict and the number of analyses, starting with the first documents of one experiment."""
    seeds = tuple(range(sample.differences.shape[1]))
    budget, num_documents, num_analyses = AlphaBudget(), FIRST_DOCUMENTS, 0
    while True:
        totals, weights = sample.differences[0, :, :num_documents], sample.weights[0, :num_documents]
        (verdict,) = compare_scores(
            Scores(seeds, np.zeros_like(totals), weights),
            {"variant": Scores(seeds, totals, weights)},
            metric="loss",
            equivalence_margin=margin,
            budget=budget,
        )
        num_analyses += 1
        if verdict.outcome not in OPEN_OUTCOMES or not verdict.additional_documents or num_documents == MAX_DOCUMENTS:
            return verdict, num_analyses
        budget = budget.add_analysis("variant", len(seeds), num_documents)
        num_documents = min(num_documents + verdict.additional_documents, MAX_DOCUMENTS)
