"""Verdicts from scores: pair, estimate the noise, apply the rule, and estimate the data needed to settle open verdicts.

The difference d is a ratio of totals, variant minus baseline, paired by seed and example. For perplexity it is the
difference in mean negative log-likelihood per token, displayed as the relative change exp(d) - 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np

from headtohead.errors import ScoresError
from headtohead.verdict import phrasing
from headtohead.verdict.interim import MIN_SEEDS, Analysis, compute_analysis_confidence
from headtohead.verdict.lost_runs import (
    MAX_LOST_SHARE,
    MAX_RANK_TEST_P_VALUE,
    compute_max_failure_rate,
    compute_worst_rank_p_value,
    find_min_rank_test_seeds,
)
from headtohead.verdict.prediction import AdditionalData, estimate_additional_data
from headtohead.verdict.record import Interval, NoiseSource, Verdict
from headtohead.verdict.rule import (
    CANNOT_TELL,
    HELPED,
    HURT,
    NO_PRACTICAL_DIFFERENCE,
    NOT_COMPARABLE,
    QUICK_LOOK,
    TOO_FEW_SEEDS,
    Metric,
    MetricName,
    VerdictOutcome,
    decide_outcomes,
    get_metric,
)
from headtohead.verdict.scores import PairedScores, Scores, pair_scores
from headtohead.verdict.statistics import (
    VarianceComponents,
    compute_interval,
    compute_min_detectable_effect,
    compute_rare_difference_variance,
    compute_seed_interval,
    estimate_unpaired_components,
    estimate_variance_components,
)

NOT_WITHHELD: Mapping[str, Sequence[str]] = MappingProxyType({})
NO_ANALYSES: Mapping[str, Sequence[Analysis]] = MappingProxyType({})
RESOLUTION_TOLERANCE = 1e-6
"""tolerance for the rounding of differences, relative to the step of the scores"""
UNKNOWN_INTERVAL: Interval = (math.nan, math.nan)


@dataclass(frozen=True)
class ErrorBudget:
    """Everything that shares the error rate: all analyses so far, and all comparisons.

    `previous_analyses` holds each variant's earlier analyses. `planned_seeds` is the number of seeds at the last
    planned analysis, or 0 if none is planned. `num_comparisons` counts every comparison ever made, including those with
    variants that have since been removed; 0 means to count the variants judged now. `is_final` spends the entire error
    rate, which is valid if the data are fixed in advance and no analysis precedes or follows.
    """

    previous_analyses: Mapping[str, Sequence[Analysis]] = field(default_factory=lambda: NO_ANALYSES)
    planned_seeds: int = 0
    num_comparisons: int = 0
    is_final: bool = False

    def compute_confidence(self, variant_name: str, num_seeds: int, confidence: float) -> float:
        """Return the confidence level of a variant's interval."""
        if self.is_final:
            return 1 - (1 - confidence) / self.num_comparisons
        return compute_analysis_confidence(
            num_seeds,
            self.previous_analyses.get(variant_name, ()),
            planned_seeds=self.planned_seeds if num_seeds <= self.planned_seeds else 0,
            num_comparisons=self.num_comparisons,
            confidence=confidence,
        )

    def add_analysis(self, variant_name: str, num_seeds: int) -> ErrorBudget:
        """Return the budget after an analysis."""
        previous = self.previous_analyses.get(variant_name, ())
        if any(analysis.seeds >= num_seeds for analysis in previous):
            return self
        current = Analysis(num_seeds, self.planned_seeds)
        return replace(self, previous_analyses={**self.previous_analyses, variant_name: (*previous, current)})


@dataclass(frozen=True)
class _ComparisonSettings:
    """Settings that apply to all variants."""

    metric: Metric
    equivalence_margin: float
    equivalence_band: tuple[float, float]
    confidence: float
    budget: ErrorBudget


