"""Numbers as people read them: perplexity 378.8, +3.1 %, 84.7 %, +1.2 points.

What is not known is shown as a dash. A figure has as many decimals as its interval can bear: half the interval is shown
with two digits, as in the sentences of the verdicts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

MISSING_VALUE = "–"
MINUS_SIGN = "−"
NO_BREAK_SPACE = "\u00a0"
"""a space that does not break: a number stays with its unit"""
MAX_SHOWN_RELATIVE_CHANGE = 10.0
"""a relative change of 1,000 % or more is not worth its digits"""

LOWER_IS_BETTER_METRICS = ("perplexity", "loss")


def is_finite_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def format_perplexity(value: float) -> str:
    if value >= 1e7:
        return f"{value:.2e}".replace("e+0", "e").replace("e+", "e")
    decimals = 3 if value < 10 else 2 if value < 100 else 1 if value < 10_000 else 0
    return f"{value:,.{decimals}f}"


def format_score(metric: str, score: Any) -> str:
    """A score in its own unit."""
    if not is_finite_number(score):
        return MISSING_VALUE
    if metric == "perplexity":
        return format_perplexity(score)
    if metric == "accuracy":
        return f"{100 * score:.1f}{NO_BREAK_SPACE}%"
    return f"{score:,.3f}".replace("-", MINUS_SIGN) if metric == "loss" else f"{score:,.4g}".replace("-", MINUS_SIGN)


def choose_decimals(metric: str, interval: Sequence[Any] | None) -> int:
    """Enough to show half the interval with two digits."""
    scale = 100 if is_shown_in_percent(metric) else 1
    usual = 1 if is_shown_in_percent(metric) else 3
    if not interval or not all(is_finite_number(end) for end in interval):
        return usual
    half = (interval[1] - interval[0]) / 2 * scale
    return min(max(1 - math.floor(math.log10(half)), 0), 4) if half > 0 else usual


def format_effect(metric: str, effect: Any, decimals: int | None = None) -> str:
    """A difference to the baseline, with its sign and unit."""
    if not is_finite_number(effect):
        return MISSING_VALUE
    if metric == "perplexity" and effect >= MAX_SHOWN_RELATIVE_CHANGE:
        return f"more than +1,000{NO_BREAK_SPACE}%"
    return format_signed_effect(metric, effect, decimals) + get_effect_unit(metric)


def format_signed_effect(metric: str, effect: float, decimals: int | None = None) -> str:
    scale = 100 if is_shown_in_percent(metric) else 1
    decimals = choose_decimals(metric, None) if decimals is None else decimals
    said = f"{abs(effect) * scale:,.{decimals}f}"
    if not said.strip("0.,"):
        return said
    return (MINUS_SIGN if effect < 0 else "+") + said


def get_effect_unit(metric: str) -> str:
    return {"perplexity": f"{NO_BREAK_SPACE}%", "accuracy": f"{NO_BREAK_SPACE}points"}.get(metric, "")


def format_effect_interval(metric: str, bounds: Sequence[Any] | None, decimals: int | None = None) -> str:
    """Both ends, with the unit once: −6.1 to −4.3 %."""
    if not bounds or not all(is_finite_number(end) for end in bounds):
        return MISSING_VALUE
    decimals = choose_decimals(metric, bounds) if decimals is None else decimals
    low, high = bounds
    if metric == "perplexity" and low >= MAX_SHOWN_RELATIVE_CHANGE:
        return f"all beyond +1,000{NO_BREAK_SPACE}%"
    if metric == "perplexity" and high >= MAX_SHOWN_RELATIVE_CHANGE:
        return f"{format_effect(metric, low, decimals)} to {format_effect(metric, high, decimals)}"
    return f"{format_signed_effect(metric, low, decimals)} to {format_signed_effect(metric, high, decimals)}{get_effect_unit(metric)}"  # noqa: E501


def format_score_interval(metric: str, bounds: Sequence[Any] | None) -> str:
    """The two ends of an interval of scores, with the unit once: 371.2 to 386.4."""
    if not bounds or not all(is_finite_number(end) for end in bounds):
        return MISSING_VALUE
    low, high = (format_score(metric, end) for end in bounds)
    return f"{low.removesuffix(f'{NO_BREAK_SPACE}%')} to {high}" if metric == "accuracy" else f"{low} to {high}"


def format_margin(metric: str, equivalence_margin: float) -> str:
    """±1 %, ±1 point."""
    size = f"{round(equivalence_margin * (100 if is_shown_in_percent(metric) else 1), 9):g}"
    name = get_effect_unit(metric)
    return f"±{size}{name.removesuffix('s') if size == '1' else name}"


def is_shown_in_percent(metric: str) -> bool:
    return metric in ("perplexity", "accuracy")


def is_improvement(metric: str, effect: float) -> bool:
    return effect < 0 if metric in LOWER_IS_BETTER_METRICS else effect > 0


def format_ratio(pair: Sequence[Any]) -> str:
    """The second over the first: 1.02 ×."""
    found = compute_ratio(pair)
    return (
        MISSING_VALUE
        if found is None
        else f"{found:.2f}{NO_BREAK_SPACE}×"
        if found < 100
        else f"{found:,.0f}{NO_BREAK_SPACE}×"
    )


def compute_ratio(pair: Sequence[Any]) -> float | None:
    first, second = pair
    return second / first if is_finite_number(first) and is_finite_number(second) and first > 0 else None


def format_count(number: Any) -> str:
    return f"{number:,.0f}" if is_finite_number(number) else MISSING_VALUE


def format_si_number(number: Any) -> str:
    """1.00 M, 863 k: three digits."""
    if not is_finite_number(number):
        return MISSING_VALUE
    for scale, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= scale:
            return f"{number / scale:#.3g}".rstrip(".") + NO_BREAK_SPACE + letter
    return f"{number:.0f}{NO_BREAK_SPACE}"


def format_bytes(number: Any) -> str:
    """598 MB."""
    return f"{format_si_number(number)}B" if is_finite_number(number) else MISSING_VALUE


def format_seconds(number: Any) -> str:
    """Of one step: 57.6 ms."""
    if not is_finite_number(number):
        return MISSING_VALUE
    return f"{number * 1000:.3g}{NO_BREAK_SPACE}ms" if number < 1 else f"{number:,.3g}{NO_BREAK_SPACE}s"


def format_percentage(fraction: Any) -> str:
    return f"{100 * fraction:.1f}{NO_BREAK_SPACE}%" if is_finite_number(fraction) else MISSING_VALUE


def format_setting(value: Any) -> str:
    """A setting as it stands in an experiment file: "alibi", 0.1, { kind = "mlp", hidden = 100 }."""
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {format_setting(one)}" for key, one in value.items()) + " }"
    if isinstance(value, list | tuple):
        return (
            format_setting(value[0]) if len(value) == 1 else "[" + ", ".join(format_setting(one) for one in value) + "]"
        )
    return f"{value:g}" if isinstance(value, float) else str(value)
