"""Checks of the scores of a variant together with the baseline's: copied or computed scores, units, and test texts."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import combinations

import numpy as np
from jaxtyping import Float

from headtohead.verdict.external_scores.score_issues import MAX_COINCIDENCE, ScoreIssue, VariantSummary, is_coincidence
from headtohead.verdict.metric import Metric

NEAR_COPY_TOLERANCE = 1e-4
"""largest difference between scores that count as copies of each other, relative to the range of the scores"""
MIN_ROUNDING_STEPS = 20
"""number of rounding steps in the range of scores from which a relation between them is exact"""
NATS_PER_BIT = math.log(2)
UNIT_TOLERANCE = 0.01
LOGARITHM_TOLERANCE = 0.1
MIN_CORRELATED_EXAMPLES = 50
MIN_SEED_CORRELATION = 0.7
"""correlation of the scores per example between two seeds from which the examples, not the runs, determine them"""
MAX_VARIANT_CORRELATION = 0.1
"""correlation of the scores per example between baseline and variant up to which their examples are unrelated"""
MIN_GRADED_EXAMPLES = 10

PairCheck = Callable[[VariantSummary, VariantSummary, Metric], ScoreIssue | None]


def _list_common_seeds(baseline: VariantSummary, variant: VariantSummary) -> list[int]:
    """Return the seeds for which both the baseline and the variant have scores."""
    return sorted(set(baseline.scores.seeds) & set(variant.scores.seeds))


def _select_paired_means(
    baseline: VariantSummary, variant: VariantSummary
) -> tuple[Float[np.ndarray, " seeds"], Float[np.ndarray, " seeds"]]:
    """Return the means of baseline and variant for the seeds that both have."""
    seeds = _list_common_seeds(baseline, variant)
    baseline_means, variant_means = (
        summary.seed_means[[summary.scores.seeds.index(seed) for seed in seeds]] for summary in (baseline, variant)
    )
    return baseline_means, variant_means


def _find_repeated_scores(baseline: VariantSummary, variant: VariantSummary, metric: Metric) -> ScoreIssue | None:
    """Check the pair: warn if one has the same score for every seed, and the other does not."""
    for repeated, other in ((baseline, variant), (variant, baseline)):
        num_seeds = len(repeated.seed_means)
        if num_seeds < 3 or not _is_equal_for_all_seeds(repeated):
            continue
        if other.relative_resolution ** (num_seeds - 1) > MAX_COINCIDENCE:
            continue
        return ScoreIssue(
            "repeated scores",
            repeated.name,
            f"all {num_seeds} seeds of {repeated.name} have the same score, and those of {other.name} do not.",
            "One run, repeated or quoted from elsewhere, does not show the noise of training. Check that the seed is "
            "used.",
        )
    return None


def _find_copied_runs(baseline: VariantSummary, variant: VariantSummary, metric: Metric) -> ScoreIssue | None:
    """Check the pair: find seeds whose scores repeat those of a different seed, for baseline and variant."""
    baseline_means, variant_means = _select_paired_means(baseline, variant)
    num_seeds = len(baseline_means)
    relative_resolution = max(baseline.relative_resolution, variant.relative_resolution)
    if num_seeds < 3 or relative_resolution >= 1:
        if not _are_all_examples_copied(baseline, variant):
            return None
        num_copies = num_seeds
    else:
        for tolerance in (0.0, NEAR_COPY_TOLERANCE):
            equal_pairs = [
                (i, j)
                for i, j in combinations(range(num_seeds), 2)
                if abs(baseline_means[i] - baseline_means[j]) <= tolerance * baseline.seed_mean_range
                and abs(variant_means[i] - variant_means[j]) <= tolerance * variant.seed_mean_range
            ]
            probability = max(relative_resolution, 2 * tolerance, 1e-9)
            if not is_coincidence(len(equal_pairs), math.comb(num_seeds, 2), probability):
                break
        else:
            return None
        num_copies = len({index for pair in equal_pairs for index in pair})
    return ScoreIssue(
        "copied runs",
        variant.name,
        f"{num_copies} of {num_seeds} seeds have the same scores as another seed, on both sides.",
        "These are copies of runs, or runs that ignore their seed. Keep one row for each run.",
        is_blocking=True,
    )


def _are_all_examples_copied(baseline: VariantSummary, variant: VariantSummary) -> bool:
    """Return whether the scores per example are the same for every seed of a pair, baseline and variant."""
    return all(
        len(summary.seed_means) > 1 and len(summary.scores.weights) > 10 and _is_equal_for_all_seeds(summary)
        for summary in (baseline, variant)
    )


def _is_equal_for_all_seeds(summary: VariantSummary) -> bool:
    """Return whether every seed has the same scores, as if one run had been copied."""
    return bool((summary.scores.values == summary.scores.values[0]).all())


def _find_shifted_seeds(baseline: VariantSummary, variant: VariantSummary, metric: Metric) -> ScoreIssue | None:
    """Check the pair: find scores of the variant that equal the baseline's under a different seed."""
    has_same_seed = [
        baseline_seed == variant_seed
        for baseline_seed, baseline_mean in zip(baseline.scores.seeds, baseline.seed_means, strict=True)
        for variant_seed, variant_mean in zip(variant.scores.seeds, variant.seed_means, strict=True)
        if baseline_mean == variant_mean
    ]
    num_shifted = has_same_seed.count(False)
    num_pairs = len(baseline.seed_means) * len(variant.seed_means)
    probability = max(baseline.relative_resolution, variant.relative_resolution, 1e-9)
    if any(has_same_seed) or is_coincidence(num_shifted, num_pairs, probability):
        return None
    return ScoreIssue(
        "copied runs",
        variant.name,
        f"{num_shifted} scores of {variant.name} are equal to scores of {baseline.name} under another seed.",
        "The change may be without effect, and the seeds shifted. Check how the seed is passed.",
        is_blocking=True,
    )


