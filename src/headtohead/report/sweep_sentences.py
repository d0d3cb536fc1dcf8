"""Phrase a sweep's findings: in how many cells a variant is better, the prediction interval, and trends."""

from __future__ import annotations

import math
from collections.abc import Mapping

from headtohead.experiment.schemas import SweepFindings, SweepSummary, Trend, TrendLevel
from headtohead.presentation import number_format
from headtohead.verdict.prediction_interval import MIN_CORPORA


def shorten_axis_name(axis: str) -> str:
    """Return the last part of a dotted setting: lr for training.optimizer.lr."""
    return axis.rpartition(".")[2]


def format_cell_coordinates(coordinates: Mapping[str, str]) -> str:
    """Format the values of a sweep cell: sotu, lr 0.001, 500 steps."""
    return ", ".join(
        label if axis in ("corpus", "size", "training.budget") else f"{shorten_axis_name(axis)} {label}"
        for axis, label in coordinates.items()
    )


def describe_sweep(sweep: SweepFindings, metric: str) -> dict[str, list[str]]:
    """Return the sentences that summarize each variant over the cells of a sweep, by variant."""
    return {summary.variant: describe_sweep_summary(summary, metric) for summary in sweep.summaries}


def describe_sweep_summary(summary: SweepSummary, metric: str) -> list[str]:
    """Return sentences that summarize one variant over the cells of a sweep."""
    if not summary.cells:
        return [f"{summary.variant} cannot be compared in any cell so far."]
    direction = "lower" if metric in number_format.LOWER_IS_BETTER_METRICS else "higher"
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in summary.outcomes.items())
    cells = "1 cell" if summary.cells == 1 else f"{summary.cells} cells"
    change_sentence = (
        f"{summary.variant} has {direction} {metric} than the baseline in {summary.better} of {cells} ({outcomes}). "
        f"The mean change is {number_format.format_effect(metric, summary.effect)}."
    )
    trend_sentences = [describe_trend(trend, metric) for trend in summary.trends]
    return [change_sentence, _describe_prediction_interval(summary, metric), *trend_sentences]


def _describe_prediction_interval(summary: SweepSummary, metric: str) -> str:
    """Return a sentence with the prediction interval for a new corpus, or the reason why there is none."""
    num_corpora = len(summary.corpora)
    if summary.prediction is not None:
        interval = number_format.format_effect_interval(metric, summary.prediction)
        return (
            f"On a new corpus of this kind, the same experiment would give a change of {interval} (95 % prediction "
            f"interval from {num_corpora} corpora)."
        )
    if num_corpora == 2:
        return f"A prediction for a new corpus needs at least {MIN_CORPORA} corpora, and this sweep has 2."
    return "All cells use the same corpus, so there is no prediction for a new one."


def describe_trend(trend: Trend, metric: str) -> str:
    """Return sentences on the change of the effect along an axis, and on where its sign becomes unclear."""
    interval = number_format.format_effect_interval(metric, trend.interval)
    per_doubling = f"{number_format.format_effect(metric, trend.per_doubling)} per doubling (95 % interval {interval})"
    if not trend.levels:
        return (
            f"Over all corpora, the change moves by {per_doubling} of the {trend.unit}: "
            f"{_describe_trend_direction(trend, '')}."
        )
    first, last = trend.levels[0], trend.levels[-1]
    location = f" on {trend.corpus}" if trend.corpus else ""
    gain = "advantage" if number_format.is_improvement(metric, first.effect) else "disadvantage"
    sentence = (
        f"From {number_format.format_count(round(first.x))} to {number_format.format_count(round(last.x))} {trend.unit}"
        f"{location}, the change goes from {number_format.format_effect(metric, first.effect)} to "
        f"{number_format.format_effect(metric, last.effect)}, {per_doubling}: {_describe_trend_direction(trend, gain)}."
    )
    return f"{sentence} {_describe_unclear_sign(trend)}".strip()


def _describe_trend_direction(trend: Trend, gain: str) -> str:
    """Return a clause on the direction of a trend along an axis of a sweep, such as "the advantage shrinks"."""
    subject = f"the {gain}" if gain else "the effect"
    if trend.levels and _is_sign_reversed(trend.levels[0], trend.levels[-1]):
        return f"{subject} is reversed"
    return {
        "grows": f"{subject} grows",
        "shrinks": f"{subject} shrinks",
        "stays": f"{subject} does not change",
        "cannot tell": f"it is unclear whether {subject} grows or shrinks",
    }[trend.direction]


def _is_sign_reversed(first: TrendLevel, last: TrendLevel) -> bool:
    """Return whether an effect is clear at both ends of a sweep's axis and has opposite signs."""
    is_clear = all(
        math.isfinite(bound) and level.interval[0] * level.interval[1] > 0
        for level in (first, last)
        for bound in level.interval
    )
    return is_clear and first.effect * last.effect < 0


def _describe_unclear_sign(trend: Trend) -> str:
    """Return a sentence on the x where the sign of the effect becomes unclear, or an empty string."""
    if trend.unclear_from is None:
        return ""
    unclear_from = f"{number_format.format_count(round(trend.unclear_from))} {trend.unit}"
    if trend.is_extrapolated:
        return f"Extrapolated, its sign becomes unclear at about {unclear_from}."
    if trend.unclear_from == trend.levels[0].x:
        return "Its sign is unclear at every tested value."
    return f"Its sign is unclear from {unclear_from}."
