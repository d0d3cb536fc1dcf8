"""Estimate the selection bias of a search: how much of the winner's lead over the baseline was chance.

The best of many points owes part of its lead to chance, so its score in the search is biased upwards; fresh seeds
measure by how much. Computations use a scale on which noise is additive (accuracy, or mean loss for perplexity);
results are converted to the metric.
"""

from __future__ import annotations

import math

import numpy as np

from headtohead.config.experiment import BASELINE
from headtohead.config.tables.search import WINNER_VARIANT
from headtohead.experiment.run_folder import FinishedRuns, Run
from headtohead.experiment.schemas import SelectionBias
from headtohead.search.points import VALIDATION_SPLIT, SearchPoint
from headtohead.search.seed_noise import compute_mean_half_width, compute_pooled_std


def estimate_selection_bias(winner: SearchPoint, finished_runs: FinishedRuns, metric: str) -> SelectionBias | None:
    """Compare the winner's score in the search with its score on fresh seeds, on the same validation data.

    The interval is for the mean over fresh seeds, with the standard deviation pooled over all of the winner's seeds.
    For perplexity, the lead and the bias are relative to the baseline's perplexity. Returns None without finished runs.
    """
    fresh_scores, baseline_scores = (
        [_read_fresh_validation_score(run, metric) for run in finished_runs.get(name, {}).values()]
        for name in (WINNER_VARIANT, BASELINE)
    )
    if not fresh_scores or not baseline_scores or not winner.seed_scores:
        return None
    search_mean, fresh_mean, baseline_mean = (
        float(np.mean(list(scores))) for scores in (winner.seed_scores.values(), fresh_scores, baseline_scores)
    )
    pooled_std, degrees_of_freedom = compute_pooled_std([list(winner.seed_scores.values()), fresh_scores])
    half_width = compute_mean_half_width(pooled_std, degrees_of_freedom, len(fresh_scores))
    unit = to_metric_scale(metric, baseline_mean) if metric == "perplexity" else 1.0
    sign = 1 if metric == "accuracy" else -1

    def compute_gain(mean: float, reference: float) -> float:
        """Return the improvement of `mean` over `reference`, in units of the metric."""
        return sign * (to_metric_scale(metric, mean) - to_metric_scale(metric, reference)) / unit

    interval = None
    if half_width is not None:
        low, high = sorted(
            compute_gain(search_mean, fresh_mean + sign_of_bound * half_width) for sign_of_bound in (-1, 1)
        )
        interval = (low, high)
    return SelectionBias(
        search=to_metric_scale(metric, search_mean),
        fresh=to_metric_scale(metric, fresh_mean),
        baseline=to_metric_scale(metric, baseline_mean),
        lead=compute_gain(search_mean, baseline_mean),
        kept=compute_gain(fresh_mean, baseline_mean),
        bias=compute_gain(search_mean, fresh_mean),
        interval=interval,
        seeds=(len(winner.seed_scores), len(fresh_scores)),
    )


def _read_fresh_validation_score(run: Run, metric: str) -> float:
    """Return the validation score of a run with a fresh seed, which has no selection bias."""
    score = run.result.scores[VALIDATION_SPLIT].get_metric("accuracy" if metric == "accuracy" else "loss")
    if score is None:
        raise ValueError(f"{run.folder} has no {metric} on validation data")
    return score


def to_metric_scale(metric: str, score: float) -> float:
    """Convert a mean loss to perplexity; return other metrics unchanged."""
    return math.exp(min(score, 700.0)) if metric == "perplexity" else score
