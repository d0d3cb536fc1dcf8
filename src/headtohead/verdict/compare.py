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
from headtohead.verdict.interim import confidence_at
from headtohead.verdict.phrasing import Need
from headtohead.verdict.record import Interval, Noise, Verdict
from headtohead.verdict.rule import BARRED, UNSURE, Metric, MetricName, decide, metric_named
from headtohead.verdict.scores import Pair, Scores, pair
from headtohead.verdict.statistics import (
    POWER,
    Components,
    Spread,
    components,
    detectable,
    power_to_agree,
    power_to_differ,
    rare,
    spread,
    spread_of_seeds,
)

NONE_FAILED: Mapping[str, str] = MappingProxyType({})
UNKNOWN: Interval = (math.nan, math.nan)
MOST_SEEDS = 1_000
MOST_EXAMPLES = 10_000_000


@dataclass(frozen=True)
class _Question:
    """What is asked of every variant alike."""

    metric: Metric
    matters: float
    band: tuple[float, float]
    confidence: float
    level: float
    final_level: float

    @property
    def level_90(self) -> float:
        return 2 * self.level - 1

    def shown(self, d: float, spread: Spread) -> Interval:
        half = float(spread.half[0])
        return self.metric.shown(d - half), self.metric.shown(d + half)


def compare(
    baseline: Scores,
    variants: Mapping[str, Scores],
    *,
    metric: MetricName,
    matters: float,
    failed: Mapping[str, str] = NONE_FAILED,
    confidence: float = 0.95,
    looks: Sequence[int] = (),
    look: int | None = None,
) -> list[Verdict]:
    """One verdict for each variant, and for each that `failed` an audit: name -> reason ("reads the future").

    `matters` is relative for perplexity (0.01 = 1 %), a share for accuracy (0.01 = one point), and a figure in the
    unit of the score otherwise. With `looks` (see `sequential.schedule`) the verdict is one of several looks, and its
    intervals are widened to stay valid: `look` is the planned number of seeds of this one, by default the planned
    number that the seeds in common reach.
    """
    scale = metric_named(metric)
    if not 0.5 <= confidence < 1:
        raise ScoresError(f"confidence = {confidence:g}; allowed: from 0.5 up to, but not including, 1")
    band = scale.band(matters)
    for name, scores in {"baseline": baseline, **variants}.items():
        _check_range(name, scores, scale)
    pairs = {name: pair(name, baseline, scores) for name, scores in variants.items()}
    judged = [name for name in variants if name not in failed]
    now, last = confidence, confidence
    if looks:
        most = max((len(pairs[name].seeds) for name in judged), default=looks[0])
        now = confidence_at(_planned(most, looks) if look is None else look, looks, confidence)
        last = confidence_at(looks[-1], looks, confidence)
    share = max(len(judged), 1)  # Bonferroni over the variants that are judged
    question = _Question(scale, matters, band, confidence, 1 - (1 - now) / share, 1 - (1 - last) / share)
    names = [*variants, *(name for name in failed if name not in variants)]
    return [_verdict(name, pairs.get(name), question, failed.get(name)) for name in names]


def _planned(seeds: int, looks: Sequence[int]) -> int:
    """The look that so many seeds belong to; a few may have been lost on the way."""
    return next((look for look in looks if look >= seeds), looks[-1])


def _check_range(name: str, scores: Scores, metric: Metric) -> None:
    if metric.name == "accuracy" and not ((scores.values >= 0) & (scores.values <= scores.weights)).all():
        worst = scores.values.flat[int(np.argmax(np.abs(scores.values - scores.weights / 2)))]
        raise ScoresError(
            f"{name}: an accuracy of {worst:g} is outside 0 to 1; give shares of 1, not per cent, "
            "or choose the metric 'score'"
        )


