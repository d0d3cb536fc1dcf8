"""Read and write JSON and JSON Lines files, strictly and with checksums.

Files of run folders may have been written by others. Parsing therefore rejects what readers interpret differently
(repeated keys, NaN) and what could exhaust the memory or the recursion limit.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from pathlib import Path
from typing import Any

from headtohead import safe_open
from headtohead.atomic_io import translate_disk_full_error, truncate_file, write_bytes
from headtohead.errors import RunFolderError, truncate_text

MAX_JSON_VALUES = 2_000_000
"""limit of the values in a file, because a parsed value takes up to 30 times the space of its text"""

CHECKSUM_KEY = "checksum"
MAX_QUOTED_CHARS = 120
"""length to which an invalid value is shortened in an error message"""
MAX_INTEGER = 2**63
MAX_NESTING_DEPTH = 64
"""deeper values are rejected, because recursive code that processes them could exceed the recursion limit"""


def write_json(path: Path, value: Any, *, fsync: bool = False, with_checksum: bool = False) -> None:
    """Write a value as indented JSON, atomically.

    With `with_checksum`, `value` must be a dict and a checksum of its content is appended under `CHECKSUM_KEY`. Use it
    for files whose hash is not recorded elsewhere.
    """
    content = {**value, CHECKSUM_KEY: compute_json_checksum(value)} if with_checksum else value
    write_bytes(path, (json.dumps(content, indent=1, allow_nan=False) + "\n").encode(), fsync=fsync)


def compute_json_checksum(value: dict[str, Any], previous_checksum: str = "") -> str:
    """Return the SHA-256 of a JSON object, without the checksum that it contains.

    In a file of chained lines, `previous_checksum` is that of the line before.
    """
    content = {key: item for key, item in value.items() if key != CHECKSUM_KEY}
    return hashlib.sha256((previous_checksum + json.dumps(content, sort_keys=True)).encode()).hexdigest()


def has_valid_json_checksum(value: dict[str, Any]) -> bool:
    """Return True if a JSON object matches the checksum that it contains, or if it contains none.

    The checksum is the last entry. If the last entry under a different key is a valid checksum of the others, the key
    itself was corrupted, and the result is False.
    """
    if CHECKSUM_KEY in value:
        return bool(value[CHECKSUM_KEY] == compute_json_checksum(value))
    *other_keys, last_key = value or {"": None}
    last_value = value.get(last_key)
    is_checksum = isinstance(last_value, str) and len(last_value) == 64
    return not (is_checksum and last_value == compute_json_checksum({key: value[key] for key in other_keys}))


def verify_json_checksum(path: Path, remedy: str) -> None:
    """Raise `RunFolderError` if a JSON file does not match its checksum. `remedy` is appended to the message."""
    if not has_valid_json_checksum(read_json_object(path)):
        raise RunFolderError(f"{path} is corrupted: checksum mismatch; {remedy}")


def read_json(path: Path) -> Any:
    """Read and parse a JSON file with the checks of `parse_json`."""
    return parse_json(safe_open.read_file(path), path)


def read_json_object(path: Path) -> dict[str, Any]:
    """Read a JSON file whose top-level value must be an object."""
    value = read_json(path)
    if not isinstance(value, dict):
        quoted_value = truncate_text(repr(value), MAX_QUOTED_CHARS)
        raise RunFolderError(f"{path} is corrupted: expected a JSON object, got {quoted_value}")
    return value


def parse_json(raw: bytes, source: object, *, require_finite: bool = True) -> Any:
    """Parse JSON from an untrusted file; raise `RunFolderError` for repeated keys and values beyond the limits.

    `source` names the origin in error messages. With `require_finite`, NaN and infinities are rejected; logs of
    diverged runs may contain them.
    """
    check_json_value_count(raw, source)
    try:
        value = (
            json.loads(
                raw,
                parse_constant=_reject_non_finite,
                parse_float=_parse_finite_float,
                object_pairs_hook=_build_dict_without_repeated_keys,
            )
            if require_finite
            else json.loads(raw, object_pairs_hook=_build_dict_without_repeated_keys)
        )
        _check_json_limits(value)
    except RecursionError:
        raise RunFolderError(f"{source} is corrupted: values are nested too deeply") from None
    except ValueError as error:  # invalid JSON, invalid UTF-8, or an integer with too many digits
        raise RunFolderError(f"{source} is corrupted: {error}") from None
    return value


def _build_dict_without_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the dict of a parsed JSON object; raise ValueError for a repeated key.

    Parsers disagree on which value of a repeated key counts, so a verified file could be read differently elsewhere.
    """
    value = dict(pairs)
    if len(value) < len(pairs):
        key = next(key for index, (key, _) in enumerate(pairs) if key in dict(pairs[:index]))
        raise ValueError(f"the key {truncate_text(repr(key), MAX_QUOTED_CHARS)} occurs twice")
    return value


