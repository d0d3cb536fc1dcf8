"""Checks of the scores of a single variant: order, outliers, units, and runs that evaluated nothing."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from headtohead.verdict.external_scores.score_issues import ScoreIssue, VariantSummary
from headtohead.verdict.metric import Metric

MIN_ORDERED_SEEDS = 6
MIN_OUTLIER_SEEDS = 4
MIN_OUTLIER_DISTANCE = 20.0
"""distance of an outlier from its nearest score, in ranges of all other scores"""
MIN_WEIGHTED_EXAMPLES = 20
MIN_WEIGHT_CORRELATION = 0.75
"""correlation of the losses per example with their weights from which losses are sums instead of means"""


def _find_ordered_scores(summary: VariantSummary, metric: Metric) -> ScoreIssue | None:
    """Check a variant: warn if its scores rise or fall with the seed."""
    if len(summary.seed_means) < MIN_ORDERED_SEEDS:
        return None
    changes = np.diff(summary.seed_means[np.argsort(summary.scores.seeds)])
    if not ((changes > 0).all() or (changes < 0).all()):
        return None
    return ScoreIssue(
        "ordered scores",
        summary.name,
        f"the scores of {summary.name} {'rise' if changes[0] > 0 else 'fall'} from seed to seed.",
        "Check that each row is an independent run, not a checkpoint of one run, and that rows were not sorted by "
        "score, which pairs unrelated runs.",
    )


def _find_outlier_score(summary: VariantSummary, metric: Metric) -> ScoreIssue | None:
    """Check a variant: warn about one score far from all others."""
    if len(summary.seed_means) < MIN_OUTLIER_SEEDS:
        return None
    order = np.argsort(summary.seed_means)
    ordered = summary.seed_means[order]
    for outlier, neighbor, other_means in ((0, 1, ordered[1:]), (-1, -2, ordered[:-1])):
        spread = max(float(np.ptp(other_means)), summary.resolution)
        if spread > 0 and abs(ordered[outlier] - ordered[neighbor]) > MIN_OUTLIER_DISTANCE * spread:
            low, high = (metric.to_display_mean(float(value)) for value in (other_means.min(), other_means.max()))
            return ScoreIssue(
                "outlier",
                summary.name,
                f"seed {summary.scores.seeds[order[outlier]]} of {summary.name} has the score "
                f"{metric.to_display_mean(float(ordered[outlier])):.4g}, and all other seeds {low:.4g} to {high:.4g}.",
                "Check that it is a score of a run, not a mean, a standard deviation or a typing error.",
            )
    return None


def _find_summed_losses(summary: VariantSummary, metric: Metric) -> ScoreIssue | None:
    """Check a variant: warn if its losses per example grow in proportion to the weights."""
    weights = summary.scores.weights
    has_equal_weights = len(weights) < MIN_WEIGHTED_EXAMPLES or not np.ptp(weights)
    if metric.name == "accuracy" or has_equal_weights or not len(summary.seed_means):
        return None
    losses = summary.scores.values.mean(axis=0) / weights
    if not np.ptp(losses) or np.corrcoef(losses, weights)[0, 1] < MIN_WEIGHT_CORRELATION:
        return None
    return ScoreIssue(
        "different units",
        summary.name,
        f"the scores per example of {summary.name} are about proportional to the weights.",
        "The score of an example is a mean per unit of weight. Divide sums by the number of tokens, or name the column "
        "total.",
    )


def _find_negative_loss(summary: VariantSummary, metric: Metric) -> ScoreIssue | None:
    """Check a variant: warn if all of its losses are negative."""
    if metric.name != "loss" or not summary.seed_means.size or not (summary.seed_means < 0).all():
        return None
    return ScoreIssue(
        "negative loss",
        summary.name,
        f"all losses of {summary.name} are negative, and lower ones count as better.",
        "If these are log-likelihoods, change their sign or use the metric score.",
    )


def _find_empty_evaluation(summary: VariantSummary, metric: Metric) -> ScoreIssue | None:
    """Check a variant: find runs with a loss of exactly 0, or a perplexity of exactly 1, which withhold the verdict."""
    if metric.name not in ("loss", "perplexity"):
        return None
    num_zeros = int((summary.seed_means == 0).sum())
    if not num_zeros:
        return None
    score = "perplexity of exactly 1" if metric.name == "perplexity" else "loss of exactly 0"
    return ScoreIssue(
        "empty evaluation",
        summary.name,
        f"{num_zeros} of {len(summary.seed_means)} runs of {summary.name} have a {score}.",
        "Check that these runs evaluated at least one example.",
        is_blocking=True,
    )


VARIANT_CHECKS: tuple[Callable[[VariantSummary, Metric], ScoreIssue | None], ...] = (
    _find_empty_evaluation,
    _find_ordered_scores,
    _find_outlier_score,
    _find_negative_loss,
    _find_summed_losses,
)