def compare_scores(
    baseline: Scores | Mapping[str, Scores],
    variants: Mapping[str, Scores],
    *,
    metric: MetricName,
    equivalence_margin: float,
    withheld: Mapping[str, Sequence[str]] = NOT_WITHHELD,
    confidence: float = 0.95,
    budget: ErrorBudget = ErrorBudget(),  # noqa: B008  # immutable
) -> list[Verdict]:
    """Compare each variant with the baseline and return one verdict for each.

    The intervals for all comparisons and analyses in `budget` hold simultaneously with probability `confidence`, so
    seeds may be added until the verdicts are settled.

    Args:
        baseline: The baseline's scores, or a mapping from variants to baseline scores if these differ between variants,
            such as scores per byte for a variant with a different tokenizer.
        variants: Scores of each variant.
        metric: Name of the metric.
        equivalence_margin: Largest difference without practical relevance: relative for perplexity (0.01 is 1 %),
            absolute for accuracy (0.01 is one percentage point), and in the score's own unit otherwise.
        withheld: Reasons for withholding each variant's verdict.
        confidence: Joint confidence of all intervals.
        budget: Comparisons and analyses that share the error rate.
    """
    scale = get_metric(metric)
    if not 0.5 <= confidence < 1:
        raise ScoresError(f"confidence must be at least 0.5 and below 1, got {confidence:g}")
    band = scale.compute_equivalence_band(equivalence_margin)
    baselines = dict.fromkeys(variants, baseline) if isinstance(baseline, Scores) else baseline
    for name, scores in [*(("baseline", scores) for scores in baselines.values()), *variants.items()]:
        _check_score_range(name, scores, scale)
    pairs = {name: pair_scores(name, baselines[name], scores) for name, scores in variants.items()}
    num_judged = sum(name not in withheld for name in variants)
    budget = replace(budget, num_comparisons=max(budget.num_comparisons, num_judged, 1))
    settings = _ComparisonSettings(scale, equivalence_margin, band, confidence, budget)
    names = [*variants, *(name for name in withheld if name not in variants)]
    return [_build_verdict(name, pairs.get(name), settings, withheld.get(name, ())) for name in names]


def remove_judgements(verdicts: Sequence[Verdict], occasion: str = "in a quick look") -> list[Verdict]:
    """Return the verdicts with their differences but no judgement, as in a quick look. Withholding reasons are kept."""
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


def _check_score_range(variant_name: str, scores: Scores, metric: Metric) -> None:
    """Raise ScoresError if the metric is accuracy and a score is not between 0 and 1."""
    if metric.name == "accuracy" and not ((scores.values >= 0) & (scores.values <= scores.weights)).all():
        worst = scores.values.flat[int(np.argmax(np.abs(scores.values - scores.weights / 2)))]
        raise ScoresError(
            f"{variant_name}: accuracy must be between 0 and 1, got {worst:g}; divide percentages by 100, or use the "
            "metric 'score'"
        )


def _build_verdict(
    variant_name: str, pairs: PairedScores | None, settings: _ComparisonSettings, withheld: Sequence[str]
) -> Verdict:
    """Return the verdict on one variant. `pairs` is None if it has no scores."""
    verdict = _describe_data(variant_name, pairs, settings)
    if withheld or pairs is None:
        reason = ", ".join(withheld)
        return replace(
            verdict,
            outcome=NOT_COMPARABLE,
            withheld=tuple(withheld),
            reason=reason,
            summary=phrasing.format_not_comparable(variant_name, reason),
        )
    if pairs.num_analysed_seeds < MIN_SEEDS:
        return _build_verdict_without_interval(verdict, pairs, settings.metric)
    if pairs.num_seeds < MIN_SEEDS or _has_lost_many_runs(verdict):
        return _judge_by_ranks(verdict, pairs, settings)
    return _judge(verdict, pairs, settings)


