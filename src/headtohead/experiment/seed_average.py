"""Average a metric over the seeds of a variant, with a confidence interval.

Perplexity is averaged geometrically, as exp of the mean loss. Verdicts compare mean losses, so the relative difference
between two such averages is the effect that the verdict states. Other metrics are averaged arithmetically.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from headtohead.verdict.interim import MIN_SEEDS
from headtohead.verdict.intervals import compute_mean_interval


def average_over_seeds(metric: str, scores: Sequence[float]) -> float:
    """Return the mean over seeds: geometric for perplexity, arithmetic otherwise."""
    return statistics.geometric_mean(scores) if metric == "perplexity" else statistics.fmean(scores)


def compute_average_interval(metric: str, scores: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % t interval for the mean over seeds, or None if there are fewer than three seeds.

    An interval from two seeds is 12.7 times as wide as their distance, and often lies outside the range of the metric.
    """
    if len(scores) < MIN_SEEDS:
        return None
    if metric != "perplexity":
        bounds = compute_mean_interval(list(scores))
    else:
        log_bounds = compute_mean_interval([math.log(score) for score in scores])
        bounds = [math.exp(bound) for bound in log_bounds] if log_bounds else None
    return (bounds[0], bounds[1]) if bounds else None
