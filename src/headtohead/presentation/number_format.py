"""Number formatting: perplexity 378.8, +3.1 %, 84.7 %, +1.2 points.

Missing values are shown as a dash. A number with an interval gets as many decimals as show half the interval with two
significant digits.
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
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def format_perplexity(value: float) -> str:
    if value >= 1e7:
        return f"{value:.2e}".replace("e+0", "e").replace("e+", "e")
    decimals = 3 if value < 10 else 2 if value < 100 else 1 if value < 10_000 else 0
    return f"{value:,.{decimals}f}"


def format_score(metric: str, score: Any) -> str:
    """Return a score in the unit of its metric."""
    if not is_finite_number(score):
        return MISSING_VALUE
    if metric == "perplexity":
        return format_perplexity(score)
    if metric == "accuracy":
        return f"{100 * score:.1f}{NO_BREAK_SPACE}%"
    return f"{score:,.3f}".replace("-", MINUS_SIGN) if metric == "loss" else f"{score:,.4g}".replace("-", MINUS_SIGN)


def choose_decimals(metric: str, interval: Sequence[Any] | None) -> int:
    """Return the decimals that show half the interval with two significant digits."""
    scale = 100 if is_shown_in_percent(metric) else 1
    default = 1 if is_shown_in_percent(metric) else 3
    if not interval or not all(is_finite_number(end) for end in interval):
        return default
    half = (interval[1] - interval[0]) / 2 * scale
    return min(max(1 - math.floor(math.log10(half)), 0), 4) if half > 0 else default


def format_effect(metric: str, effect: Any, decimals: int | None = None) -> str:
    """Return a difference to the baseline with sign and unit."""
    if not is_finite_number(effect):
        return MISSING_VALUE
    if metric == "perplexity" and effect >= MAX_SHOWN_RELATIVE_CHANGE:
        return f"more than +1,000{NO_BREAK_SPACE}%"
    return format_signed_effect(metric, effect, decimals) + get_effect_unit(metric)


def format_signed_effect(metric: str, effect: float, decimals: int | None = None) -> str:
    scale = 100 if is_shown_in_percent(metric) else 1
    decimals = choose_decimals(metric, None) if decimals is None else decimals
    text = f"{abs(effect) * scale:,.{decimals}f}"
    if not text.strip("0.,"):
        return text
    return (MINUS_SIGN if effect < 0 else "+") + text


def get_effect_unit(metric: str) -> str:
    return {"perplexity": f"{NO_BREAK_SPACE}%", "accuracy": f"{NO_BREAK_SPACE}points"}.get(metric, "")


def format_effect_interval(metric: str, bounds: Sequence[Any] | None, decimals: int | None = None) -> str:
    """Return both ends of an interval, with the unit once: −6.1 to −4.3 %."""
    if not bounds or not all(is_finite_number(end) for end in bounds):
        return MISSING_VALUE
    decimals = choose_decimals(metric, bounds) if decimals is None else decimals
    low, high = bounds
    if metric == "perplexity" and low >= MAX_SHOWN_RELATIVE_CHANGE:
        return f"all beyond +1,000{NO_BREAK_SPACE}%"
    if metric == "perplexity" and high >= MAX_SHOWN_RELATIVE_CHANGE:
        return f"{format_effect(metric, low, decimals)} to {format_effect(metric, high, decimals)}"
    signed = (format_signed_effect(metric, end, decimals) for end in bounds)
    return " to ".join(signed) + get_effect_unit(metric)


def format_score_interval(metric: str, bounds: Sequence[Any] | None) -> str:
    """Return both ends of an interval of scores, with the unit once: 371.2 to 386.4."""
    if not bounds or not all(is_finite_number(end) for end in bounds):
        return MISSING_VALUE
    low, high = (format_score(metric, end) for end in bounds)
    return f"{low.removesuffix(f'{NO_BREAK_SPACE}%')} to {high}" if metric == "accuracy" else f"{low} to {high}"


def format_score_with_deviation(metric: str, mean: float, deviation: float | None) -> str:
    """Return a mean with the standard deviation of one seed: 378.8±2.1, 84.7±0.3 %."""
    scale, unit = (100, f"{NO_BREAK_SPACE}%") if metric == "accuracy" else (1, "")
    spread = "" if deviation is None else f"±{scale * deviation:,.1f}"
    return f"{scale * mean:,.1f}{spread}{unit}"


def format_fixed(value: Any, decimals: int) -> str:
    """Return a number with fixed decimals and a typographic minus sign; zero has no sign."""
    if not is_finite_number(value):
        return MISSING_VALUE
    text = f"{value:,.{decimals}f}"
    return text.removeprefix("-") if not text.strip("-0.") else text.replace("-", MINUS_SIGN)


def format_margin(metric: str, equivalence_margin: float) -> str:
    """Return an equivalence margin: ±1 %, ±1 point."""
    size = f"{round(equivalence_margin * (100 if is_shown_in_percent(metric) else 1), 9):g}"
    unit = get_effect_unit(metric)
    return f"±{size}{unit.removesuffix('s') if size == '1' else unit}"


def is_shown_in_percent(metric: str) -> bool:
    return metric in ("perplexity", "accuracy")


def is_improvement(metric: str, effect: float) -> bool:
    return effect < 0 if metric in LOWER_IS_BETTER_METRICS else effect > 0


def format_ratio(pair: Sequence[Any]) -> str:
    """Return the second over the first: 1.02 ×."""
    ratio = compute_ratio(pair)
    if ratio is None:
        return MISSING_VALUE
    return f"{ratio:.2f}{NO_BREAK_SPACE}×" if ratio < 100 else f"{ratio:,.0f}{NO_BREAK_SPACE}×"


def compute_ratio(pair: Sequence[Any]) -> float | None:
    first, second = pair
    return second / first if is_finite_number(first) and is_finite_number(second) and first > 0 else None


def format_count(number: Any) -> str:
    return f"{number:,.0f}" if is_finite_number(number) else MISSING_VALUE


def format_si_number(number: Any) -> str:
    """Return a number with three significant digits and an SI prefix: 1.00 M, 863 k."""
    if not is_finite_number(number):
        return MISSING_VALUE
    for scale, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= scale:
            return f"{number / scale:#.3g}".rstrip(".") + NO_BREAK_SPACE + letter
    return f"{number:.0f}{NO_BREAK_SPACE}"


def format_bytes(number: Any) -> str:
    """Return a size: 598 MB."""
    return f"{format_si_number(number)}B" if is_finite_number(number) else MISSING_VALUE


def format_seconds(number: Any) -> str:
    """Return a duration with three significant digits: 57.6 ms."""
    if not is_finite_number(number):
        return MISSING_VALUE
    return f"{number * 1000:.3g}{NO_BREAK_SPACE}ms" if number < 1 else f"{number:,.3g}{NO_BREAK_SPACE}s"


def format_percentage(fraction: Any) -> str:
    return f"{100 * fraction:.1f}{NO_BREAK_SPACE}%" if is_finite_number(fraction) else MISSING_VALUE


def format_setting(value: Any) -> str:
    """Return a setting as in an experiment file: alibi, 0.1, { kind = mlp, hidden = 100 }."""
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
