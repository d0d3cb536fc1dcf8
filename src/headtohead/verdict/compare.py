"""From scores to verdicts: pair, measure the noise, apply the rule, say what would settle an open question.

The difference d is a ratio of totals, variant minus baseline, paired by seed and example. For perplexity it is the
difference of the mean negative log-likelihood per token, shown as the relative change exp(d) - 1.
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
from headtohead.verdict.rule import CANNOT_TELL, NOT_COMPARABLE, Metric, MetricName, decide_outcomes, get_metric
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

NO_FAILED_AUDITS: Mapping[str, str] = MappingProxyType({})
UNKNOWN_INTERVAL: Interval = (math.nan, math.nan)
MAX_SEEDS = 1_000
MAX_EXAMPLES = 10_000_000


@dataclass(frozen=True)
class _ComparisonSettings:
    """What is asked of every variant alike."""

    metric: Metric
    matters: float
    band: tuple[float, float]
    confidence: float
    level: float
    final_adjusted_confidence: float

    @property
    def equivalence_confidence(self) -> float:
        return 2 * self.level - 1

    def shown(self, difference: float, interval: IntervalEstimate) -> Interval:
        half = float(interval.half[0])
        return self.metric.shown(difference - half), self.metric.shown(difference + half)


def compare_scores(
    baseline: Scores,
    variants: Mapping[str, Scores],
    *,
    metric: MetricName,
    equivalence_margin: float,
    failed_audits: Mapping[str, str] = NO_FAILED_AUDITS,
    confidence: float = 0.95,
    interim_analyses: Sequence[int] = (),
    current_analysis: int | None = None,
) -> list[Verdict]:
    """One verdict for each variant, and for each that `failed` an audit: name -> reason ("reads the future").

    `matters` is relative for perplexity (0.01 = 1 %), a share for accuracy (0.01 = one point), and a figure in the
    unit of the score otherwise. With `looks` (see `sequential.schedule`) the verdict is one of several looks, and its
    intervals are widened to stay valid: `look` is the planned number of seeds of this one, by default the planned
    number that the seeds in common reach.
    """
    scale = get_metric(metric)
    if not 0.5 <= confidence < 1:
        raise ScoresError(f"confidence = {confidence:g}; allowed: from 0.5 up to, but not including, 1")
    band = scale.band(equivalence_margin)
    for name, scores in {"baseline": baseline, **variants}.items():
        _check_score_range(name, scores, scale)
    pairs = {name: pair_scores(name, baseline, scores) for name, scores in variants.items()}
    judged = [name for name in variants if name not in failed_audits]
    now, last = confidence, confidence
    if interim_analyses:
        most = max((len(pairs[name].seeds) for name in judged), default=interim_analyses[0])
        now = compute_analysis_confidence(
            _find_planned_analysis(most, interim_analyses) if current_analysis is None else current_analysis,
            interim_analyses,
            confidence,
        )
        last = compute_analysis_confidence(interim_analyses[-1], interim_analyses, confidence)
    share = max(len(judged), 1)  # Bonferroni over the variants that are judged
    question = _ComparisonSettings(
        scale, equivalence_margin, band, confidence, 1 - (1 - now) / share, 1 - (1 - last) / share
    )
    names = [*variants, *(name for name in failed_audits if name not in variants)]
    return [_build_verdict(name, pairs.get(name), question, failed_audits.get(name)) for name in names]


def _find_planned_analysis(num_seeds: int, interim_analyses: Sequence[int]) -> int:
    """The look that so many seeds belong to; a few may have been lost on the way."""
    return next((look for look in interim_analyses if look >= num_seeds), interim_analyses[-1])


def _check_score_range(variant_name: str, scores: Scores, metric: Metric) -> None:
    if metric.name == "accuracy" and not ((scores.values >= 0) & (scores.values <= scores.weights)).all():
        worst = scores.values.flat[int(np.argmax(np.abs(scores.values - scores.weights / 2)))]
        raise ScoresError(
            f"{variant_name}: an accuracy of {worst:g} is outside 0 to 1; give shares of 1, not per cent, "
            "or choose the metric 'score'"
        )


def _build_verdict(
    variant_name: str, paired_scores: PairedScores | None, settings: _ComparisonSettings, audit_failure: str | None
) -> Verdict:
    if audit_failure is not None or paired_scores is None or len(paired_scores.seeds) < 2:
        return _build_verdict_without_interval(variant_name, paired_scores, settings, audit_failure)
    differences, weights = paired_scores.differences[None], paired_scores.weights[None]
    counts = settings.metric.name == "accuracy" and bool(np.isin(differences, (-1.0, 0.0, 1.0)).all())
    parts = estimate_variance_components(
        differences,
        weights,
        compute_rare_difference_variance(differences) if counts and paired_scores.examples > 1 else None,
    )
    wide, wide_90 = compute_interval(parts, settings.level), compute_interval(parts, settings.equivalence_confidence)
    metric, d = settings.metric, float(parts.difference[0])
    word = decide_outcomes(
        parts.difference, wide.half, wide_90.half, settings.band, lower_is_better=metric.lower_is_better
    )[0]
    need = _estimate_additional_data(parts, settings) if word == CANNOT_TELL else AdditionalData()
    verdict = Verdict(
        variant=variant_name,
        word=word,
        metric=metric.name,
        matters=settings.matters,
        baseline_mean=metric.mean(
            float(paired_scores.baseline.sum() / paired_scores.weights.sum() / len(paired_scores.seeds))
        ),
        mean=metric.mean(float(paired_scores.variant.sum() / paired_scores.weights.sum() / len(paired_scores.seeds))),
        effect=metric.shown(d),
        better=metric.is_better(d),
        interval=settings.shown(d, wide),
        interval_seeds=settings.shown(d, compute_seed_interval(parts, settings.level)),
        interval_90=settings.shown(d, wide_90),
        confidence=settings.confidence,
        level=settings.level,
        seeds=len(paired_scores.seeds),
        examples=paired_scores.examples,
        noise=_find_dominant_noise_source(parts),
        detectable=metric.shown(compute_min_detectable_effect(parts, settings.level)),
        more_seeds=need.seeds if need.is_either_sufficient else None,
        more_examples=need.examples if need.is_either_sufficient else None,
        sentence="",
        reason=phrasing.format_remedy(need),
    )
    return replace(verdict, sentence=phrasing.format_summary(verdict, need, paired_scores.left_out))


def _build_verdict_without_interval(
    variant_name: str, paired_scores: PairedScores | None, settings: _ComparisonSettings, audit_failure: str | None
) -> Verdict:
    """A failed audit takes the verdict away, and from fewer than two seeds there is none to take."""
    metric = settings.metric
    seeds = 0 if paired_scores is None else len(paired_scores.seeds)
    baseline_mean = mean = d = math.nan
    if paired_scores is not None and seeds:
        total = float(paired_scores.weights.sum()) * seeds
        baseline_mean, mean = float(paired_scores.baseline.sum()) / total, float(paired_scores.variant.sum()) / total
        d = mean - baseline_mean
    reason = audit_failure or phrasing.explain_too_few_seeds(seeds)
    return Verdict(
        variant=variant_name,
        word=CANNOT_TELL if audit_failure is None else NOT_COMPARABLE,
        metric=metric.name,
        matters=settings.matters,
        baseline_mean=metric.mean(baseline_mean),
        mean=metric.mean(mean),
        effect=metric.shown(d),
        better=metric.is_better(d),
        interval=UNKNOWN_INTERVAL,
        interval_seeds=UNKNOWN_INTERVAL,
        interval_90=UNKNOWN_INTERVAL,
        confidence=settings.confidence,
        level=settings.level,
        seeds=seeds,
        examples=0 if paired_scores is None else paired_scores.examples,
        noise="unknown",
        detectable=math.nan,
        more_seeds=2 - seeds if audit_failure is None else None,
        more_examples=None,
        sentence=phrasing.format_not_comparable(variant_name, reason)
        if audit_failure is not None
        else phrasing.format_cannot_tell(variant_name, reason),
        reason=reason,
    )


def _find_dominant_noise_source(components: VarianceComponents) -> NoiseSource:
    """Which source is the larger: what more seeds would lessen, or what they would not."""
    seeds, examples = float(components.of_seeds[0]), float(components.of_examples[0])
    if components.examples == 1 or seeds + examples == 0:
        return "unknown"
    return "seeds" if seeds >= examples else "examples"


def _estimate_additional_data(components: VarianceComponents, settings: _ComparisonSettings) -> AdditionalData:
    """How many more seeds, or examples, settle it four times in five if the effect is what it now looks like.

    Where neither alone is enough (`either` is false), both grow together by the same factor.
    """
    seeds, examples = components.seeds, components.examples

    def settles(seeds: int, examples: int) -> bool:
        return _has_target_power(components.extrapolate(seeds, examples), settings)

    more_seeds = _find_smallest_increase(lambda n: settles(n, examples), seeds, MAX_SEEDS)
    if examples == 1:
        return AdditionalData(more_seeds, None)
    more_examples = _find_smallest_increase(lambda n: settles(seeds, n), examples, MAX_EXAMPLES)
    if more_seeds is not None or more_examples is not None:
        return AdditionalData(more_seeds, more_examples)
    together = _find_smallest_increase(lambda n: settles(n, math.ceil(examples * n / seeds)), seeds, MAX_SEEDS)
    if together is None:
        return AdditionalData()
    return AdditionalData(together, math.ceil(examples * together / seeds), is_either_sufficient=False)


def _has_target_power(components: VarianceComponents, settings: _ComparisonSettings) -> bool:
    d, level = float(components.difference[0]), settings.final_adjusted_confidence
    if compute_detection_power(components, d, level) >= TARGET_POWER:
        return True
    return compute_equivalence_power(components, d, 2 * level - 1, settings.band) >= TARGET_POWER


def _find_smallest_increase(is_sufficient: Callable[[int], bool], current: int, maximum: int) -> int | None:
    """The fewest more than `have` that settle it, to one in a hundred; None where `most` are not enough."""
    if not is_sufficient(maximum):
        return None
    too_few, enough = current, current + 1
    while not is_sufficient(enough):
        too_few, enough = enough, min(2 * enough, maximum)
    while enough - too_few > max(1, enough // 100):
        middle = (too_few + enough) // 2
        too_few, enough = (too_few, middle) if is_sufficient(middle) else (middle, enough)
    return enough - current
