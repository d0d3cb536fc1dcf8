"""Figures of the decoding comparison as people read them, and a pair of strategies in one sentence."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence
from typing import Any

from headtohead.presentation import number_format

DecodingResults = dict[str, Any]

DECIMALS = {"bits": 3, "points": 1, "count": 1}
VISIBLE_CHARACTERS = {" ": "␣", "\n": "↵", "\t": "⇥"}
SHORT_DECIMALS = {"perplexity": 0, "bits": 2, "share": 1, "points": 1, "count": 1}
"""decimals of a difference where there is no room for its interval"""


def format_value(kind: str, number: Any) -> str:
    """A figure in its own unit."""
    if not number_format.is_finite_number(number):
        return number_format.MISSING_VALUE
    if kind == "perplexity":
        return number_format.format_perplexity(number)
    return number_format.format_percentage(number) if kind == "share" else f"{number:,.{DECIMALS[kind]}f}"


def format_interval(kind: str, interval: Sequence[Any] | None) -> str:
    """371.2 to 386.4; the unit once."""
    if not interval or not all(number_format.is_finite_number(end) for end in interval):
        return ""
    low, high = (format_value(kind, end) for end in interval)
    return f"{low.removesuffix(f'{number_format.NO_BREAK_SPACE}%')} to {high}"


def format_estimate(kind: str, estimate: DecodingResults | None) -> str:
    if estimate is None:
        return number_format.MISSING_VALUE
    ends = format_interval(kind, estimate["interval"]).replace(" ", number_format.NO_BREAK_SPACE)
    return format_value(kind, estimate["value"]) + (f" ({ends})" if ends else "")


def format_change(kind: str, effect: Any, interval: Sequence[Any] | None = None) -> str:
    """A difference with its sign: −61 %, +3.1 points, −0.21."""
    if not number_format.is_finite_number(effect):
        return number_format.MISSING_VALUE
    metric = _get_number_format(kind)
    return number_format.format_effect(
        metric, effect, number_format.choose_decimals(metric, interval) if interval else SHORT_DECIMALS[kind]
    )


def describe_change_interval(kind: str, interval: Sequence[Any]) -> str:
    """An interval of differences: 55 to 66 % lower; from 2 % lower to 3 % higher."""
    if not all(number_format.is_finite_number(end) for end in interval):
        return "no interval"
    metric, (low, high) = _get_number_format(kind), interval
    places = number_format.choose_decimals(metric, interval)
    if low == high:
        return "no width"
    if (low < 0) == (high < 0):
        near, far = sorted((abs(low), abs(high)))
        said = number_format.format_effect(metric, far, places).lstrip("+")
        return f"{number_format.format_signed_effect(metric, near, places).lstrip('+')} to {said} {'lower' if high < 0 else 'higher'}"  # noqa: E501
    return f"{describe_change(kind, low, places)} to {describe_change(kind, high, places)}"


def describe_change(kind: str, effect: float, decimals: int | None = None) -> str:
    """61 % lower."""
    if effect == 0:
        return "the same"
    said = number_format.format_effect(_get_number_format(kind), abs(effect), decimals).lstrip("+")
    return f"{said} {'lower' if effect < 0 else 'higher'}"


def describe_pair(pair: DecodingResults, metric: DecodingResults) -> str:
    """What one strategy does to one measure beside another: perplexity 61 % lower (95 % interval 55 to 66 % lower)."""
    kind = metric["kind"]
    if pair["effect"] == 0:
        return f"{metric['title']} the same"
    places = number_format.choose_decimals(_get_number_format(kind), pair["interval"])
    if not all(number_format.is_finite_number(end) for end in pair["interval"]):
        return f"{metric['title']} {describe_change(kind, pair['effect'])} (one prompt: no interval)"
    interval = f"95{number_format.NO_BREAK_SPACE}% interval {describe_change_interval(kind, pair['interval'])}"
    return f"{metric['title']} {describe_change(kind, pair['effect'], places)} ({interval})"


def format_token(text: str) -> str:
    """A token made visible: a leading space, a line end, a sign that has no look. What XML does not allow must not get
    into a chart."""
    return "".join(_format_character(letter) for letter in text) or "∅"


def _format_character(character: str) -> str:
    if character in VISIBLE_CHARACTERS:
        return VISIBLE_CHARACTERS[character]
    if ord(character) < 0x20:
        return chr(0x2400 + ord(character))  # the control pictures of Unicode
    hidden = unicodedata.category(character) in ("Cc", "Cs", "Cn", "Co")
    return f"U+{ord(character):04X}" if hidden else character


def format_percent(fraction: float) -> str:
    """12.3 %, 0.04 %: two digits at least."""
    if fraction <= 0:
        return f"0{number_format.NO_BREAK_SPACE}%"
    places = min(max(1, 1 - math.floor(math.log10(100 * fraction))), 6)
    return f"{100 * fraction:.{places}f}{number_format.NO_BREAK_SPACE}%"


def _get_number_format(kind: str) -> str:
    """The scale by which the report's figures are written."""
    return {"perplexity": "perplexity", "share": "accuracy"}.get(kind, "loss")
