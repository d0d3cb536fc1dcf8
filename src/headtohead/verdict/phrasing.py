"""Format verdicts as sentences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from headtohead.verdict.record import Interval, Verdict
from headtohead.verdict.rule import CANNOT_TELL, HELPED, HURT, METRICS, NO_PRACTICAL_DIFFERENCE, Metric

MAX_SHOWN_CHANGE = 10.0
"""relative change above which only "more than 1,000 %" is displayed"""


@dataclass(frozen=True)
class AdditionalData:
    """The additional seeds or examples that would settle an open verdict, each alone or both together."""

    seeds: int | None = None
    examples: int | None = None
    is_either_sufficient: bool = True


def format_summary(verdict: Verdict, additional_data: AdditionalData, unpaired_seeds: Sequence[int] = ()) -> str:
    """Return the outcome, effect, deciding interval and amount of data, and what would settle an open verdict."""
    metric, name = METRICS[verdict.metric], verdict.variant
    decimals = _choose_decimals(metric, verdict.interval)
    change = f"{metric.name} {_format_change(metric, verdict.effect, decimals)}"
    data = f"{verdict.seeds} seeds" + (f", {verdict.examples:,} examples" if verdict.examples > 1 else "")
    bounds = _format_interval(metric, verdict.interval, decimals)
    interval = f"{_format_percentage(verdict.confidence)} interval {bounds}"
    if verdict.outcome in (HELPED, HURT):
        sentence = f"{name} {verdict.outcome}: {change} ({interval}; {data})."
    elif verdict.outcome == NO_PRACTICAL_DIFFERENCE:
        bounds = _format_interval(metric, verdict.equivalence_interval, decimals)
        interval = f"{_format_percentage(2 * verdict.confidence - 1)} interval {bounds}"
        margin = f"inside ±{_format_with_unit(metric, verdict.equivalence_margin)}"
        sentence = f"{name} makes no practical difference: {change} ({interval}, {margin}; {data})."
    else:
        sentence = f"{name}: cannot tell. {_capitalize_first(change)}, but the {interval} ({data})."
    needed = _format_additional_data(verdict, additional_data)
    return " ".join(filter(None, [sentence, needed, _format_caveats(verdict.examples, unpaired_seeds)]))


def format_quick_look(verdict: Verdict) -> str:
    """Return the effect and the amount of data of a difference that is not judged."""
    change = "no score in common with the baseline"
    if math.isfinite(verdict.effect):
        metric = METRICS[verdict.metric]
        change = f"{metric.name} {_format_change(metric, verdict.effect, 1 if _is_shown_as_percentage(metric) else 3)}"
    seeds = f"{verdict.seeds} seed{'' if verdict.seeds == 1 else 's'}"
    return f"{verdict.variant}: {change} in a quick look ({seeds}, {verdict.examples:,} examples), which is not judged."


def explain_too_few_seeds(num_seeds: int) -> str:
    """Return why there is no interval."""
    shared = "no seed is" if num_seeds == 0 else "only one seed is"
    return f"{shared} shared with the baseline, and at least two are needed to estimate the noise"


def format_remedy(additional_data: AdditionalData) -> str:
    """Return how to settle an open verdict."""
    seeds = f"run {_format_more(additional_data.seeds, 'seed')}" if additional_data.seeds else ""
    examples = f"score {_format_more(additional_data.examples, 'example')}" if additional_data.examples else ""
    return (" or " if additional_data.is_either_sufficient else " and ").join(filter(None, [seeds, examples]))


def format_not_comparable(variant_name: str, reason: str) -> str:
    return f"{variant_name} is not comparable: {reason}."


def format_cannot_tell(variant_name: str, reason: str) -> str:
    return f"{variant_name}: cannot tell, because {reason}."


def _format_additional_data(verdict: Verdict, additional_data: AdditionalData) -> str:
    """Return a sentence on the data that would settle an open verdict; empty for other verdicts."""
    if verdict.outcome != CANNOT_TELL:
        return ""
    seeds = f"about {_format_more(additional_data.seeds, 'seed')}" if additional_data.seeds else ""
    examples = f"about {_format_more(additional_data.examples, 'example')}" if additional_data.examples else ""
    if seeds and examples:
        is_either = additional_data.is_either_sufficient
        seeds_and_examples = f"{seeds}, or {examples}," if is_either else f"{seeds} together with {examples}"
        return f"{_capitalize_first(seeds_and_examples)} would settle it."
    if seeds:
        return f"{_capitalize_first(seeds)} would settle it."
    if examples and verdict.dominant_noise_source == "examples":
        return f"Most noise is from the examples, so more seeds would not help; {examples} would settle it."
    if examples:
        return f"More seeds alone would not help; {examples} would settle it."
    return "No practical number of seeds would settle it at this effect."


def _format_more(count: int, noun: str) -> str:
    return f"{count:,} more {noun}{'' if count == 1 else 's'}"


def _capitalize_first(text: str) -> str:
    return text[:1].upper() + text[1:]


def _format_caveats(num_examples: int, unpaired_seeds: Sequence[int]) -> str:
    """Return sentences on missing examples and on seeds that were not used; empty if there are none."""
    caveats = []
    if num_examples == 1:
        caveats.append("Only one score per seed is known, so this holds for this test set, not for new text like it.")
    if unpaired_seeds:
        seeds = f"Seed{'s' if len(unpaired_seeds) > 1 else ''} {', '.join(map(str, unpaired_seeds))}"
        caveats.append(f"{seeds} {'are' if len(unpaired_seeds) > 1 else 'is'} not scored for both and not used.")
    return " ".join(caveats)


def _choose_decimals(metric: Metric, interval: Interval) -> int:
    """Return enough decimals to display the half width of the interval with two digits."""
    half_width = (interval[1] - interval[0]) / 2 * (100 if _is_shown_as_percentage(metric) else 1)
    if not math.isfinite(half_width) or half_width <= 0:
        return 1 if _is_shown_as_percentage(metric) else 3
    return min(max(1 - math.floor(math.log10(half_width)), 0), 6)


def _is_shown_as_percentage(metric: Metric) -> bool:
    return metric.name in ("perplexity", "accuracy")


def _format_interval(metric: Metric, interval: Interval, decimals: int) -> str:
    """Return the interval in words, as in "1.2 to 3.4 % lower"."""
    low, high = interval
    if _is_rounded_to_zero(metric, low, decimals) and _is_rounded_to_zero(metric, high, decimals):
        return "has no width"
    if metric.is_relative and low >= MAX_SHOWN_CHANGE:
        return "also beyond that"
    if (low < 0) == (high < 0) and max(abs(low), abs(high)) < MAX_SHOWN_CHANGE:
        smaller, larger = sorted((abs(low), abs(high)))
        bounds = f"{_format_number(metric, smaller, decimals)} to {_format_with_unit(metric, larger, decimals)}"
        return f"{bounds} {_format_direction(high)}"
    return f"runs from {_format_change(metric, low, decimals)} to {_format_change(metric, high, decimals)}"


def _format_change(metric: Metric, effect: float, decimals: int) -> str:
    """Return a change in words, as in "3.1 % lower"."""
    if _is_rounded_to_zero(metric, effect, decimals):
        return "the same" if effect == 0 else f"{_format_with_unit(metric, 0.0, decimals)} {_format_direction(effect)}"
    if metric.is_relative and effect >= MAX_SHOWN_CHANGE:
        return "more than 1,000 % higher"
    return f"{_format_with_unit(metric, abs(effect), decimals)} {_format_direction(effect)}"


def _is_rounded_to_zero(metric: Metric, effect: float, decimals: int) -> bool:
    """Return whether the effect is displayed as 0 with this many decimals."""
    return float(_format_number(metric, abs(effect), decimals).replace(",", "")) == 0


def _format_direction(effect: float) -> str:
    return "lower" if effect < 0 else "higher"


def _format_number(metric: Metric, magnitude: float, decimals: int) -> str:
    return f"{magnitude * (100 if _is_shown_as_percentage(metric) else 1):,.{decimals}f}"


def _format_with_unit(metric: Metric, magnitude: float, decimals: int | None = None) -> str:
    """Return a magnitude with its unit; all significant digits if `decimals` is None."""
    if decimals is None:
        number = f"{round(magnitude * (100 if _is_shown_as_percentage(metric) else 1), 9):g}"
    else:
        number = _format_number(metric, magnitude, decimals)
    if metric.name == "perplexity":
        return f"{number} %"
    if metric.name == "accuracy":
        return f"{number} point{'' if number == '1' else 's'}"
    return number


def _format_percentage(fraction: float) -> str:
    return f"{round(100 * fraction, 6):g} %"
