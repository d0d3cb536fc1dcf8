"""Verdicts from scores: pair, estimate the noise, apply the rule, and estimate the data needed to settle open verdicts.

The difference d is a ratio of totals, variant minus baseline, paired by seed and example. For perplexity it is the
difference of the mean negative log-likelihood per token, displayed as the relative change exp(d) - 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from headtohead.errors import ScoresError
from headtohead.verdict import phrasing
from headtohead.verdict.interim import compute_analysis_confidence
from headtohead.verdict.phrasing import AdditionalData
from headtohead.verdict.record import Interval, NoiseSource, Verdict
from headtohead.verdict.rule import (
    CANNOT_TELL,
    NOT_COMPARABLE,
    QUICK_LOOK,
    Metric,
    MetricName,
    decide_outcomes,
    get_metric,
)
from headtohead.verdict.scores import PairedScores, Scores, pair_scores
from headtohead.verdict.statistics import (
    TARGET_POWER,
    IntervalEstimate,
    VarianceComponents,
    compute_detection_power,
    compute_equivalence_power,
    compute_interval,
    compute_min_detectable_effect,
    compute_rare_difference_variance,
    compute_seed_interval,
    estimate_variance_components,
)

NOT_WITHHELD: Mapping[str, Sequence[str]] = MappingProxyType({})
UNKNOWN_INTERVAL: Interval = (math.nan, math.nan)
MAX_SEEDS = 1_000
MAX_DOCUMENTS = 10_000_000


@dataclass(frozen=True)
class _ComparisonSettings:
    """Settings that apply to all variants."""

    metric: Metric
    equivalence_margin: float
    equivalence_band: tuple[float, float]
    confidence: float
    adjusted_confidence: float
    final_adjusted_confidence: float

    @property
    def equivalence_confidence(self) -> float:
        return 2 * self.adjusted_confidence - 1

    def to_display_interval(self, difference: float, interval: IntervalEstimate) -> Interval:
        half_width = float(interval.half_width[0])
        display = self.metric.to_display_effect
        return display(difference - half_width), display(difference + half_width)


def compare_scores(
    baseline: Scores | Mapping[str, Scores],
    variants: Mapping[str, Scores],
    *,
    metric: MetricName,
    equivalence_margin: float,
    withheld: Mapping[str, Sequence[str]] = NOT_WITHHELD,
    confidence: float = 0.95,
    interim_analyses: Sequence[int] = (),
    current_analysis: int | None = None,
) -> list[Verdict]:
    """Return a verdict for each variant and for each name in `withheld`, whose verdict is withheld for these reasons.

    `baseline` may hold other scores of the baseline for each variant, such as scores per byte for another tokenizer.
    `equivalence_margin` is relative for perplexity (0.01 is 1 %), a share for accuracy (0.01 is one point), and in the
    unit of the score otherwise. With `interim_analyses` (see `plan_interim_analyses`), intervals are widened so that
    they stay valid if seeds are added until the verdict is settled. `current_analysis` is the planned number of seeds
    of this analysis, by default the one that the common seeds reach.
    """
    scale = get_metric(metric)
    if not 0.5 <= confidence < 1:
        raise ScoresError(f"confidence must be at least 0.5 and below 1, got {confidence:g}")
    band = scale.compute_equivalence_band(equivalence_margin)
    baselines = dict.fromkeys(variants, baseline) if isinstance(baseline, Scores) else baseline
    for name, scores in [*(("baseline", scores) for scores in baselines.values()), *variants.items()]:
        _check_score_range(name, scores, scale)
    pairs = {name: pair_scores(name, baselines[name], scores) for name, scores in variants.items()}
    judged = [name for name in variants if name not in withheld]
    current_confidence = final_confidence = confidence
    if interim_analyses:
        if current_analysis is None:
            num_seeds = max((len(pairs[name].seeds) for name in judged), default=interim_analyses[0])
            current_analysis = _find_planned_analysis(num_seeds, interim_analyses)
        current_confidence = compute_analysis_confidence(current_analysis, interim_analyses, confidence)
        final_confidence = compute_analysis_confidence(interim_analyses[-1], interim_analyses, confidence)
    num_comparisons = max(len(judged), 1)  # Bonferroni correction
    settings = _ComparisonSettings(
        scale,
        equivalence_margin,
        band,
        confidence,
        adjusted_confidence=1 - (1 - current_confidence) / num_comparisons,
        final_adjusted_confidence=1 - (1 - final_confidence) / num_comparisons,
    )
    names = [*variants, *(name for name in withheld if name not in variants)]
    return [_build_verdict(name, pairs.get(name), settings, withheld.get(name, ())) for name in names]


def remove_judgements(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Return the verdicts of a quick look: differences without a judgement. Reasons for withholding are kept."""
    return [
        verdict
        if verdict.outcome == NOT_COMPARABLE
        else replace(
            verdict,
            outcome=QUICK_LOOK,
            summary=phrasing.format_quick_look(verdict),
            reason="",
            additional_seeds=None,
            additional_documents=None,
        )
        for verdict in verdicts
    ]


