"""Verdicts from scores: pair, estimate the noise, apply the rule, and estimate the data needed to settle open verdicts.

The paired difference d is a ratio of totals, variant minus baseline, paired by seed and example. For perplexity it is
the difference in mean negative log-likelihood per token, displayed as the relative change exp(d) - 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from headtohead.errors import ScoresError
from headtohead.verdict import phrasing
from headtohead.verdict.additional_data import AdditionalData, estimate_additional_data
from headtohead.verdict.decision_rule import (
    CANNOT_TELL,
    HELPED,
    HURT,
    NOT_COMPARABLE,
    QUICK_LOOK,
    TOO_FEW_SEEDS,
    decide_outcomes,
)
from headtohead.verdict.interim import MIN_SEEDS, AlphaBudget
from headtohead.verdict.intervals import compute_interval, compute_seed_interval
from headtohead.verdict.lost_runs import (
    are_too_many_runs_lost,
    compute_max_failure_rate,
    compute_worst_rank_p_value,
    find_min_worst_rank_seeds,
    require_worst_rank_agreement,
)
from headtohead.verdict.metric import Metric, MetricName, get_metric
from headtohead.verdict.power import compute_min_detectable_effect
from headtohead.verdict.record import Interval, NoiseSource, Verdict
from headtohead.verdict.scores import ScorePair, Scores, pair_scores
from headtohead.verdict.tuning_variance import NO_TUNING_VARIANCE, TuningVariance
from headtohead.verdict.variance_components import (
    VarianceComponents,
    compute_rare_difference_variance,
    estimate_unpaired_components,
    estimate_variance_components,
)

NOT_WITHHELD: Mapping[str, Sequence[str]] = MappingProxyType({})
RESOLUTION_TOLERANCE = 1e-6
"""tolerance for the rounding of differences, relative to the step of the scores"""
NO_TUNING_VARIANCES: Mapping[str, TuningVariance] = MappingProxyType({})
UNKNOWN_INTERVAL: Interval = (math.nan, math.nan)


@dataclass(frozen=True)
class _ComparisonSettings:
    """The arguments of `compare_scores` that apply to the verdicts on all variants."""

    metric: Metric
    equivalence_margin: float
    equivalence_bounds: tuple[float, float]
    confidence: float
    budget: AlphaBudget
    tuning_variances: Mapping[str, TuningVariance]


def compare_scores(
    baseline: Scores | Mapping[str, Scores],
    variants: Mapping[str, Scores],
    *,
    metric: MetricName,
    equivalence_margin: float,
    withheld: Mapping[str, Sequence[str]] = NOT_WITHHELD,
    confidence: float = 0.95,
    budget: AlphaBudget = AlphaBudget(),  # noqa: B008  # immutable
    tuning_variances: Mapping[str, TuningVariance] = NO_TUNING_VARIANCES,
) -> list[Verdict]:
    """Compare each variant with the baseline and return one verdict for each.

    The intervals for all comparisons and interim analyses in `budget` hold simultaneously with probability
    `confidence`, so seeds may be added until the verdicts are settled.

    Args:
        baseline: The baseline's scores, or a mapping from variants to baseline scores if these differ between variants,
            such as scores per byte for a variant with a different tokenizer.
        variants: Scores of each variant.
        metric: Name of the metric.
        equivalence_margin: Largest difference without practical relevance: relative for perplexity (0.01 is 1 %),
            absolute for accuracy (0.01 is one percentage point), and in the score's own unit otherwise.
        withheld: Reasons for withholding each variant's verdict.
        confidence: Joint confidence of all intervals.
        budget: Comparisons and interim analyses that share the familywise error rate, 1 - `confidence`.
        tuning_variances: For each tuned variant, the variance of choosing its settings and those of its baseline.
    """
    metric_scale = get_metric(metric)
    if not 0.5 <= confidence < 1:
        raise ScoresError(f"confidence must be at least 0.5 and below 1, got {confidence:g}")
    equivalence_bounds = metric_scale.compute_equivalence_bounds(equivalence_margin)
    baselines = dict.fromkeys(variants, baseline) if isinstance(baseline, Scores) else baseline
    for name, scores in [*(("baseline", scores) for scores in baselines.values()), *variants.items()]:
        _check_accuracy_range(name, scores, metric_scale)
    score_pairs = {name: pair_scores(name, baselines[name], scores) for name, scores in variants.items()}
    num_judged = sum(name not in withheld for name in variants)
    budget = replace(budget, num_comparisons=max(budget.num_comparisons, num_judged, 1))
    settings = _ComparisonSettings(
        metric_scale, equivalence_margin, equivalence_bounds, confidence, budget, tuning_variances
    )
    variant_names = [*variants, *(name for name in withheld if name not in variants)]
    return [_build_verdict(name, score_pairs.get(name), settings, withheld.get(name, ())) for name in variant_names]


def mark_as_quick_looks(verdicts: Sequence[Verdict], occasion: str = "in a quick look") -> list[Verdict]:
    """Return the verdicts that `compare_scores` built with their differences, but no outcome, as in a quick look.

    Verdicts that are withheld stay as they are.
    """
    return [
        verdict
        if verdict.outcome == NOT_COMPARABLE
        else replace(
            verdict,
            outcome=QUICK_LOOK,
            summary=phrasing.format_quick_look(verdict, occasion),
            reason="",
            additional_seeds=None,
            additional_documents=None,
        )
        for verdict in verdicts
    ]


def _check_accuracy_range(variant_name: str, scores: Scores, metric: Metric) -> None:
    """Raise ScoresError if the scores to compare are accuracies that are not between 0 and 1."""
    if metric.name == "accuracy" and not ((scores.values >= 0) & (scores.values <= scores.weights)).all():
        farthest = scores.values.flat[int(np.argmax(np.abs(scores.values - scores.weights / 2)))]
        raise ScoresError(
            f"{variant_name}: accuracy must be between 0 and 1, got {farthest:g}; divide percentages by 100, or use "
            "the metric 'score'"
        )


def _build_verdict(
    variant_name: str, score_pair: ScorePair | None, settings: _ComparisonSettings, withheld: Sequence[str]
) -> Verdict:
    """Compare one variant with the baseline; return the verdict. `score_pair` is None if it has no scores."""
    verdict = _build_unjudged_verdict(variant_name, score_pair, settings)
    if withheld or score_pair is None:
        reason = ", ".join(withheld)
        return replace(
            verdict,
            outcome=NOT_COMPARABLE,
            withheld=tuple(withheld),
            reason=reason,
            summary=phrasing.format_not_comparable(variant_name, reason),
        )
    if score_pair.num_analyzed_seeds < MIN_SEEDS:
        return _build_verdict_without_interval(verdict, score_pair, settings.metric)
    num_lost, num_runs = verdict.lost_runs + verdict.baseline_lost_runs, verdict.runs + verdict.baseline_runs
    if score_pair.num_seeds < MIN_SEEDS or are_too_many_runs_lost(num_lost, num_runs):
        return _judge_by_ranks(verdict, score_pair, settings)
    return _judge_by_interval(verdict, score_pair, settings)


def _build_unjudged_verdict(variant_name: str, score_pair: ScorePair | None, settings: _ComparisonSettings) -> Verdict:
    """Return the start of a comparison's verdict: means, run counts, confidence level, and no outcome."""
    metric = settings.metric
    baseline_mean = variant_mean = math.nan
    num_baseline_runs = num_runs = num_baseline_lost = num_lost = 0
    num_seeds = num_analyzed_seeds = num_documents = 0
    if score_pair is not None:
        num_seeds, num_analyzed_seeds = score_pair.num_seeds, score_pair.num_analyzed_seeds
        num_documents = score_pair.num_documents
        total_weight = float(score_pair.weights.sum())
        baseline_mean, variant_mean = (
            float(totals.sum(axis=1).mean()) / total_weight if len(totals) else math.nan for totals in score_pair.totals
        )
        baseline_scores, variant_scores = score_pair.list_run_scores(higher_is_better=True)
        num_baseline_runs, num_runs = len(baseline_scores), len(variant_scores)
        num_baseline_lost, num_lost = int(np.isnan(baseline_scores).sum()), int(np.isnan(variant_scores).sum())
    difference = variant_mean - baseline_mean
    return Verdict(
        variant=variant_name,
        outcome=TOO_FEW_SEEDS,
        metric=metric.name,
        equivalence_margin=settings.equivalence_margin,
        baseline_mean=metric.to_display_mean(baseline_mean),
        variant_mean=metric.to_display_mean(variant_mean),
        effect=metric.to_display_effect(difference),
        is_better=metric.is_better(difference),
        interval=UNKNOWN_INTERVAL,
        seed_interval=UNKNOWN_INTERVAL,
        equivalence_interval=UNKNOWN_INTERVAL,
        confidence=settings.confidence,
        adjusted_confidence=settings.budget.compute_confidence(
            variant_name, max(num_analyzed_seeds, MIN_SEEDS), settings.confidence, num_documents
        ),
        seeds=num_seeds,
        examples=0 if score_pair is None else score_pair.num_examples,
        documents=num_documents,
        dominant_noise_source="unknown",
        min_detectable_effect=math.nan,
        additional_seeds=None,
        additional_documents=None,
        summary="",
        comparisons=settings.budget.num_comparisons,
        is_paired=score_pair is None or score_pair.is_paired,
        runs=num_runs,
        lost_runs=num_lost,
        baseline_runs=num_baseline_runs,
        baseline_lost_runs=num_baseline_lost,
        max_failure_rate=compute_max_failure_rate(num_lost, num_runs) if num_runs else math.nan,
    )


