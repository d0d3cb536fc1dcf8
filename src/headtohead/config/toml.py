"""Parse TOML from untrusted sources with limits on size, nesting and numbers, and write TOML.

`tomllib` takes quadratic time for keys with many parts (seconds for a 16 KB file) and recurses without limit into
nested lists. It also accepts integers of any length, NaN and infinities, none of which are valid in the JSON files of
run folders.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Iterator, Mapping
from datetime import date, time
from typing import Any

from headtohead.errors import ConfigError, ValidationIssue

MAX_FILE_BYTES = 2**17
"""the longest recipe has 7,000 bytes"""
MAX_KEY_PARTS = 16
"""limit of the parts of a dotted key"""
MAX_NESTING_DEPTH = 16
MAX_INTEGER = 2**53
"""integers up to here are exact in JSON readers that use doubles"""
# Matches strings and comments, unterminated ones up to the end of the file, so that only keys and other values remain.
_STRING_OR_COMMENT = re.compile(
    r'"""(?:[^\\]|\\.)*?(?:"""|\Z)|\'\'\'.*?(?:\'\'\'|\Z)|"(?:[^"\\\n]|\\.)*"?|\'[^\'\n]*\'?|#[^\n]*', re.DOTALL
)
_LONG_KEY = re.compile(rf"(?<![\w-])(?:[\w-]+[ \t]*\.[ \t]*){{{MAX_KEY_PARTS},}}")


def parse_toml(text: str) -> dict[str, Any]:
    """Parse a TOML document; raise `ValueError` if it is invalid or exceeds a limit."""
    text_without_strings = _STRING_OR_COMMENT.sub("s", text)
    if _LONG_KEY.search(text_without_strings):
        raise ValueError(f"a dotted key has more than {MAX_KEY_PARTS} parts")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("lists are nested too deeply") from None


def parse_toml_value(text: str, location: str) -> Any:
    """Parse the value of a setting. Text that is not valid TOML is returned unchanged.

    Args:
        text: The value, as given on the command line.
        location: Dotted name of the setting, for error messages.

    Raises:
        ConfigError: If the value is nested so deeply that copying it would exceed the recursion limit.
    """
    try:
        value = parse_toml(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    except ValueError as error:
        raise ConfigError("settings", [ValidationIssue(location, str(error))]) from None
    if issues := [issue for issue in find_unsupported_values(value, location) if "nested" in issue.message]:
        raise ConfigError("settings", issues[:1])
    return value


def find_unsupported_values(value: Any, location: str = "", depth: int = 0) -> list[ValidationIssue]:
    """Return issues for values that are valid TOML but not valid settings: dates, large integers, NaN, deep nesting."""
    return list(_iter_unsupported_values(value, location, depth))


def _iter_unsupported_values(value: Any, location: str, depth: int) -> Iterator[ValidationIssue]:
    """Yield an issue for each TOML value that no setting takes. `location` is its dotted key, `depth` its nesting."""
    if depth > MAX_NESTING_DEPTH:
        yield ValidationIssue(
            location, f"is nested too deeply: more than {MAX_NESTING_DEPTH} tables or lists in each other"
        )
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _iter_unsupported_values(item, f"{location}.{key}".strip("."), depth + 1)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _iter_unsupported_values(item, location, depth + 1)
    elif isinstance(value, float) and not math.isfinite(value):
        yield ValidationIssue(location, f"must be a finite number, not {value}")
    elif isinstance(value, int) and abs(value) > MAX_INTEGER:
        yield ValidationIssue(location, f"is too large; integers end at {MAX_INTEGER:,}")
    elif isinstance(value, date | time):
        yield ValidationIssue(location, f"is a date or a time ({value}); no setting is one")


def format_toml_document(settings: Mapping[str, Any]) -> str:
    """Format settings as an experiment file: plain values first, then one section per dict and per variant."""
    top_level_settings = {key: value for key, value in settings.items() if not isinstance(value, Mapping)}
    blocks = ["\n".join(_format_toml_lines(top_level_settings))]
    for name, table in settings.items():
        if name == "variants":
            for variant, changes in table.items():
                dotted_changes = {
                    f"{changed_table}.{key}": value
                    for changed_table, changed_settings in changes.items()
                    for key, value in changed_settings.items()
                }
                header = f"[variants.{_format_toml_key(variant)}]"
                blocks.append("\n".join([header, *_format_toml_lines(dotted_changes)]))
        elif isinstance(table, Mapping):
            blocks.append("\n".join([f"[{name}]", *_format_toml_lines(table)]))
    return "\n\n".join(block for block in blocks if block) + "\n"


def _format_toml_lines(settings: Mapping[str, Any]) -> list[str]:
    return [
        f"{'.'.join(map(_format_toml_key, key.split('.')))} = {format_toml_value(value)}"
        for key, value in settings.items()
    ]


def format_toml_value(value: Any) -> str:
    """Return a value in TOML syntax on one line; None becomes an empty string."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, Mapping):
        items = ", ".join(
            f"{_format_toml_key(key)} = {format_toml_value(item)}" for key, item in value.items() if item is not None
        )
        return f"{{ {items} }}" if items else "{}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(format_toml_value, value)) + "]"
    return repr(value)


def _format_toml_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key, ensure_ascii=False)
