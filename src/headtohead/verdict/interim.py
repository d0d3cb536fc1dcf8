"""Interim analyses: the error rate that an analysis may spend, given all previous analyses.

Seeds may be added by hand, on advice, by `seeds = "auto"` or with `--resume`. All cases are treated alike: the
significance level of an analysis depends only on the seed counts of the analyses so far. With F(n) = 1 - 2/n and the
error rate alpha,

    the first analysis, at n seeds fixed before training, spends     alpha F(n)
    a later analysis, after one at k seeds, spends                   0.85 alpha (F(n) - F(k))

so all analyses together spend less than alpha. The union bound does not apply to them, because following the advice
makes n depend on the data; the factor 0.85 compensates for that. It was determined by simulation
(tests/verdict/test_interim.py): following the advice to the end gives at most 5 % false verdicts.

Analyses that are planned together, as with `seeds = "auto"`, share what a single analysis at the last seed count would
spend. After k of K seeds, (k/K)^2 of it has been spent (alpha spending, Lan and DeMets, Biometrika 70, 1983; power
family, Kim and DeMets, Biometrika 74, 1987). They are fixed before training, so here the union bound is a proof. Little
is spent early, since 3 seeds detect only very large effects at any level.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headtohead.errors import ScoresError

MIN_SEEDS = 3
"""number of seeds below which there is no interval and no verdict"""
GROWTH_FACTOR = 1.6
LATER_ANALYSIS_FACTOR = 0.85


@dataclass(frozen=True)
class Analysis:
    """An analysis of one variant.

    `planned_seeds` is the seed count of the last analysis that was planned together with this one; it defaults to this
    analysis's own seed count.
    """

    seeds: int
    planned_seeds: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "planned_seeds", max(self.seeds, self.planned_seeds))


def plan_interim_analyses(max_seeds: int) -> tuple[int, ...]:
    """Return the seed counts of the analyses up to `max_seeds`, each about 1.6 times the previous one."""
    if max_seeds < MIN_SEEDS:
        raise ScoresError(f"max_seeds must be at least {MIN_SEEDS} to estimate the noise, got {max_seeds}")
    analyses = [max_seeds]
    while (previous := round(analyses[0] / GROWTH_FACTOR)) >= MIN_SEEDS:
        analyses.insert(0, previous)
    return tuple(analyses)


def compute_analysis_confidence(
    num_seeds: int,
    previous_analyses: Sequence[Analysis] = (),
    *,
    planned_seeds: int = 0,
    num_comparisons: int = 1,
    confidence: float = 0.95,
) -> float:
    """Return the confidence level of an interval with `num_seeds` seeds after `previous_analyses`.

    The intervals for all `num_comparisons` comparisons and all analyses then hold simultaneously with probability
    `confidence`. If a previous analysis had at least as many seeds, this one merely repeats it, and the confidence
    level of that analysis is returned. `planned_seeds` has the same meaning as in `Analysis`.
    """
    analyses = [*previous_analyses, Analysis(num_seeds, planned_seeds)]
    is_repeated = (index for index, analysis in enumerate(analyses) if analysis.seeds >= num_seeds)
    share = _compute_error_share(analyses[: next(is_repeated) + 1])
    return 1 - (1 - confidence) * share / num_comparisons


def _compute_error_share(analyses: Sequence[Analysis]) -> float:
    """Return the share of the error rate that the last analysis spends."""
    *previous, current = analyses
    num_planned = current.planned_seeds
    # Seed count of the last analysis before this plan
    start = next((analysis.seeds for analysis in reversed(previous) if analysis.planned_seeds != num_planned), 0)
    budget = _compute_spent_share(num_planned)
    if start:
        budget = LATER_ANALYSIS_FACTOR * (budget - _compute_spent_share(start))
    before = previous[-1].seeds if previous else 0
    return max(budget * (current.seeds**2 - before**2) / (num_planned**2 - start**2), 0.0)


def _compute_spent_share(num_seeds: int) -> float:
    """Return F(n)."""
    return max(1 - 2 / num_seeds, 0.0)