def _build_verdict_without_interval(verdict: Verdict, score_pair: ScorePair, metric: Metric) -> Verdict:
    """Return a comparison's verdict that only lists the scores, for fewer than three seeds."""
    num_missing_seeds = MIN_SEEDS - verdict.seeds
    baseline_means, variant_means = (
        [metric.to_display_mean(float(total) / float(score_pair.weights.sum())) for total in totals.sum(axis=1)]
        for totals in score_pair.totals
    )
    return replace(
        verdict,
        additional_seeds=num_missing_seeds,
        reason=f"run {phrasing.format_more(num_missing_seeds, 'seed')}",
        summary=phrasing.format_too_few_seeds(verdict, baseline_means, variant_means),
    )


def _judge_by_ranks(verdict: Verdict, score_pair: ScorePair, settings: _ComparisonSettings) -> Verdict:
    """Compare by ranks if many runs were lost, or if fewer than three pairs are left; return the verdict.

    An interval would describe too few of the runs. Instead, a rank-sum test in which lost runs rank worst decides, at
    the error rate of this analysis.
    """
    baseline, variant = score_pair.list_run_scores(higher_is_better=not settings.metric.lower_is_better)
    variant_p, baseline_p = (
        2 * compute_worst_rank_p_value(better, worse, is_paired=False)
        for better, worse in ((variant, baseline), (baseline, variant))
    )
    max_p_value = 1 - verdict.adjusted_confidence
    outcome = HELPED if variant_p <= max_p_value else HURT if baseline_p <= max_p_value else CANNOT_TELL
    if verdict.variant in settings.tuning_variances:  # ranks do not cover the noise of choosing settings
        outcome = CANNOT_TELL
    verdict = replace(verdict, outcome=outcome, is_better=variant_p < baseline_p)
    budget = settings.budget.add_analysis(verdict.variant, score_pair.num_analyzed_seeds)
    min_seeds = find_min_worst_rank_seeds(
        lambda seeds: 1 - budget.compute_confidence(verdict.variant, seeds, settings.confidence)
    )
    return replace(
        verdict,
        reason=phrasing.explain_lost_runs(verdict) if outcome == CANNOT_TELL else "",
        summary=phrasing.format_rank_test(verdict, min(variant_p, baseline_p, 1.0), min_seeds),
    )


