"""Collapsing runs: some runs of baseline and variant learn nothing; otherwise baseline and variant are equal.

A mean over all runs cannot be covered: few seeds usually miss a rare collapse. Collapsed runs are therefore counted as
lost, the interval describes the runs that learned, and the failure rate has a bound of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
from scipy import special, stats

from headtohead.verdict.compare import compare_scores
from headtohead.verdict.decision_rule import HELPED, HURT
from headtohead.verdict.scores import Scores

from .false_verdicts import skip_advice
from .results import ResultStore

COLLAPSE_PROBABILITIES = (0.1, 0.3, 0.5)
"""probabilities that a run collapses"""
SEED_COUNTS = (3, 5, 8, 12)
NUM_EXPERIMENTS = 4_000
CORRELATION = 0.5
"""correlation of two runs with the same seed"""
COLLAPSED_SCORE = 20.0
"""score of a collapsed run, in standard deviations of the others"""


@dataclass(frozen=True)
class CollapseRow:
    """Verdicts on simulated experiments in which runs collapse with one probability."""

    share: float
    seeds: int
    experiments: int
    mean_covered: int
    """experiments whose 95 % interval over all runs covers the true mean, if only the variant collapses"""
    with_interval: int
    """experiments that are judged by an interval instead of ranks"""
    covered: int
    """those whose interval covers the true difference of the runs that learn"""
    bound_covered: int
    """experiments whose bound of the failure rate covers the true one"""
    false: int
    """experiments in which the variant "helped" or "hurt" """

    @property
    def misses_target(self) -> bool:
        """Whether false verdicts are above 5 % by more than the binomial error."""
        return bool(stats.binomtest(self.false, self.experiments).proportion_ci().low > 0.05)


def study_collapsing_runs(store: ResultStore) -> list[CollapseRow]:
    """Return a row for each probability of a collapse and number of seeds."""
    return [
        store.get(
            "collapse",
            f"{share:g}; {seeds}; {NUM_EXPERIMENTS}",
            CollapseRow,
            lambda share=share, seeds=seeds: _simulate_collapses(share, seeds),  # type: ignore[misc]
        )
        for share, seeds in product(COLLAPSE_PROBABILITIES, SEED_COUNTS)
    ]


def _simulate_collapses(share: float, seeds: int) -> CollapseRow:
    """Judge simulated experiments whose runs collapse with probability `share`."""
    rng = np.random.default_rng([seeds, round(100 * share)])
    counts = dict.fromkeys(("mean_covered", "with_interval", "covered", "bound_covered", "false"), 0)
    for _ in range(NUM_EXPERIMENTS):
        shared = np.sqrt(CORRELATION) * rng.standard_normal(seeds)
        scores_by_side = shared + np.sqrt(1 - CORRELATION) * rng.standard_normal((2, seeds))
        collapsed_by_side = rng.random((2, seeds)) < share
        counts["mean_covered"] += _covers_mean(scores_by_side, collapsed_by_side[1], share)
        baseline, variant = (_build_scores(*side) for side in zip(scores_by_side, collapsed_by_side, strict=True))
        with skip_advice():
            (verdict,) = compare_scores(baseline, {"x": variant}, metric="loss", equivalence_margin=0.0)
        low, high = verdict.interval
        counts["with_interval"] += bool(np.isfinite(low))
        counts["covered"] += low <= 0 <= high
        counts["bound_covered"] += verdict.max_failure_rate >= share
        counts["false"] += verdict.outcome in (HELPED, HURT)
    return CollapseRow(share, seeds, NUM_EXPERIMENTS, **counts)


def _build_scores(values: np.ndarray, collapses: np.ndarray) -> Scores:
    """Return the scores of finished runs; collapsed runs count as lost."""
    finished, lost = np.flatnonzero(~collapses), np.flatnonzero(collapses)
    return Scores(
        tuple(finished.tolist()), values[finished, None], np.ones(1), lost=tuple(lost.tolist()), resolution=0.0
    )


def _covers_mean(scores_by_side: np.ndarray, collapses: np.ndarray, share: float) -> bool:
    """Return whether the t interval over all runs covers the true mean if only the variant collapses."""
    differences = np.where(collapses, COLLAPSED_SCORE, scores_by_side[1]) - scores_by_side[0]
    half_width = special.stdtrit(len(differences) - 1, 0.975) * differences.std(ddof=1) / np.sqrt(len(differences))
    return bool(abs(differences.mean() - share * COLLAPSED_SCORE) <= half_width)