def _find_planned_analysis(num_seeds: int, interim_analyses: Sequence[int]) -> int:
    """Return the planned analysis with at least this many seeds, since some seeds may have failed."""
    return next((planned for planned in interim_analyses if planned >= num_seeds), interim_analyses[-1])


def _check_score_range(variant_name: str, scores: Scores, metric: Metric) -> None:
    if metric.name == "accuracy" and not ((scores.values >= 0) & (scores.values <= scores.weights)).all():
        worst = scores.values.flat[int(np.argmax(np.abs(scores.values - scores.weights / 2)))]
        raise ScoresError(
            f"{variant_name}: accuracy must be between 0 and 1, got {worst:g}; divide percentages by 100, or use the "
            "metric 'score'"
        )


def _build_verdict(
    variant_name: str, paired_scores: PairedScores | None, settings: _ComparisonSettings, withheld: Sequence[str]
) -> Verdict:
    """Return the verdict on one variant. `paired_scores` is None if variant and baseline share no seed."""
    if withheld or paired_scores is None or len(paired_scores.seeds) < 2:
        return _build_verdict_without_interval(variant_name, paired_scores, settings, withheld)
    components = _estimate_components(paired_scores, settings.metric)
    interval = compute_interval(components, settings.adjusted_confidence)
    equivalence_interval = compute_interval(components, settings.equivalence_confidence)
    metric, difference = settings.metric, float(components.difference[0])
    outcome = decide_outcomes(
        components.difference,
        interval.half_width,
        equivalence_interval.half_width,
        settings.equivalence_band,
        lower_is_better=metric.lower_is_better,
    )[0]
    additional_data = _estimate_additional_data(components, settings) if outcome == CANNOT_TELL else AdditionalData()
    total_weight = paired_scores.weights.sum()
    num_seeds = len(paired_scores.seeds)
    verdict = Verdict(
        variant=variant_name,
        outcome=outcome,
        metric=metric.name,
        equivalence_margin=settings.equivalence_margin,
        baseline_mean=metric.to_display_mean(float(paired_scores.baseline_totals.sum() / total_weight / num_seeds)),
        variant_mean=metric.to_display_mean(float(paired_scores.variant_totals.sum() / total_weight / num_seeds)),
        effect=metric.to_display_effect(difference),
        is_better=metric.is_better(difference),
        interval=settings.to_display_interval(difference, interval),
        seed_interval=settings.to_display_interval(
            difference, compute_seed_interval(components, settings.adjusted_confidence)
        ),
        equivalence_interval=settings.to_display_interval(difference, equivalence_interval),
        confidence=settings.confidence,
        adjusted_confidence=settings.adjusted_confidence,
        seeds=num_seeds,
        examples=paired_scores.num_examples,
        documents=components.num_documents,
        dominant_noise_source=_find_dominant_noise_source(components),
        min_detectable_effect=metric.to_display_effect(
            compute_min_detectable_effect(components, settings.adjusted_confidence)
        ),
        additional_seeds=additional_data.seeds if additional_data.is_either_sufficient else None,
        additional_documents=additional_data.documents if additional_data.is_either_sufficient else None,
        summary="",
    )
    return replace(
        verdict,
        summary=phrasing.format_summary(verdict, additional_data, paired_scores.unpaired_seeds),
        reason=phrasing.format_remedy(verdict, additional_data),
    )


