"""Pruning: stop training further seeds for a point that trails a different point by more than noise explains.

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

import scipy

from headtohead.config.tables.search import PruningConfig
from headtohead.experiment.schemas import PruningDecision
from headtohead.search.points import compute_mean
from headtohead.search.seed_noise import SeedScores, compute_pooled_std

MIN_DEGREES_OF_FREEDOM = 4
"""below this the pooled standard deviation is too uncertain, and no point is pruned"""


def decide_pruning(
    scores: SeedScores, finished_points_scores: Sequence[SeedScores], rule: PruningConfig, num_seeds: int
) -> PruningDecision | None:
    """Return the reason to prune a point, given the scores of the finished points, or None to continue it.

    Higher scores are better.
    """
    num_interim_analyses = num_seeds - rule.min_seeds
    if not scores or len(scores) < rule.min_seeds or len(scores) >= num_seeds or not finished_points_scores:
        return None
    std, degrees_of_freedom = compute_pooled_std([*finished_points_scores, scores])
    if degrees_of_freedom < MIN_DEGREES_OF_FREEDOM:
        return None
    quantile = float(
        scipy.special.stdtrit(degrees_of_freedom, 1 - rule.risk / (len(finished_points_scores) * num_interim_analyses))
    )
    mean = compute_mean(scores)
    for finished_scores in finished_points_scores:
        deficit = compute_mean(finished_scores) - mean
        threshold = quantile * std * math.sqrt(1 / len(scores) + 1 / len(finished_scores))
        if deficit > threshold:
            return PruningDecision(deficit=deficit, threshold=threshold, seeds=len(scores))
    return None
