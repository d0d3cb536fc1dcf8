"""Format scores, differences, counts and durations: 378.8, +3.1 %, 84.7 %, +1.2 points.

Missing values are shown as a dash. A number with a confidence interval is rounded so that the interval's half-width has
two significant digits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

MISSING_VALUE = "–"
MINUS_SIGN = "−"
NO_BREAK_SPACE = "\u00a0"
"""keeps a number and its unit on one line"""
MAX_SHOWN_RELATIVE_CHANGE = 10.0
"""larger relative changes are shown as “more than +1,000 %”"""

LOWER_IS_BETTER_METRICS = ("perplexity", "loss")


def is_finite_number(value: Any) -> bool:
    """Return True for finite ints and floats, False for bool, NaN and other types."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def format_perplexity(value: float) -> str:
    """Format a perplexity with four to five significant digits: 7.123, 378.8, 12,345."""
    if value >= 1e7:
        return f"{value:.2e}".replace("e+0", "e").replace("e+", "e")
    decimals = 3 if value < 10 else 2 if value < 100 else 1 if value < 10_000 else 0
    return f"{value:,.{decimals}f}"


def format_score(metric: str, score: Any) -> str:
    """Format a score in its metric's unit."""
    if not is_finite_number(score):
        return MISSING_VALUE
    if metric == "perplexity":
        return format_perplexity(score)
    if metric == "accuracy":
        return f"{100 * score:.1f}{NO_BREAK_SPACE}%"
    return f"{score:,.3f}".replace("-", MINUS_SIGN) if metric == "loss" else f"{score:,.4g}".replace("-", MINUS_SIGN)


def choose_decimals(metric: str, interval: Sequence[Any] | None) -> int:
    """Return the number of decimals needed to show the half-width of `interval` with two significant digits."""
    scale = 100 if is_shown_in_percent(metric) else 1
    default = 1 if is_shown_in_percent(metric) else 3
    if not interval or not all(is_finite_number(end) for end in interval):
        return default
    half_width = (interval[1] - interval[0]) / 2 * scale
    return min(max(1 - math.floor(math.log10(half_width)), 0), 4) if half_width > 0 else default


def format_effect(metric: str, effect: Any, decimals: int | None = None) -> str:
    """Format a difference from the baseline with its sign and unit."""
    if not is_finite_number(effect):
        return MISSING_VALUE
    if metric == "perplexity" and effect >= MAX_SHOWN_RELATIVE_CHANGE:
        return f"more than +1,000{NO_BREAK_SPACE}%"
    return format_signed_effect(metric, effect, decimals) + get_effect_unit(metric)


def format_signed_effect(metric: str, effect: float, decimals: int | None = None) -> str:
    """Format a difference with a sign and without a unit. Zero has no sign."""
    scale = 100 if is_shown_in_percent(metric) else 1
    decimals = choose_decimals(metric, None) if decimals is None else decimals
    text = f"{abs(effect) * scale:,.{decimals}f}"
    if not text.strip("0.,"):
        return text
    return (MINUS_SIGN if effect < 0 else "+") + text


def get_effect_unit(metric: str) -> str:
    """Return the unit of a difference, preceded by a no-break space: " %" or " points"."""
    return {"perplexity": f"{NO_BREAK_SPACE}%", "accuracy": f"{NO_BREAK_SPACE}points"}.get(metric, "")


def format_effect_interval(metric: str, bounds: Sequence[Any] | None, decimals: int | None = None) -> str:
    """Format both ends of an interval for a difference, with the unit once: −6.1 to −4.3 %."""
    if not bounds or not all(is_finite_number(end) for end in bounds):
        return MISSING_VALUE
    decimals = choose_decimals(metric, bounds) if decimals is None else decimals
    low, high = bounds
    if metric == "perplexity" and low >= MAX_SHOWN_RELATIVE_CHANGE:
        return f"all beyond +1,000{NO_BREAK_SPACE}%"
    if metric == "perplexity" and high >= MAX_SHOWN_RELATIVE_CHANGE:
        return f"{format_effect(metric, low, decimals)} to {format_effect(metric, high, decimals)}"
    signed_bounds = (format_signed_effect(metric, end, decimals) for end in bounds)
    return " to ".join(signed_bounds) + get_effect_unit(metric)


def format_score_interval(metric: str, bounds: Sequence[Any] | None) -> str:
    """Format both ends of an interval for a score, with the unit once: 371.2 to 386.4."""
    if not bounds or not all(is_finite_number(end) for end in bounds):
        return MISSING_VALUE
    low, high = (format_score(metric, end) for end in bounds)
    return f"{low.removesuffix(f'{NO_BREAK_SPACE}%')} to {high}" if metric == "accuracy" else f"{low} to {high}"