def _reject_non_finite(literal: str) -> float:
    raise ValueError(f"{literal} is not a number")


def _parse_finite_float(literal: str) -> float:
    number = float(literal)
    return number if math.isfinite(number) else _reject_non_finite(literal)


def _check_json_limits(value: Any) -> None:
    """Raise `ValueError` for parsed JSON with excessive nesting, integers beyond 2**63, or unpaired surrogates."""
    values_at_depth = [value]
    for _ in range(MAX_NESTING_DEPTH):
        children: list[Any] = []
        for item in values_at_depth:
            if isinstance(item, str):
                item.encode()
            elif isinstance(item, int) and abs(item) > MAX_INTEGER:
                raise ValueError(f"{truncate_text(str(item), MAX_QUOTED_CHARS)} is too large a number")
            elif isinstance(item, dict):
                children += [*item, *item.values()]
            elif isinstance(item, list):
                children += item
        if not children:
            return
        values_at_depth = children
    raise ValueError("values are nested too deeply")


def append_jsonl(path: Path, value: Any, *, fsync: bool = False) -> None:
    """Append one line to a JSON Lines file with a single write. With `fsync`, wait until it has reached the disk."""
    with translate_disk_full_error(path), safe_open.append_to_file(path) as file:
        file.write(json.dumps(value).encode() + b"\n")
        if fsync:
            file.flush()
            os.fsync(file.fileno())


def read_jsonl(path: Path, *, is_own_cache: bool = False) -> list[dict[str, Any]]:
    """Return the objects of a JSON Lines file, without a last line that was cut off when the writer was killed.

    The size of files in this user's caches is not limited (`is_own_cache`).
    """
    if not path.is_file():
        return []
    max_bytes = safe_open.MAX_WEIGHTS_BYTES if is_own_cache else safe_open.MAX_FILE_BYTES
    complete_lines, _, _ = safe_open.read_file(path, max_bytes).rpartition(b"\n")
    if not is_own_cache:
        check_json_value_count(complete_lines, path)
    records = []
    for line_number, line in enumerate(complete_lines.split(b"\n"), start=1):
        if line:
            record = parse_json(line, f"{path}, line {line_number}", require_finite=False)
            if not isinstance(record, dict):
                raise RunFolderError(f"{path}, line {line_number} is corrupted: expected a JSON object")
            records.append(record)
    return records


def repair_jsonl(path: Path, *, is_own_cache: bool = False) -> list[dict[str, Any]]:
    """Return the objects of a JSON Lines file and remove an incomplete last line, so that lines can be appended."""
    records = read_jsonl(path, is_own_cache=is_own_cache)
    if path.is_file():
        content = safe_open.read_file(path, safe_open.MAX_WEIGHTS_BYTES)
        truncate_file(path, content.rfind(b"\n") + 1)
    return records


def check_json_value_count(raw: bytes, source: object) -> None:
    """Raise RunFolderError if an untrusted JSON file may have too many values to parse.

    Counts commas and opening brackets, including those inside strings.
    """
    if raw.count(b",") + raw.count(b"[") + raw.count(b"{") > MAX_JSON_VALUES:
        raise RunFolderError(f"{source} has more than {MAX_JSON_VALUES:,} values, the limit")