def _judge_by_interval(verdict: Verdict, score_pair: ScorePair, settings: _ComparisonSettings) -> Verdict:
    """Compare by the interval of the difference; return the verdict with its outcome."""
    metric, confidence = settings.metric, verdict.adjusted_confidence
    components = _estimate_difference(score_pair, metric)
    difference = float(components.difference[0])
    tuning_variance = settings.tuning_variances.get(verdict.variant, NO_TUNING_VARIANCE)
    # A rounded score cannot show a difference smaller than its step.
    min_half_width = score_pair.resolution * (1 + RESOLUTION_TOLERANCE)
    half_width, seed_half_width, equivalence_half_width = (
        np.maximum(tuning_variance.widen(compute(components, level).half_width, level), min_half_width)
        for compute, level in (
            (compute_interval, confidence),
            (compute_seed_interval, confidence),
            (compute_interval, 2 * confidence - 1),
        )
    )
    outcome = decide_outcomes(
        components.difference,
        half_width,
        equivalence_half_width,
        settings.equivalence_bounds,
        lower_is_better=metric.lower_is_better,
    )[0]
    outcome_with_lost_runs = require_worst_rank_agreement(outcome, verdict, score_pair, metric)
    additional_data = AdditionalData()
    if outcome == CANNOT_TELL:
        budget = settings.budget.add_analysis(verdict.variant, score_pair.num_analyzed_seeds, score_pair.num_documents)
        num_lost = score_pair.num_analyzed_seeds - score_pair.num_seeds
        additional_data = estimate_additional_data(
            components,
            lambda seeds, documents: budget.compute_confidence(
                verdict.variant, seeds + num_lost, settings.confidence, documents
            ),
            settings.equivalence_bounds,
            min_half_width,
            tuning_variance,
        )

    def to_display_interval(half_width: np.ndarray) -> Interval:
        """Return the interval of this half-width in the displayed unit of the metric."""
        display = metric.to_display_effect
        return display(difference - float(half_width[0])), display(difference + float(half_width[0]))

    detectable_difference = compute_min_detectable_effect(components, confidence)
    verdict = replace(
        verdict,
        outcome=outcome_with_lost_runs,
        interval=to_display_interval(half_width),
        seed_interval=to_display_interval(seed_half_width),
        equivalence_interval=to_display_interval(equivalence_half_width),
        dominant_noise_source=_find_dominant_noise_source(components),
        min_detectable_effect=metric.to_display_effect(
            float(tuning_variance.widen(np.array([max(detectable_difference, min_half_width)]), confidence)[0])
        ),
        additional_seeds=additional_data.seeds if additional_data.is_either_sufficient else None,
        additional_documents=additional_data.documents if additional_data.is_either_sufficient else None,
    )
    is_open_due_to_lost_runs = outcome_with_lost_runs != outcome
    return replace(
        verdict,
        summary=phrasing.format_summary(verdict, additional_data, score_pair.unused_seeds),
        reason=(
            phrasing.explain_lost_runs(verdict)
            if is_open_due_to_lost_runs
            else phrasing.format_remedy(verdict, additional_data)
        ),
    )


