"""TOML that comes from anybody: refused with a reason before it can take memory or time that its length does not
explain, and before it can hold what the rest of the package could not write down again.

The standard library reads a key of n parts in n² steps (a file of 16 KB takes seconds), and a list in lists until the
interpreter's stack ends; a number may have any number of digits, or be no number.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterator
from datetime import date, time
from typing import Any

from headtohead.errors import Fault

LONGEST_FILE = 2**17
"""bytes; the longest recipe has 7,000"""
MOST_PARTS = 16
"""of a dotted name"""
DEEPEST = 16
LARGEST = 2**53
"""whole numbers up to here are read alike by every program"""
# Strings and comments, each up to its end or the end of the file: what is left is names, numbers and signs.
_QUOTED = re.compile(
    r'"""(?:[^\\]|\\.)*?(?:"""|\Z)|\'\'\'.*?(?:\'\'\'|\Z)|"(?:[^"\\\n]|\\.)*"?|\'[^\'\n]*\'?|#[^\n]*', re.DOTALL
)
_LONG_NAME = re.compile(rf"(?<![\w-])(?:[\w-]+[ \t]*\.[ \t]*){{{MOST_PARTS},}}")


def parse_toml(text: str) -> dict[str, Any]:
    """The file as plain data; ValueError says what is wrong with it."""
    plain = _QUOTED.sub("s", text)
    if _LONG_NAME.search(plain):
        raise ValueError(f"a name of more than {MOST_PARTS} parts")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("lists are nested too deep") from None


def unusable(value: Any, place: str = "", depth: int = 0) -> list[Fault]:
    """Values that TOML allows and no setting can have: they could not be written to a run folder."""
    return list(_unusable(value, place, depth))


def _unusable(value: Any, place: str, depth: int) -> Iterator[Fault]:
    if depth > DEEPEST:
        yield Fault(place, f"is nested too deep: more than {DEEPEST} tables or lists in each other")
    elif isinstance(value, dict):
        for key, one in value.items():
            yield from _unusable(one, f"{place}.{key}".strip("."), depth + 1)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _unusable(one, place, depth + 1)
    elif isinstance(value, float) and not math.isfinite(value):
        yield Fault(place, f"must be a finite number, not {value}")
    elif isinstance(value, int) and abs(value) > LARGEST:
        yield Fault(place, f"is too large a number; whole numbers end at {LARGEST:,}")
    elif isinstance(value, date | time):
        yield Fault(place, f"is a date or a time ({value}); no setting is one")