def _find_computed_scores(baseline: VariantSummary, variant: VariantSummary, metric: Metric) -> ScoreIssue | None:
    """Check the pair: find scores that are a multiple of the baseline's, or differ from it by a constant."""
    baseline_means, variant_means = _select_paired_means(baseline, variant)
    num_seeds = len(baseline_means)
    resolution = max(baseline.resolution, variant.resolution)
    spread = float(np.ptp(baseline_means)) if num_seeds else 0.0
    if num_seeds < 3 or spread <= MIN_ROUNDING_STEPS * resolution or not spread:
        return None
    tolerance = max(1.5 * resolution, NEAR_COPY_TOLERANCE * spread)
    if (3 * tolerance / spread) ** (num_seeds - 1) > MAX_COINCIDENCE or (baseline_means == variant_means).all():
        return None
    ratio = float(variant_means.mean() / baseline_means.mean()) if baseline_means.mean() else 1.0
    offset = float((variant_means - baseline_means).mean())
    if _is_function_of_baseline(baseline, variant, lambda values: ratio * values, tolerance * max(1.0, abs(ratio))):
        relation = f"{ratio:.6g} times that of {baseline.name}"
        if metric.name == "loss" and _is_ratio_of_nats_and_bits(ratio):
            relation += ", as bits and nats are"
    elif _is_function_of_baseline(baseline, variant, lambda values: values + offset, tolerance):
        relation = (
            f"{math.exp(offset):.6g} times that of {baseline.name}"
            if metric.is_relative
            else f"that of {baseline.name} {'plus' if offset > 0 else 'minus'} {abs(offset):.6g}"
        )
    else:
        return None
    return ScoreIssue(
        "computed scores",
        variant.name,
        f"every score of {variant.name} is {relation}.",
        "Scores of two trained models are never this regular. Check that they are measured, and in the same unit.",
        is_blocking=True,
    )


def _is_function_of_baseline(
    baseline: VariantSummary,
    variant: VariantSummary,
    transform: Callable[[Float[np.ndarray, "..."]], Float[np.ndarray, "..."]],
    tolerance: float,
) -> bool:
    """Return whether a function of the baseline's scores gives those of its pair, for every seed and example."""
    seeds = _list_common_seeds(baseline, variant)
    baseline_scores, variant_scores = (
        summary.scores.select_seeds(seeds).values / summary.scores.weights for summary in (baseline, variant)
    )
    if baseline_scores.shape != variant_scores.shape:
        return False
    return bool(np.abs(variant_scores - transform(baseline_scores)).max() <= tolerance)


