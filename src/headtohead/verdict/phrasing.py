"""A verdict in plain words, with its numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from headtohead.verdict.record import Interval, Verdict
from headtohead.verdict.rule import HELPED, HURT, METRICS, SAME, UNSURE, Metric

VAST = 10.0  # a relative change of 1,000 % or more is not worth its digits


@dataclass(frozen=True)
class Need:
    """What would settle an open question: more seeds or more examples, either alone unless `either` is false."""

    seeds: int | None = None
    examples: int | None = None
    either: bool = True


def sentence(verdict: Verdict, need: Need, left_out: Sequence[int] = ()) -> str:
    """The verdict, the effect, the interval that decided, what it rests on, and what would settle it."""
    metric, name = METRICS[verdict.metric], verdict.variant
    digits = _digits(metric, verdict.interval)
    found = f"{metric.name} {_change(metric, verdict.effect, digits)}"
    rests = f"{verdict.seeds} seeds" + (f", {verdict.examples:,} examples" if verdict.examples > 1 else "")
    wide = f"{_per_cent(verdict.confidence)} interval {_range(metric, verdict.interval, digits)}"
    if verdict.word in (HELPED, HURT):
        said = f"{name} {verdict.word}: {found} ({wide}; {rests})."
    elif verdict.word == SAME:
        narrow = f"{_per_cent(2 * verdict.confidence - 1)} interval {_range(metric, verdict.interval_90, digits)}"
        inside = f"inside ±{_unit(metric, verdict.matters)}"
        said = f"{name} makes no practical difference: {found} ({narrow}, {inside}; {rests})."
    else:
        said = f"{name}: cannot tell. {_capital(found)}, but the {wide} ({rests})."
    return " ".join(filter(None, [said, _settle(verdict, need), _caveats(verdict.examples, left_out)]))


def too_few(seeds: int) -> str:
    """Why there is no interval."""
    have = "no seed is" if seeds == 0 else "only one seed is"
    return f"{have} shared with the baseline, and two are the least from which noise can be estimated"


def remedy(need: Need) -> str:
    """What to do about an open question, in few words."""
    seeds = f"run {need.seeds:,} more seed{'' if need.seeds == 1 else 's'}" if need.seeds else ""
    examples = f"score {need.examples:,} more example{'' if need.examples == 1 else 's'}" if need.examples else ""
    return (" or " if need.either else " and ").join(filter(None, [seeds, examples]))


def barred(name: str, reason: str) -> str:
    """The sentence for a variant that failed an audit."""
    return f"{name} is not comparable: {reason}."


def unmeasured(name: str, reason: str) -> str:
    """The sentence for a variant without two seeds."""
    return f"{name}: cannot tell, for {reason}."


def _settle(verdict: Verdict, need: Need) -> str:
    if verdict.word != UNSURE:
        return ""
    seeds = _about(need.seeds, "seed") if need.seeds else ""
    examples = _about(need.examples, "example") if need.examples else ""
    if seeds and examples:
        both = f"{seeds}, or {examples}," if need.either else f"{seeds} together with {examples}"
        return f"{_capital(both)} would settle it."
    if seeds:
        return f"{_capital(seeds)} would settle it."
    if examples and verdict.noise == "examples":
        return f"The larger noise is from the examples, so more seeds would not help; {examples} would settle it."
    if examples:
        return f"More seeds alone would not help; {examples} would settle it."
    return "No number of seeds within reason would settle it at this effect."


def _about(count: int, thing: str) -> str:
    return f"about {count:,} more {thing}{'' if count == 1 else 's'}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _caveats(examples: int, left_out: Sequence[int]) -> str:
    said = []
    if examples == 1:
        said.append("Only a score per seed is known, so this holds for this test set, not for new text of its kind.")
    if left_out:
        plural = len(left_out) > 1
        said.append(
            f"Seed{'s' if plural else ''} {', '.join(map(str, left_out))} "
            f"{'are' if plural else 'is'} left out: not scored for both."
        )
    return " ".join(said)


def _digits(metric: Metric, interval: Interval) -> int:
    """Enough decimals to show half the interval with two digits."""
    half = (interval[1] - interval[0]) / 2 * (100 if _in_hundredths(metric) else 1)
    if not math.isfinite(half) or half <= 0:
        return 1 if _in_hundredths(metric) else 3
    return min(max(1 - math.floor(math.log10(half)), 0), 6)


def _in_hundredths(metric: Metric) -> bool:
    return metric.name in ("perplexity", "accuracy")


def _range(metric: Metric, interval: Interval, digits: int) -> str:
    low, high = interval
    if _is_nothing(metric, low, digits) and _is_nothing(metric, high, digits):
        return "has no width"
    if metric.relative and low >= VAST:
        return "also beyond that"
    if (low < 0) == (high < 0) and max(abs(low), abs(high)) < VAST:
        near, far = sorted((abs(low), abs(high)))
        return f"{_figure(metric, near, digits)} to {_unit(metric, far, digits)} {_side(high)}"
    return f"runs from {_change(metric, low, digits)} to {_change(metric, high, digits)}"


def _change(metric: Metric, effect: float, digits: int) -> str:
    if _is_nothing(metric, effect, digits):
        return "the same" if effect == 0 else f"{_unit(metric, 0.0, digits)} {_side(effect)}"
    if metric.relative and effect >= VAST:
        return "more than 1,000 % higher"
    return f"{_unit(metric, abs(effect), digits)} {_side(effect)}"


def _is_nothing(metric: Metric, effect: float, digits: int) -> bool:
    return float(_figure(metric, abs(effect), digits).replace(",", "")) == 0


def _side(effect: float) -> str:
    return "lower" if effect < 0 else "higher"


def _figure(metric: Metric, size: float, digits: int) -> str:
    return f"{size * (100 if _in_hundredths(metric) else 1):,.{digits}f}"


def _unit(metric: Metric, size: float, digits: int | None = None) -> str:
    figure = (
        f"{round(size * (100 if _in_hundredths(metric) else 1), 9):g}"
        if digits is None
        else _figure(metric, size, digits)
    )
    if metric.name == "perplexity":
        return f"{figure} %"
    if metric.name == "accuracy":
        return f"{figure} point{'' if figure == '1' else 's'}"
    return figure


def _per_cent(share: float) -> str:
    return f"{round(100 * share, 6):g} %"