def _verdict(name: str, paired: Pair | None, question: _Question, failure: str | None) -> Verdict:
    if failure is not None or paired is None or len(paired.seeds) < 2:
        return _without_interval(name, paired, question, failure)
    differences, weights = paired.differences[None], paired.weights[None]
    counts = question.metric.name == "accuracy" and bool(np.isin(differences, (-1.0, 0.0, 1.0)).all())
    parts = components(differences, weights, rare(differences) if counts and paired.examples > 1 else None)
    wide, wide_90 = spread(parts, question.level), spread(parts, question.level_90)
    metric, d = question.metric, float(parts.difference[0])
    word = decide(parts.difference, wide.half, wide_90.half, question.band, lower_is_better=metric.lower_is_better)[0]
    need = _need(parts, question) if word == UNSURE else Need()
    verdict = Verdict(
        variant=name,
        word=word,
        metric=metric.name,
        matters=question.matters,
        baseline_mean=metric.mean(float(paired.baseline.sum() / paired.weights.sum() / len(paired.seeds))),
        mean=metric.mean(float(paired.variant.sum() / paired.weights.sum() / len(paired.seeds))),
        effect=metric.shown(d),
        better=metric.is_better(d),
        interval=question.shown(d, wide),
        interval_seeds=question.shown(d, spread_of_seeds(parts, question.level)),
        interval_90=question.shown(d, wide_90),
        confidence=question.confidence,
        level=question.level,
        seeds=len(paired.seeds),
        examples=paired.examples,
        noise=_noise(parts),
        detectable=metric.shown(detectable(parts, question.level)),
        more_seeds=need.seeds if need.either else None,
        more_examples=need.examples if need.either else None,
        sentence="",
        reason=phrasing.remedy(need),
    )
    return replace(verdict, sentence=phrasing.sentence(verdict, need, paired.left_out))


def _without_interval(name: str, paired: Pair | None, question: _Question, failure: str | None) -> Verdict:
    """A failed audit takes the verdict away, and from fewer than two seeds there is none to take."""
    metric = question.metric
    seeds = 0 if paired is None else len(paired.seeds)
    baseline_mean = mean = d = math.nan
    if paired is not None and seeds:
        total = float(paired.weights.sum()) * seeds
        baseline_mean, mean = float(paired.baseline.sum()) / total, float(paired.variant.sum()) / total
        d = mean - baseline_mean
    reason = failure or phrasing.too_few(seeds)
    return Verdict(
        variant=name,
        word=UNSURE if failure is None else BARRED,
        metric=metric.name,
        matters=question.matters,
        baseline_mean=metric.mean(baseline_mean),
        mean=metric.mean(mean),
        effect=metric.shown(d),
        better=metric.is_better(d),
        interval=UNKNOWN,
        interval_seeds=UNKNOWN,
        interval_90=UNKNOWN,
        confidence=question.confidence,
        level=question.level,
        seeds=seeds,
        examples=0 if paired is None else paired.examples,
        noise="unknown",
        detectable=math.nan,
        more_seeds=2 - seeds if failure is None else None,
        more_examples=None,
        sentence=phrasing.barred(name, reason) if failure is not None else phrasing.unmeasured(name, reason),
        reason=reason,
    )


def _noise(parts: Components) -> Noise:
    """Which source is the larger: what more seeds would lessen, or what they would not."""
    seeds, examples = float(parts.of_seeds[0]), float(parts.of_examples[0])
    if parts.examples == 1 or seeds + examples == 0:
        return "unknown"
    return "seeds" if seeds >= examples else "examples"


def _need(parts: Components, question: _Question) -> Need:
    """How many more seeds, or examples, settle it four times in five if the effect is what it now looks like.

    Where neither alone is enough (`either` is false), both grow together by the same factor.
    """
    seeds, examples = parts.seeds, parts.examples

    def settles(seeds: int, examples: int) -> bool:
        return _settles(parts.resized(seeds, examples), question)

    more_seeds = _fewest(lambda n: settles(n, examples), seeds, MOST_SEEDS)
    if examples == 1:
        return Need(more_seeds, None)
    more_examples = _fewest(lambda n: settles(seeds, n), examples, MOST_EXAMPLES)
    if more_seeds is not None or more_examples is not None:
        return Need(more_seeds, more_examples)
    together = _fewest(lambda n: settles(n, math.ceil(examples * n / seeds)), seeds, MOST_SEEDS)
    if together is None:
        return Need()
    return Need(together, math.ceil(examples * together / seeds), either=False)


def _settles(parts: Components, question: _Question) -> bool:
    d, level = float(parts.difference[0]), question.final_level
    if power_to_differ(parts, d, level) >= POWER:
        return True
    return power_to_agree(parts, d, 2 * level - 1, question.band) >= POWER


def _fewest(settles: Callable[[int], bool], have: int, most: int) -> int | None:
    """The fewest more than `have` that settle it, to one in a hundred; None where `most` are not enough."""
    if not settles(most):
        return None
    too_few, enough = have, have + 1
    while not settles(enough):
        too_few, enough = enough, min(2 * enough, most)
    while enough - too_few > max(1, enough // 100):
        middle = (too_few + enough) // 2
        too_few, enough = (too_few, middle) if settles(middle) else (middle, enough)
    return enough - have
