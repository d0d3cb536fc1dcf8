"""A verdict in plain words, with its numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from headtohead.verdict.record import Interval, Verdict
from headtohead.verdict.rule import CANNOT_TELL, HELPED, HURT, METRICS, NO_PRACTICAL_DIFFERENCE, Metric

MAX_SHOWN_CHANGE = 10.0  # a relative change of 1,000 % or more is not worth its digits


@dataclass(frozen=True)
class AdditionalData:
    """What would settle an open question: more seeds or more examples, either alone unless `either` is false."""

    seeds: int | None = None
    examples: int | None = None
    is_either_sufficient: bool = True


def format_summary(verdict: Verdict, additional_data: AdditionalData, unpaired_seeds: Sequence[int] = ()) -> str:
    """The verdict, the effect, the interval that decided, what it rests on, and what would settle it."""
    metric, name = METRICS[verdict.metric], verdict.variant
    digits = _choose_decimals(metric, verdict.interval)
    found = f"{metric.name} {_format_change(metric, verdict.effect, digits)}"
    rests = f"{verdict.seeds} seeds" + (f", {verdict.examples:,} examples" if verdict.examples > 1 else "")
    wide = f"{_format_percentage(verdict.confidence)} interval {_format_interval(metric, verdict.interval, digits)}"
    if verdict.word in (HELPED, HURT):
        said = f"{name} {verdict.word}: {found} ({wide}; {rests})."
    elif verdict.word == NO_PRACTICAL_DIFFERENCE:
        narrow = f"{_format_percentage(2 * verdict.confidence - 1)} interval {_format_interval(metric, verdict.interval_90, digits)}"  # noqa: E501
        inside = f"inside ±{_format_with_unit(metric, verdict.matters)}"
        said = f"{name} makes no practical difference: {found} ({narrow}, {inside}; {rests})."
    else:
        said = f"{name}: cannot tell. {_capitalize_first(found)}, but the {wide} ({rests})."
    return " ".join(
        filter(
            None,
            [
                said,
                _format_additional_data(verdict, additional_data),
                _format_caveats(verdict.examples, unpaired_seeds),
            ],
        )
    )


def explain_too_few_seeds(num_seeds: int) -> str:
    """Why there is no interval."""
    have = "no seed is" if num_seeds == 0 else "only one seed is"
    return f"{have} shared with the baseline, and two are the least from which noise can be estimated"


def format_remedy(additional_data: AdditionalData) -> str:
    """What to do about an open question, in few words."""
    seeds = (
        f"run {additional_data.seeds:,} more seed{'' if additional_data.seeds == 1 else 's'}"
        if additional_data.seeds
        else ""
    )
    examples = (
        f"score {additional_data.examples:,} more example{'' if additional_data.examples == 1 else 's'}"
        if additional_data.examples
        else ""
    )
    return (" or " if additional_data.is_either_sufficient else " and ").join(filter(None, [seeds, examples]))


def format_not_comparable(variant_name: str, reason: str) -> str:
    """The sentence for a variant that failed an audit."""
    return f"{variant_name} is not comparable: {reason}."


def format_cannot_tell(variant_name: str, reason: str) -> str:
    """The sentence for a variant without two seeds."""
    return f"{variant_name}: cannot tell, for {reason}."


def _format_additional_data(verdict: Verdict, additional_data: AdditionalData) -> str:
    if verdict.word != CANNOT_TELL:
        return ""
    seeds = _format_approximate_count(additional_data.seeds, "seed") if additional_data.seeds else ""
    examples = _format_approximate_count(additional_data.examples, "example") if additional_data.examples else ""
    if seeds and examples:
        both = (
            f"{seeds}, or {examples}," if additional_data.is_either_sufficient else f"{seeds} together with {examples}"
        )
        return f"{_capitalize_first(both)} would settle it."
    if seeds:
        return f"{_capitalize_first(seeds)} would settle it."
    if examples and verdict.noise == "examples":
        return f"The larger noise is from the examples, so more seeds would not help; {examples} would settle it."
    if examples:
        return f"More seeds alone would not help; {examples} would settle it."
    return "No number of seeds within reason would settle it at this effect."


def _format_approximate_count(count: int, noun: str) -> str:
    return f"about {count:,} more {noun}{'' if count == 1 else 's'}"


def _capitalize_first(text: str) -> str:
    return text[:1].upper() + text[1:]


def _format_caveats(num_examples: int, unpaired_seeds: Sequence[int]) -> str:
    said = []
    if num_examples == 1:
        said.append("Only a score per seed is known, so this holds for this test set, not for new text of its kind.")
    if unpaired_seeds:
        plural = len(unpaired_seeds) > 1
        said.append(
            f"Seed{'s' if plural else ''} {', '.join(map(str, unpaired_seeds))} "
            f"{'are' if plural else 'is'} left out: not scored for both."
        )
    return " ".join(said)


def _choose_decimals(metric: Metric, interval: Interval) -> int:
    """Enough decimals to show half the interval with two digits."""
    half = (interval[1] - interval[0]) / 2 * (100 if _is_shown_as_percentage(metric) else 1)
    if not math.isfinite(half) or half <= 0:
        return 1 if _is_shown_as_percentage(metric) else 3
    return min(max(1 - math.floor(math.log10(half)), 0), 6)


def _is_shown_as_percentage(metric: Metric) -> bool:
    return metric.name in ("perplexity", "accuracy")


def _format_interval(metric: Metric, interval: Interval, decimals: int) -> str:
    low, high = interval
    if _is_rounded_to_zero(metric, low, decimals) and _is_rounded_to_zero(metric, high, decimals):
        return "has no width"
    if metric.relative and low >= MAX_SHOWN_CHANGE:
        return "also beyond that"
    if (low < 0) == (high < 0) and max(abs(low), abs(high)) < MAX_SHOWN_CHANGE:
        near, far = sorted((abs(low), abs(high)))
        return f"{_format_number(metric, near, decimals)} to {_format_with_unit(metric, far, decimals)} {_format_direction(high)}"  # noqa: E501
    return f"runs from {_format_change(metric, low, decimals)} to {_format_change(metric, high, decimals)}"


def _format_change(metric: Metric, effect: float, decimals: int) -> str:
    if _is_rounded_to_zero(metric, effect, decimals):
        return "the same" if effect == 0 else f"{_format_with_unit(metric, 0.0, decimals)} {_format_direction(effect)}"
    if metric.relative and effect >= MAX_SHOWN_CHANGE:
        return "more than 1,000 % higher"
    return f"{_format_with_unit(metric, abs(effect), decimals)} {_format_direction(effect)}"


def _is_rounded_to_zero(metric: Metric, effect: float, decimals: int) -> bool:
    return float(_format_number(metric, abs(effect), decimals).replace(",", "")) == 0


def _format_direction(effect: float) -> str:
    return "lower" if effect < 0 else "higher"


def _format_number(metric: Metric, magnitude: float, decimals: int) -> str:
    return f"{magnitude * (100 if _is_shown_as_percentage(metric) else 1):,.{decimals}f}"


def _format_with_unit(metric: Metric, magnitude: float, decimals: int | None = None) -> str:
    figure = (
        f"{round(magnitude * (100 if _is_shown_as_percentage(metric) else 1), 9):g}"
        if decimals is None
        else _format_number(metric, magnitude, decimals)
    )
    if metric.name == "perplexity":
        return f"{figure} %"
    if metric.name == "accuracy":
        return f"{figure} point{'' if figure == '1' else 's'}"
    return figure


def _format_percentage(share: float) -> str:
    return f"{round(100 * share, 6):g} %"
