"""Numbers as people read them: perplexity 378.8, +3.1 %, 84.7 %, +1.2 points.

What is not known is shown as a dash. A figure has as many decimals as its interval can bear: half the interval is shown
with two digits, as in the sentences of the verdicts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

UNKNOWN = "–"
MINUS = "−"
SPACE = "\u00a0"
"""a space that does not break: a number stays with its unit"""
VAST = 10.0
"""a relative change of 1,000 % or more is not worth its digits"""

LOWER_IS_BETTER = ("perplexity", "loss")


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def perplexity(value: float) -> str:
    if value >= 1e7:
        return f"{value:.2e}".replace("e+0", "e").replace("e+", "e")
    decimals = 3 if value < 10 else 2 if value < 100 else 1 if value < 10_000 else 0
    return f"{value:,.{decimals}f}"


def value(metric: str, figure: Any) -> str:
    """A score in its own unit."""
    if not is_number(figure):
        return UNKNOWN
    if metric == "perplexity":
        return perplexity(figure)
    if metric == "accuracy":
        return f"{100 * figure:.1f}{SPACE}%"
    return f"{figure:,.3f}".replace("-", MINUS) if metric == "loss" else f"{figure:,.4g}".replace("-", MINUS)


def decimals(metric: str, interval: Sequence[Any] | None) -> int:
    """Enough to show half the interval with two digits."""
    scale = 100 if in_hundredths(metric) else 1
    usual = 1 if in_hundredths(metric) else 3
    if not interval or not all(is_number(end) for end in interval):
        return usual
    half = (interval[1] - interval[0]) / 2 * scale
    return min(max(1 - math.floor(math.log10(half)), 0), 4) if half > 0 else usual


def change(metric: str, effect: Any, places: int | None = None) -> str:
    """A difference to the baseline, with its sign and unit."""
    if not is_number(effect):
        return UNKNOWN
    if metric == "perplexity" and effect >= VAST:
        return f"more than +1,000{SPACE}%"
    return signed(metric, effect, places) + unit(metric)


def signed(metric: str, effect: float, places: int | None = None) -> str:
    scale = 100 if in_hundredths(metric) else 1
    places = decimals(metric, None) if places is None else places
    said = f"{abs(effect) * scale:,.{places}f}"
    if not said.strip("0.,"):
        return said
    return (MINUS if effect < 0 else "+") + said


def unit(metric: str) -> str:
    return {"perplexity": f"{SPACE}%", "accuracy": f"{SPACE}points"}.get(metric, "")


def interval(metric: str, ends: Sequence[Any] | None, places: int | None = None) -> str:
    """Both ends, with the unit once: −6.1 to −4.3 %."""
    if not ends or not all(is_number(end) for end in ends):
        return UNKNOWN
    places = decimals(metric, ends) if places is None else places
    low, high = ends
    if metric == "perplexity" and low >= VAST:
        return f"all beyond +1,000{SPACE}%"
    if metric == "perplexity" and high >= VAST:
        return f"{change(metric, low, places)} to {change(metric, high, places)}"
    return f"{signed(metric, low, places)} to {signed(metric, high, places)}{unit(metric)}"


def span(metric: str, ends: Sequence[Any] | None) -> str:
    """The two ends of an interval of scores, with the unit once: 371.2 to 386.4."""
    if not ends or not all(is_number(end) for end in ends):
        return UNKNOWN
    low, high = (value(metric, end) for end in ends)
    return f"{low.removesuffix(f'{SPACE}%')} to {high}" if metric == "accuracy" else f"{low} to {high}"


def band(metric: str, matters: float) -> str:
    """±1 %, ±1 point."""
    size = f"{round(matters * (100 if in_hundredths(metric) else 1), 9):g}"
    name = unit(metric)
    return f"±{size}{name.removesuffix('s') if size == '1' else name}"


def in_hundredths(metric: str) -> bool:
    return metric in ("perplexity", "accuracy")


def is_better(metric: str, effect: float) -> bool:
    return effect < 0 if metric in LOWER_IS_BETTER else effect > 0


def ratio(pair: Sequence[Any]) -> str:
    """The second over the first: 1.02 ×."""
    found = ratio_of(pair)
    return UNKNOWN if found is None else f"{found:.2f}{SPACE}×" if found < 100 else f"{found:,.0f}{SPACE}×"


def ratio_of(pair: Sequence[Any]) -> float | None:
    first, second = pair
    return second / first if is_number(first) and is_number(second) and first > 0 else None


def count(number: Any) -> str:
    return f"{number:,.0f}" if is_number(number) else UNKNOWN


def flops(number: Any) -> str:
    """1.00 M, 863 k: three digits."""
    if not is_number(number):
        return UNKNOWN
    for scale, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= scale:
            return f"{number / scale:#.3g}".rstrip(".") + SPACE + letter
    return f"{number:.0f}{SPACE}"


def size(number: Any) -> str:
    """598 MB."""
    return f"{flops(number)}B" if is_number(number) else UNKNOWN


def seconds(number: Any) -> str:
    """Of one step: 57.6 ms."""
    if not is_number(number):
        return UNKNOWN
    return f"{number * 1000:.3g}{SPACE}ms" if number < 1 else f"{number:,.3g}{SPACE}s"


def share(number: Any) -> str:
    return f"{100 * number:.1f}{SPACE}%" if is_number(number) else UNKNOWN


def plain(setting: Any) -> str:
    """A setting as it stands in an experiment file: "alibi", 0.1, { kind = "mlp", hidden = 100 }."""
    if setting is None:
        return "not set"
    if isinstance(setting, bool):
        return "true" if setting else "false"
    if isinstance(setting, str):
        return setting
    if isinstance(setting, dict):
        return "{ " + ", ".join(f"{key} = {plain(one)}" for key, one in setting.items()) + " }"
    if isinstance(setting, list | tuple):
        return plain(setting[0]) if len(setting) == 1 else "[" + ", ".join(plain(one) for one in setting) + "]"
    return f"{setting:g}" if isinstance(setting, float) else str(setting)