def _is_ratio_of_nats_and_bits(ratio: float) -> bool:
    """Return whether two mean losses with this ratio may be the same loss in different units."""
    return any(abs(ratio / unit - 1) <= UNIT_TOLERANCE for unit in (NATS_PER_BIT, 1 / NATS_PER_BIT))


def _find_different_units(baseline: VariantSummary, variant: VariantSummary, metric: Metric) -> ScoreIssue | None:
    """Check the pair: find bits beside nats, logarithms beside perplexities, probabilities beside correct answers."""
    if not (baseline.seed_means.size and variant.seed_means.size):
        return None
    baseline_mean, variant_mean = float(baseline.seed_means.mean()), float(variant.seed_means.mean())
    if metric.name == "accuracy" and _has_probability_scores(baseline) != _has_probability_scores(variant):
        graded, counted = (baseline, variant) if _has_probability_scores(baseline) else (variant, baseline)
        return ScoreIssue(
            "different units",
            variant.name,
            f"the scores of {counted.name} are all 0 or 1, and those of {graded.name} lie between.",
            "Score both sides in the same way.",
            is_blocking=True,
        )
    if metric.name == "loss" and baseline_mean > 0 and _is_ratio_of_nats_and_bits(variant_mean / baseline_mean):
        ratio = variant_mean / baseline_mean
        message = f"the mean loss of {variant.name} is {ratio:.4g} times that of {baseline.name}"
        message += f", and 1 nat is {1 / NATS_PER_BIT:.4g} bits."
    elif metric.is_relative and any(
        low > 0 and abs(math.exp(low) / high - 1) <= LOGARITHM_TOLERANCE
        for low, high in ((baseline_mean, variant_mean), (variant_mean, baseline_mean))
    ):
        message = f"the perplexities of one side are about the logarithms of the other's ({variant.name})."
    else:
        return None
    return ScoreIssue("different units", variant.name, message, "Check that both sides are in the same unit.")


def _has_probability_scores(summary: VariantSummary) -> bool:
    """Return whether most scores per example lie strictly between 0 and 1, unlike correct (1) and wrong (0) ones."""
    weights = summary.scores.weights
    if len(weights) < MIN_GRADED_EXAMPLES:
        return False
    example_scores = summary.scores.values / weights
    return bool((weights == 1).all() and ((example_scores > 0) & (example_scores < 1)).mean() > 0.5)


def _find_different_texts(baseline: VariantSummary, variant: VariantSummary, metric: Metric) -> ScoreIssue | None:
    """Check the pair: find scores per example that agree between seeds, but not between baseline and variant."""
    summaries = (baseline, variant)
    if metric.name == "accuracy" or any(
        len(summary.seed_means) < 2 or len(summary.scores.weights) < MIN_CORRELATED_EXAMPLES for summary in summaries
    ):
        return None
    baseline_scores, variant_scores = (summary.scores.values / summary.scores.weights for summary in summaries)
    if baseline_scores.shape[1] != variant_scores.shape[1] or any(
        (scores.std(axis=1) == 0).any() for scores in (baseline_scores, variant_scores)
    ):
        return None
    within = min(float(np.corrcoef(scores[0], scores[1])[0, 1]) for scores in (baseline_scores, variant_scores))
    between = float(np.corrcoef(baseline_scores.mean(axis=0), variant_scores.mean(axis=0))[0, 1])
    if within < MIN_SEED_CORRELATION or between > MAX_VARIANT_CORRELATION:
        return None
    return ScoreIssue(
        "different texts",
        variant.name,
        f"scores per example correlate by {within:.2f} between seeds, but by {between:.2f} between {baseline.name} and "
        f"{variant.name}.",
        "Check that both sides are scored on the same examples in the same order.",
        is_blocking=True,
    )


PAIR_CHECKS: tuple[PairCheck, ...] = (
    _find_repeated_scores,
    _find_copied_runs,
    _find_shifted_seeds,
    _find_computed_scores,
    _find_different_units,
    _find_different_texts,
)