def format_score_with_deviation(metric: str, mean: float, deviation: float | None) -> str:
    """Format a mean with the standard deviation across seeds: 378.8±2.1, 84.7±0.3 %, loss 2.103±0.021."""
    if metric not in ("accuracy", "perplexity"):
        decimals = 3 if not deviation else min(max(1 - math.floor(math.log10(deviation)), 0), 6)
        spread = "" if deviation is None else f"±{deviation:,.{decimals}f}"
        return f"{format_fixed(mean, decimals)}{spread}"
    scale, unit = (100, f"{NO_BREAK_SPACE}%") if metric == "accuracy" else (1, "")
    spread = "" if deviation is None else f"±{scale * deviation:,.1f}"
    return f"{scale * mean:,.1f}{spread}{unit}"


def format_fixed(value: Any, decimals: int) -> str:
    """Format a number with a fixed number of decimals and a typographic minus sign. Zero has no sign."""
    if not is_finite_number(value):
        return MISSING_VALUE
    text = f"{value:,.{decimals}f}"
    return text.removeprefix("-") if not text.strip("-0.") else text.replace("-", MINUS_SIGN)


def format_margin(metric: str, equivalence_margin: float) -> str:
    """Format an equivalence margin: ±1 %, ±1 point."""
    size = f"{round(equivalence_margin * (100 if is_shown_in_percent(metric) else 1), 9):g}"
    unit = get_effect_unit(metric)
    return f"±{size}{unit.removesuffix('s') if size == '1' else unit}"


def is_shown_in_percent(metric: str) -> bool:
    """Return True if differences in this metric are multiplied by 100 for display."""
    return metric in ("perplexity", "accuracy")


def is_improvement(metric: str, effect: float) -> bool:
    """Return True if a difference from the baseline is an improvement."""
    return effect < 0 if metric in LOWER_IS_BETTER_METRICS else effect > 0


def format_ratio(pair: Sequence[Any]) -> str:
    """Format the ratio of the second number to the first: 1.02 ×."""
    ratio = compute_ratio(pair)
    if ratio is None:
        return MISSING_VALUE
    return f"{ratio:.2f}{NO_BREAK_SPACE}×" if ratio < 100 else f"{ratio:,.0f}{NO_BREAK_SPACE}×"


def compute_ratio(pair: Sequence[Any]) -> float | None:
    """Return the second number divided by the first, or None if the ratio is undefined."""
    first, second = pair
    return second / first if is_finite_number(first) and is_finite_number(second) and first > 0 else None


def format_count(number: Any) -> str:
    """Format a count with thousands separators."""
    return f"{number:,.0f}" if is_finite_number(number) else MISSING_VALUE


def format_si_number(number: Any) -> str:
    """Format a number with three significant digits and an SI prefix: 1.00 M, 863 k."""
    if not is_finite_number(number):
        return MISSING_VALUE
    for scale, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= scale:
            return f"{number / scale:#.3g}".rstrip(".") + NO_BREAK_SPACE + prefix
    return f"{number:.0f}{NO_BREAK_SPACE}"


def format_bytes(number: Any) -> str:
    """Format a size in bytes: 598 MB."""
    return f"{format_si_number(number)}B" if is_finite_number(number) else MISSING_VALUE


def format_seconds(number: Any) -> str:
    """Format a duration with three significant digits: 57.6 ms."""
    if not is_finite_number(number):
        return MISSING_VALUE
    return f"{number * 1000:.3g}{NO_BREAK_SPACE}ms" if number < 1 else f"{number:,.3g}{NO_BREAK_SPACE}s"


def format_percentage(fraction: Any) -> str:
    """Format a fraction as a percentage: 84.7 %."""
    return f"{100 * fraction:.1f}{NO_BREAK_SPACE}%" if is_finite_number(fraction) else MISSING_VALUE


def format_setting(value: Any) -> str:
    """Format a setting as in an experiment file: alibi, 0.1, { kind = mlp, hidden = 100 }."""
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {format_setting(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list | tuple):
        return format_setting(value[0]) if len(value) == 1 else f"[{', '.join(map(format_setting, value))}]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def format_score_with_interval(metric: str, value: Any, interval: Any) -> str:
    """Format a score in the unit of its metric, followed by its interval in parentheses, if it has one."""
    interval_suffix = f" ({format_score_interval(metric, interval)})" if interval else ""
    return format_score(metric, value) + interval_suffix