def _estimate_difference(score_pair: ScorePair, metric: Metric) -> VarianceComponents:
    """Return the difference of the compared scores, variant minus baseline, with the components of its variance."""
    baseline_totals, variant_totals = score_pair.totals
    weights = score_pair.sum_by_document(score_pair.weights)[None]
    if not score_pair.is_paired:
        return estimate_unpaired_components(
            score_pair.sum_by_document(baseline_totals)[None], score_pair.sum_by_document(variant_totals)[None], weights
        )
    differences = variant_totals - baseline_totals
    is_binary = metric.name == "accuracy" and bool(np.isin(differences, (-1.0, 0.0, 1.0)).all())
    has_rare_differences = is_binary and score_pair.num_examples > 1
    return estimate_variance_components(
        score_pair.sum_by_document(differences)[None],
        weights,
        compute_rare_difference_variance(differences[None]) if has_rare_differences else None,
    )


def _find_dominant_noise_source(components: VarianceComponents) -> NoiseSource:
    """Return which variance of the compared difference is larger, that of seeds or of documents, for the verdict."""
    seed_variance, document_variance = float(components.seed_variance[0]), float(components.document_variance[0])
    if components.num_documents == 1 or seed_variance + document_variance == 0:
        return "unknown"
    return "seeds" if seed_variance >= document_variance else "documents"
