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

from headtohead.errors import ValidationIssue

MAX_FILE_BYTES = 2**17
"""bytes; the longest recipe has 7,000"""
MAX_KEY_PARTS = 16
"""of a dotted name"""
MAX_NESTING_DEPTH = 16
MAX_INTEGER = 2**53
"""whole numbers up to here are read alike by every program"""
# Strings and comments, each up to its end or the end of the file: what is left is names, numbers and signs.
_STRING_OR_COMMENT = re.compile(
    r'"""(?:[^\\]|\\.)*?(?:"""|\Z)|\'\'\'.*?(?:\'\'\'|\Z)|"(?:[^"\\\n]|\\.)*"?|\'[^\'\n]*\'?|#[^\n]*', re.DOTALL
)
_LONG_KEY = re.compile(rf"(?<![\w-])(?:[\w-]+[ \t]*\.[ \t]*){{{MAX_KEY_PARTS},}}")


def parse_toml(text: str) -> dict[str, Any]:
    """The file as plain data; ValueError says what is wrong with it."""
    plain = _STRING_OR_COMMENT.sub("s", text)
    if _LONG_KEY.search(plain):
        raise ValueError(f"a name of more than {MAX_KEY_PARTS} parts")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("lists are nested too deep") from None


def check_values(value: Any, location: str = "", depth: int = 0) -> list[ValidationIssue]:
    """Values that TOML allows and no setting can have: they could not be written to a run folder."""
    return list(_find_unusable_values(value, location, depth))


def _find_unusable_values(value: Any, location: str, depth: int) -> Iterator[ValidationIssue]:
    if depth > MAX_NESTING_DEPTH:
        yield ValidationIssue(
            location, f"is nested too deep: more than {MAX_NESTING_DEPTH} tables or lists in each other"
        )
    elif isinstance(value, dict):
        for key, one in value.items():
            yield from _find_unusable_values(one, f"{location}.{key}".strip("."), depth + 1)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _find_unusable_values(one, location, depth + 1)
    elif isinstance(value, float) and not math.isfinite(value):
        yield ValidationIssue(location, f"must be a finite number, not {value}")
    elif isinstance(value, int) and abs(value) > MAX_INTEGER:
        yield ValidationIssue(location, f"is too large a number; whole numbers end at {MAX_INTEGER:,}")
    elif isinstance(value, date | time):
        yield ValidationIssue(location, f"is a date or a time ({value}); no setting is one")