def _estimate_components(paired_scores: PairedScores, metric: Metric) -> VarianceComponents:
    differences, weights = paired_scores.differences, paired_scores.weights
    is_binary = metric.name == "accuracy" and bool(np.isin(differences, (-1.0, 0.0, 1.0)).all())
    has_rare_differences = is_binary and paired_scores.num_examples > 1
    return estimate_variance_components(
        paired_scores.sum_by_document(differences)[None],
        paired_scores.sum_by_document(weights)[None],
        compute_rare_difference_variance(differences[None]) if has_rare_differences else None,
    )


def _build_verdict_without_interval(
    variant_name: str, paired_scores: PairedScores | None, settings: _ComparisonSettings, withheld: Sequence[str]
) -> Verdict:
    """Return the verdict that is withheld, or on a variant with fewer than two seeds."""
    metric = settings.metric
    num_seeds = 0 if paired_scores is None else len(paired_scores.seeds)
    baseline_mean = variant_mean = math.nan
    if paired_scores is not None and num_seeds:
        total_weight = float(paired_scores.weights.sum()) * num_seeds
        baseline_mean = float(paired_scores.baseline_totals.sum()) / total_weight
        variant_mean = float(paired_scores.variant_totals.sum()) / total_weight
    difference = variant_mean - baseline_mean
    reason = ", ".join(withheld) or phrasing.explain_too_few_seeds(num_seeds)
    format_outcome = phrasing.format_not_comparable if withheld else phrasing.format_cannot_tell
    return Verdict(
        variant=variant_name,
        outcome=NOT_COMPARABLE if withheld else CANNOT_TELL,
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
        adjusted_confidence=settings.adjusted_confidence,
        seeds=num_seeds,
        examples=0 if paired_scores is None else paired_scores.num_examples,
        documents=0 if paired_scores is None else paired_scores.num_documents,
        dominant_noise_source="unknown",
        min_detectable_effect=math.nan,
        additional_seeds=None if withheld else 2 - num_seeds,
        additional_documents=None,
        summary=format_outcome(variant_name, reason),
        reason=reason,
        withheld=tuple(withheld),
    )


def _find_dominant_noise_source(components: VarianceComponents) -> NoiseSource:
    """Return the larger source of variance."""
    seeds, documents = float(components.seed_variance[0]), float(components.document_variance[0])
    if components.num_documents == 1 or seeds + documents == 0:
        return "unknown"
    return "seeds" if seeds >= documents else "documents"


def _estimate_additional_data(components: VarianceComponents, settings: _ComparisonSettings) -> AdditionalData:
    """Return how many more seeds or documents settle the verdict with a probability of 80 % if the effect is as
    estimated.

    If neither alone is sufficient, both are increased by the same factor.
    """
    seeds, documents = components.num_seeds, components.num_documents

    def settles(seeds: int, documents: int) -> bool:
        return _has_target_power(components.extrapolate(seeds, documents), settings)

    more_seeds = _find_smallest_increase(lambda n: settles(n, documents), seeds, MAX_SEEDS)
    if documents == 1:
        return AdditionalData(more_seeds, None)
    more_documents = _find_smallest_increase(lambda n: settles(seeds, n), documents, MAX_DOCUMENTS)
    if more_seeds is not None or more_documents is not None:
        return AdditionalData(more_seeds, more_documents)
    together = _find_smallest_increase(lambda n: settles(n, math.ceil(documents * n / seeds)), seeds, MAX_SEEDS)
    if together is None:
        return AdditionalData()
    return AdditionalData(together, math.ceil(documents * together / seeds), is_either_sufficient=False)


def _has_target_power(components: VarianceComponents, settings: _ComparisonSettings) -> bool:
    difference, confidence = float(components.difference[0]), settings.final_adjusted_confidence
    if compute_detection_power(components, difference, confidence) >= TARGET_POWER:
        return True
    return (
        compute_equivalence_power(components, difference, 2 * confidence - 1, settings.equivalence_band) >= TARGET_POWER
    )


def _find_smallest_increase(is_sufficient: Callable[[int], bool], current: int, maximum: int) -> int | None:
    """Return the smallest sufficient increase, to within 1 %; None if `maximum` is not sufficient."""
    if not is_sufficient(maximum):
        return None
    too_few, enough = current, current + 1
    while not is_sufficient(enough):
        too_few, enough = enough, min(2 * enough, maximum)
    while enough - too_few > max(1, enough // 100):
        middle = (too_few + enough) // 2
        too_few, enough = (too_few, middle) if is_sufficient(middle) else (middle, enough)
    return enough - current