def _describe_data(variant_name: str, pairs: PairedScores | None, settings: _ComparisonSettings) -> Verdict:
    """Return a verdict without an outcome: the means, the run counts, and the confidence level of its interval."""
    metric = settings.metric
    means = [math.nan, math.nan]
    runs, lost = (0, 0), (0, 0)
    num_seeds = num_analysed = 0
    if pairs is not None:
        num_seeds, num_analysed = pairs.num_seeds, pairs.num_analysed_seeds
        total_weight = float(pairs.weights.sum())
        means = [
            float(totals.sum(axis=1).mean()) / total_weight if len(totals) else math.nan for totals in pairs.totals
        ]
        sides = pairs.list_run_scores(higher_is_better=True)
        runs = len(sides[0]), len(sides[1])
        lost = int(np.isnan(sides[0]).sum()), int(np.isnan(sides[1]).sum())
    difference = means[1] - means[0]
    return Verdict(
        variant=variant_name,
        outcome=TOO_FEW_SEEDS,
        metric=metric.name,
        equivalence_margin=settings.equivalence_margin,
        baseline_mean=metric.to_display_mean(means[0]),
        variant_mean=metric.to_display_mean(means[1]),
        effect=metric.to_display_effect(difference),
        is_better=metric.is_better(difference),
        interval=UNKNOWN_INTERVAL,
        seed_interval=UNKNOWN_INTERVAL,
        equivalence_interval=UNKNOWN_INTERVAL,
        confidence=settings.confidence,
        adjusted_confidence=settings.budget.compute_confidence(
            variant_name, max(num_analysed, MIN_SEEDS), settings.confidence
        ),
        seeds=num_seeds,
        examples=0 if pairs is None else pairs.num_examples,
        documents=0 if pairs is None else pairs.num_documents,
        dominant_noise_source="unknown",
        min_detectable_effect=math.nan,
        additional_seeds=None,
        additional_documents=None,
        summary="",
        comparisons=settings.budget.num_comparisons,
        is_paired=pairs is None or pairs.is_paired,
        runs=runs[1],
        lost_runs=lost[1],
        baseline_runs=runs[0],
        baseline_lost_runs=lost[0],
        max_failure_rate=compute_max_failure_rate(lost[1], runs[1]) if runs[1] else math.nan,
    )


def _build_verdict_without_interval(verdict: Verdict, pairs: PairedScores, metric: Metric) -> Verdict:
    """Return a verdict that only lists the scores, for fewer than three seeds."""
    missing = MIN_SEEDS - verdict.seeds
    means = [
        [metric.to_display_mean(float(total) / float(pairs.weights.sum())) for total in totals.sum(axis=1)]
        for totals in pairs.totals
    ]
    return replace(
        verdict,
        additional_seeds=missing,
        reason=f"run {phrasing.format_more(missing, 'seed')}",
        summary=phrasing.format_too_few_seeds(verdict, *means),
    )


def _has_lost_many_runs(verdict: Verdict) -> bool:
    """Return whether more than a quarter of all runs were lost, as many as if one side alone lost more than half.

    The combined number of lost runs does not depend on which side fails more often, so choosing the test by it does not
    favour either outcome.
    """
    num_lost, num_runs = verdict.lost_runs + verdict.baseline_lost_runs, verdict.runs + verdict.baseline_runs
    return num_lost > MAX_LOST_SHARE * num_runs


def _judge_by_ranks(verdict: Verdict, pairs: PairedScores, settings: _ComparisonSettings) -> Verdict:
    """Return the verdict for the case that many runs were lost, or that fewer than three pairs are left.

    An interval would describe too few of the runs. Instead, a rank-sum test in which lost runs rank worst decides, at
    the error rate of this analysis.
    """
    baseline, variant = pairs.list_run_scores(higher_is_better=not settings.metric.lower_is_better)
    variant_p, baseline_p = (
        2 * compute_worst_rank_p_value(better, worse, is_paired=False)
        for better, worse in ((variant, baseline), (baseline, variant))
    )
    max_p_value = 1 - verdict.adjusted_confidence
    outcome = HELPED if variant_p <= max_p_value else HURT if baseline_p <= max_p_value else CANNOT_TELL
    verdict = replace(verdict, outcome=outcome, is_better=variant_p < baseline_p)
    budget = settings.budget.add_analysis(verdict.variant, pairs.num_analysed_seeds)
    min_seeds = find_min_rank_test_seeds(
        lambda seeds: 1 - budget.compute_confidence(verdict.variant, seeds, settings.confidence)
    )
    return replace(
        verdict,
        reason=phrasing.explain_lost_runs(verdict) if outcome == CANNOT_TELL else "",
        summary=phrasing.format_rank_test(verdict, min(variant_p, baseline_p, 1.0), min_seeds),
    )


