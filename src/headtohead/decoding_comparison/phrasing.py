"""Format a decoding comparison's values, and describe the difference between two strategies in one sentence."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence
from typing import Any

from headtohead.decoding_comparison.results import GenerationMetric, MetricEstimate, StrategyPairVerdict
from headtohead.presentation import number_format

DECIMALS = {"bits": 3, "points": 1, "count": 1}
VISIBLE_CHARACTERS = {" ": "␣", "\n": "↵", "\t": "⇥"}
SHORT_DECIMALS = {"perplexity": 0, "bits": 2, "share": 1, "points": 1, "count": 1}
"""decimals of a difference that is shown without its interval"""


def format_value(kind: str, number: Any) -> str:
    """Return a decoding metric's value with its unit, or the placeholder for a missing value."""
    if not number_format.is_finite_number(number):
        return number_format.MISSING_VALUE
    if kind == "perplexity":
        return number_format.format_perplexity(number)
    return number_format.format_percentage(number) if kind == "share" else f"{number:,.{DECIMALS[kind]}f}"


def format_interval(kind: str, interval: Sequence[Any] | None) -> str:
    """Return an interval with its unit once, such as "371.2 to 386.4"; empty if there is none."""
    if not interval or not all(number_format.is_finite_number(end) for end in interval):
        return ""
    low, high = (format_value(kind, end) for end in interval)
    return f"{low.removesuffix(f'{number_format.NO_BREAK_SPACE}%')} to {high}"


def format_estimate(metric: GenerationMetric, estimate: MetricEstimate | None) -> str:
    """Return a decoding metric's estimate followed by its interval in parentheses."""
    if estimate is None:
        return number_format.MISSING_VALUE
    interval = format_interval(metric.kind, estimate.interval).replace(" ", number_format.NO_BREAK_SPACE)
    return format_value(metric.kind, estimate.value) + (f" ({interval})" if interval else "")


def format_change(kind: str, effect: Any, interval: Sequence[Any] | None = None) -> str:
    """Return a difference with its sign and unit, such as "−61 %", "+3.1 points" or "−0.21".

    With `interval`, the number of decimals follows from its width.
    """
    if not number_format.is_finite_number(effect):
        return number_format.MISSING_VALUE
    metric = _get_number_format(kind)
    return number_format.format_effect(
        metric, effect, number_format.choose_decimals(metric, interval) if interval else SHORT_DECIMALS[kind]
    )


def describe_change_interval(kind: str, interval: Sequence[Any]) -> str:
    """Describe an interval of differences, such as "55 to 66 % lower" or "2 % lower to 3 % higher"."""
    if not all(number_format.is_finite_number(end) for end in interval):
        return "no interval"
    metric, (low, high) = _get_number_format(kind), interval
    decimals = number_format.choose_decimals(metric, interval)
    if low == high:
        return "no width"
    if (low < 0) == (high < 0):
        smallest, largest = sorted((abs(low), abs(high)))
        smallest_text = number_format.format_signed_effect(metric, smallest, decimals).lstrip("+")
        largest_text = number_format.format_effect(metric, largest, decimals).lstrip("+")
        return f"{smallest_text} to {largest_text} {'lower' if high < 0 else 'higher'}"
    return f"{describe_change(kind, low, decimals)} to {describe_change(kind, high, decimals)}"


def describe_change(kind: str, effect: float, decimals: int | None = None) -> str:
    """Describe a difference in words, such as "61 % lower"."""
    if effect == 0:
        return "the same"
    size = number_format.format_effect(_get_number_format(kind), abs(effect), decimals).lstrip("+")
    return f"{size} {'lower' if effect < 0 else 'higher'}"


def describe_pair(pair: StrategyPairVerdict, metric: GenerationMetric) -> str:
    """Describe one strategy's effect on a metric, relative to another strategy.

    For example "perplexity 61 % lower (95 % interval 55 to 66 % lower)".
    """
    kind = metric.kind
    if pair.effect == 0:
        return f"{metric.title} the same"
    decimals = number_format.choose_decimals(_get_number_format(kind), pair.interval)
    if not all(number_format.is_finite_number(end) for end in pair.interval):
        return f"{metric.title} {describe_change(kind, pair.effect)} (one prompt: no interval)"
    interval = f"95{number_format.NO_BREAK_SPACE}% interval {describe_change_interval(kind, pair.interval)}"
    return f"{metric.title} {describe_change(kind, pair.effect, decimals)} ({interval})"


def format_token(text: str) -> str:
    """Return a token with spaces, line breaks and control characters made visible.

    Control characters must be replaced because XML, and therefore SVG, does not allow them.
    """
    return "".join(_format_character(character) for character in text) or "∅"


def _format_character(character: str) -> str:
    """Return a visible symbol for a whitespace or control character; other characters are unchanged."""
    if character in VISIBLE_CHARACTERS:
        return VISIBLE_CHARACTERS[character]
    if ord(character) < 0x20:
        return chr(0x2400 + ord(character))  # Unicode control pictures
    is_invisible = unicodedata.category(character) in ("Cc", "Cs", "Cn", "Co")
    return f"U+{ord(character):04X}" if is_invisible else character


def format_percent(fraction: float | None) -> str:
    """Return a fraction as a percentage with at least two significant digits, such as "12.3 %" or "0.04 %"."""
    if fraction is None:
        return number_format.MISSING_VALUE
    if fraction <= 0:
        return f"0{number_format.NO_BREAK_SPACE}%"
    decimals = min(max(1, 1 - math.floor(math.log10(100 * fraction))), 6)
    return f"{100 * fraction:.{decimals}f}{number_format.NO_BREAK_SPACE}%"


def _get_number_format(kind: str) -> str:
    """Return the metric name under which `number_format` formats this kind of metric."""
    return {"perplexity": "perplexity", "share": "accuracy"}.get(kind, "loss")
