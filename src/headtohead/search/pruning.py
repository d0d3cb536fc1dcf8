"""Pruning: stop training further seeds for a point that trails another by more than noise explains.

Let m be the mean of a point's n seeds so far and M the mean of a finished point with N seeds. The noise is the standard
deviation s between seeds, pooled over points, with f degrees of freedom. The point is pruned if, for any other point,

    M - m  >  t(1 - risk / (K L), f)  s  sqrt(1/n + 1/N)

with K other points and L interim analyses. By the Bonferroni correction, the probability of pruning the truly best
point is at most `risk` if all points have the same seed noise; docs/how-to/search.md simulates other cases. The bound
is conservative: it saves seeds on clearly inferior points and does not separate close ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from scipy import special

from headtohead.config.search import PruningConfig
from headtohead.experiment.schemas import PruningDecision
from headtohead.search.points import compute_mean

MIN_DEGREES_OF_FREEDOM = 4
"""below this the pooled standard deviation is too uncertain, and no point is pruned"""
SeedScores = Sequence[float]
"""scores of a point, one per seed; higher is better"""


def compute_pooled_std(scores_by_point: Sequence[SeedScores]) -> tuple[float, int]:
    """Return the standard deviation between seeds, pooled over points, and its degrees of freedom; (nan, 0) if none."""
    degrees_of_freedom, sum_of_squares = 0, 0.0
    for scores in scores_by_point:
        mean = compute_mean(scores) if scores else 0.0
        sum_of_squares += sum((score - mean) ** 2 for score in scores)
        degrees_of_freedom += max(0, len(scores) - 1)
    return (math.sqrt(sum_of_squares / degrees_of_freedom), degrees_of_freedom) if degrees_of_freedom else (math.nan, 0)


def decide_pruning(
    scores: SeedScores, other_scores: Sequence[SeedScores], rule: PruningConfig, num_seeds: int
) -> PruningDecision | None:
    """Return the reason to prune a point, given the finished points' scores, or None to continue it."""
    num_interim_analyses = num_seeds - rule.min_seeds
    if not scores or len(scores) < rule.min_seeds or len(scores) >= num_seeds or not other_scores:
        return None
    std, degrees_of_freedom = compute_pooled_std([*other_scores, scores])
    if degrees_of_freedom < MIN_DEGREES_OF_FREEDOM:
        return None
    quantile = float(special.stdtrit(degrees_of_freedom, 1 - rule.risk / (len(other_scores) * num_interim_analyses)))
    mean = compute_mean(scores)
    for finished_scores in other_scores:
        deficit = compute_mean(finished_scores) - mean
        threshold = quantile * std * math.sqrt(1 / len(scores) + 1 / len(finished_scores))
        if deficit > threshold:
            return PruningDecision(deficit=deficit, threshold=threshold, seeds=len(scores))
    return None
