"""Figures of the decoding comparison as people read them, and a pair of strategies in one sentence."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence
from typing import Any

from headtohead.presentation import number_format

Found = dict[str, Any]

PLACES = {"bits": 3, "points": 1, "count": 1}
SIGNS = {" ": "␣", "\n": "↵", "\t": "⇥"}
SHORT = {"perplexity": 0, "bits": 2, "share": 1, "points": 1, "count": 1}
"""decimals of a difference where there is no room for its interval"""


def value(kind: str, figure: Any) -> str:
    """A figure in its own unit."""
    if not number_format.is_number(figure):
        return number_format.UNKNOWN
    if kind == "perplexity":
        return number_format.perplexity(figure)
    return number_format.share(figure) if kind == "share" else f"{figure:,.{PLACES[kind]}f}"


def span(kind: str, ends: Sequence[Any] | None) -> str:
    """371.2 to 386.4; the unit once."""
    if not ends or not all(number_format.is_number(end) for end in ends):
        return ""
    low, high = (value(kind, end) for end in ends)
    return f"{low.removesuffix(f'{number_format.SPACE}%')} to {high}"


def with_span(kind: str, found: Found | None) -> str:
    if found is None:
        return number_format.UNKNOWN
    ends = span(kind, found["interval"]).replace(" ", number_format.SPACE)
    return value(kind, found["value"]) + (f" ({ends})" if ends else "")


def change(kind: str, effect: Any, interval: Sequence[Any] | None = None) -> str:
    """A difference with its sign: −61 %, +3.1 points, −0.21."""
    if not number_format.is_number(effect):
        return number_format.UNKNOWN
    metric = _metric(kind)
    return number_format.change(metric, effect, number_format.decimals(metric, interval) if interval else SHORT[kind])


def sizes(kind: str, ends: Sequence[Any]) -> str:
    """An interval of differences: 55 to 66 % lower; from 2 % lower to 3 % higher."""
    if not all(number_format.is_number(end) for end in ends):
        return "no interval"
    metric, (low, high) = _metric(kind), ends
    places = number_format.decimals(metric, ends)
    if low == high:
        return "no width"
    if (low < 0) == (high < 0):
        near, far = sorted((abs(low), abs(high)))
        said = number_format.change(metric, far, places).lstrip("+")
        return f"{number_format.signed(metric, near, places).lstrip('+')} to {said} {'lower' if high < 0 else 'higher'}"
    return f"{size(kind, low, places)} to {size(kind, high, places)}"


def size(kind: str, effect: float, places: int | None = None) -> str:
    """61 % lower."""
    if effect == 0:
        return "the same"
    said = number_format.change(_metric(kind), abs(effect), places).lstrip("+")
    return f"{said} {'lower' if effect < 0 else 'higher'}"


def sentence(pair: Found, measure: Found) -> str:
    """What one strategy does to one measure beside another: perplexity 61 % lower (95 % interval 55 to 66 % lower)."""
    kind = measure["kind"]
    if pair["effect"] == 0:
        return f"{measure['title']} the same"
    places = number_format.decimals(_metric(kind), pair["interval"])
    if not all(number_format.is_number(end) for end in pair["interval"]):
        return f"{measure['title']} {size(kind, pair['effect'])} (one prompt: no interval)"
    interval = f"95{number_format.SPACE}% interval {sizes(kind, pair['interval'])}"
    return f"{measure['title']} {size(kind, pair['effect'], places)} ({interval})"


def token(text: str) -> str:
    """A token made visible: a leading space, a line end, a sign that has no look. What XML does not allow must not get
    into a chart."""
    return "".join(_visible(letter) for letter in text) or "∅"


def _visible(letter: str) -> str:
    if letter in SIGNS:
        return SIGNS[letter]
    if ord(letter) < 0x20:
        return chr(0x2400 + ord(letter))  # the control pictures of Unicode
    hidden = unicodedata.category(letter) in ("Cc", "Cs", "Cn", "Co")
    return f"U+{ord(letter):04X}" if hidden else letter


def percent(share: float) -> str:
    """12.3 %, 0.04 %: two digits at least."""
    if share <= 0:
        return f"0{number_format.SPACE}%"
    places = min(max(1, 1 - math.floor(math.log10(100 * share))), 6)
    return f"{100 * share:.{places}f}{number_format.SPACE}%"


def _metric(kind: str) -> str:
    """The scale by which the report's figures are written."""
    return {"perplexity": "perplexity", "share": "accuracy"}.get(kind, "loss")