def _judge(verdict: Verdict, pairs: PairedScores, settings: _ComparisonSettings) -> Verdict:
    """Return the verdict with its interval and outcome."""
    metric, level = settings.metric, verdict.adjusted_confidence
    components = _estimate_components(pairs, metric)
    difference = float(components.difference[0])
    # A rounded score cannot show a difference smaller than its step.
    min_half_width = pairs.resolution * (1 + RESOLUTION_TOLERANCE)
    half_width, seed_half_width, equivalence_half_width = (
        np.maximum(interval.half_width, min_half_width)
        for interval in (
            compute_interval(components, level),
            compute_seed_interval(components, level),
            compute_interval(components, 2 * level - 1),
        )
    )
    outcome = decide_outcomes(
        components.difference,
        half_width,
        equivalence_half_width,
        settings.equivalence_band,
        lower_is_better=metric.lower_is_better,
    )[0]
    settled_outcome = _consider_lost_runs(outcome, verdict, pairs, metric)
    additional_data = AdditionalData()
    if outcome == CANNOT_TELL:
        budget = settings.budget.add_analysis(verdict.variant, pairs.num_analysed_seeds)
        num_lost = pairs.num_analysed_seeds - pairs.num_seeds
        additional_data = estimate_additional_data(
            components,
            lambda seeds: budget.compute_confidence(verdict.variant, seeds + num_lost, settings.confidence),
            settings.equivalence_band,
            min_half_width,
        )

    def to_display_interval(half_width: np.ndarray) -> Interval:
        display = metric.to_display_effect
        return display(difference - float(half_width[0])), display(difference + float(half_width[0]))

    verdict = replace(
        verdict,
        outcome=settled_outcome,
        interval=to_display_interval(half_width),
        seed_interval=to_display_interval(seed_half_width),
        equivalence_interval=to_display_interval(equivalence_half_width),
        dominant_noise_source=_find_dominant_noise_source(components),
        min_detectable_effect=metric.to_display_effect(
            max(compute_min_detectable_effect(components, level), min_half_width)
        ),
        additional_seeds=additional_data.seeds if additional_data.is_either_sufficient else None,
        additional_documents=additional_data.documents if additional_data.is_either_sufficient else None,
    )
    is_blocked = settled_outcome != outcome
    return replace(
        verdict,
        summary=phrasing.format_summary(verdict, additional_data, pairs.unused_seeds),
        reason=phrasing.explain_lost_runs(verdict) if is_blocked else phrasing.format_remedy(verdict, additional_data),
    )


def _estimate_components(pairs: PairedScores, metric: Metric) -> VarianceComponents:
    """Return the seed and document variance components of the difference between two variants."""
    first, second = pairs.totals
    weights = pairs.sum_by_document(pairs.weights)[None]
    if not pairs.is_paired:
        return estimate_unpaired_components(
            pairs.sum_by_document(first)[None], pairs.sum_by_document(second)[None], weights
        )
    differences = second - first
    is_binary = metric.name == "accuracy" and bool(np.isin(differences, (-1.0, 0.0, 1.0)).all())
    has_rare_differences = is_binary and pairs.num_examples > 1
    return estimate_variance_components(
        pairs.sum_by_document(differences)[None],
        weights,
        compute_rare_difference_variance(differences[None]) if has_rare_differences else None,
    )


def _consider_lost_runs(
    outcome: VerdictOutcome, verdict: Verdict, pairs: PairedScores, metric: Metric
) -> VerdictOutcome:
    """Return the outcome, or "cannot tell" if it may be an artefact of losing bad runs.

    A side that lost more runs must also be better in a test in which lost runs rank worst. Equivalence requires that
    both sides lost the same number of runs.
    """
    if verdict.lost_runs == verdict.baseline_lost_runs:
        return outcome
    if outcome == NO_PRACTICAL_DIFFERENCE:
        return CANNOT_TELL
    baseline, variant = pairs.list_run_scores(higher_is_better=not metric.lower_is_better)
    variant_lost_more = verdict.lost_runs > verdict.baseline_lost_runs
    if outcome != (HELPED if variant_lost_more else HURT):
        return outcome
    better, worse = (variant, baseline) if variant_lost_more else (baseline, variant)
    p_value = compute_worst_rank_p_value(better, worse, is_paired=pairs.is_paired)
    return outcome if p_value <= MAX_RANK_TEST_P_VALUE else CANNOT_TELL


def _find_dominant_noise_source(components: VarianceComponents) -> NoiseSource:
    """Return the larger source of variance in a comparison: seeds or documents."""
    seeds, documents = float(components.seed_variance[0]), float(components.document_variance[0])
    if components.num_documents == 1 or seeds + documents == 0:
        return "unknown"
    return "seeds" if seeds >= documents else "documents"
