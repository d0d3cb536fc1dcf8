"""Atomic file writes, checksums, strict JSON and folder locks.

A file is replaced by rename, so readers see the old content or the new one but never a part of it. A full disk raises
`DiskFullError`.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from headtohead import safe_open
from headtohead.errors import DiskFullError, RunFolderError, escape_control_characters, truncate_text


@contextmanager
def translate_disk_full_error(path: Path) -> Iterator[None]:
    """Raise `DiskFullError` in place of an `OSError` caused by a full disk or an exceeded quota."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFullError(
                f"no disk space left to write {path}; free some space and continue with --resume"
            ) from error
        raise


def write_bytes(path: Path, content: bytes, *, fsync: bool = False) -> None:
    """Write a file atomically: write to a temporary file in the same folder, then rename it.

    With `fsync`, also wait until the content has reached the disk. This is much slower and only protects against power
    loss.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    with translate_disk_full_error(path):
        try:
            with safe_open.create_file(temporary) as file:
                file.write(content)
                if fsync:
                    file.flush()
                    os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text atomically."""
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any, *, fsync: bool = False, with_checksum: bool = False) -> None:
    """Write a value as indented JSON, atomically.

    With `with_checksum`, `value` must be a dict and a checksum of its content is appended under `CHECKSUM_KEY`. Use it
    for files whose hash is not recorded elsewhere.
    """
    content = {**value, CHECKSUM_KEY: compute_checksum(value)} if with_checksum else value
    write_bytes(path, (json.dumps(content, indent=1, allow_nan=False) + "\n").encode(), fsync=fsync)


CHECKSUM_KEY = "checksum"


def compute_checksum(value: dict[str, Any], previous: str = "") -> str:
    """Return the SHA-256 of the JSON form of a dict, without its checksum entry.

    In a file of chained lines, `previous` is the checksum of the line before.
    """
    content = {key: item for key, item in value.items() if key != CHECKSUM_KEY}
    return hashlib.sha256((previous + json.dumps(content, sort_keys=True)).encode()).hexdigest()


def has_valid_checksum(value: dict[str, Any]) -> bool:
    """Return True if the dict matches its checksum, or if it has none.

    The checksum is the last entry. If the last entry under another key is a valid checksum of the others, the key
    itself was corrupted, and the result is False.
    """
    if CHECKSUM_KEY in value:
        return bool(value[CHECKSUM_KEY] == compute_checksum(value))
    *other_keys, last_key = value or {"": None}
    last_value = value.get(last_key)
    is_checksum = isinstance(last_value, str) and len(last_value) == 64
    return not (is_checksum and last_value == compute_checksum({key: value[key] for key in other_keys}))


def verify_checksum(path: Path, remedy: str) -> None:
    """Raise `RunFolderError` if the file does not match its checksum. `remedy` is appended to the message."""
    if not has_valid_checksum(read_json_object(path)):
        raise RunFolderError(f"{path} is corrupted: checksum mismatch; {remedy}")


MAX_INTEGER = 2**63
MAX_NESTING_DEPTH = 64
"""deeper values are rejected, because recursive code that processes them could exceed the recursion limit"""


def read_json(path: Path) -> Any:
    """Read and parse a JSON file with the checks of `parse_json`."""
    return parse_json(safe_open.read_file(path), path)


def read_json_object(path: Path) -> dict[str, Any]:
    """Read a JSON file whose top-level value must be an object."""
    value = read_json(path)
    if not isinstance(value, dict):
        raise RunFolderError(f"{path} is corrupted: expected a JSON object, got {truncate_text(repr(value), 120)}")
    return value


def parse_json(raw: bytes, source: object, *, require_finite: bool = True) -> Any:
    """Parse JSON without repeated keys and check it with `check_json_value`.

    `source` names the origin in error messages. With `require_finite`, NaN and infinities are rejected; logs of
    diverged runs may contain them.
    """
    safe_open.check_value_count(raw, source)
    try:
        value = (
            json.loads(
                raw,
                parse_constant=_reject_non_finite,
                parse_float=_parse_finite_float,
                object_pairs_hook=_build_object,
            )
            if require_finite
            else json.loads(raw, object_pairs_hook=_build_object)
        )
        check_json_value(value)
    except RecursionError:
        raise RunFolderError(f"{source} is corrupted: values are nested too deep") from None
    except ValueError as error:  # invalid JSON, invalid UTF-8, or an integer with too many digits
        raise RunFolderError(f"{source} is corrupted: {error}") from None
    return value


def _build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a dict; raise ValueError for a repeated key, of which other readers may use another value."""
    value = dict(pairs)
    if len(value) < len(pairs):
        key = next(key for index, (key, _) in enumerate(pairs) if key in dict(pairs[:index]))
        raise ValueError(f"the key {truncate_text(repr(key), 120)} occurs twice")
    return value


def _reject_non_finite(word: str) -> float:
    raise ValueError(f"{word} is not a number")


def _parse_finite_float(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _reject_non_finite(text)


def check_json_value(value: Any) -> None:
    """Raise `ValueError` for excessive nesting, integers beyond 2**63, or strings with unpaired surrogates."""
    values = [value]
    for _ in range(MAX_NESTING_DEPTH):
        children: list[Any] = []
        for item in values:
            if isinstance(item, str):
                item.encode()
            elif isinstance(item, int) and abs(item) > MAX_INTEGER:
                raise ValueError(f"{truncate_text(str(item), 120)} is too large a number")
            elif isinstance(item, dict):
                children += [*item, *item.values()]
            elif isinstance(item, list):
                children += item
        if not children:
            return
        values = children
    raise ValueError("values are nested too deep")


def append_jsonl(path: Path, value: Any, *, fsync: bool = False) -> None:
    """Append one line to a JSONL file with a single write. With `fsync`, wait until it has reached the disk."""
    with translate_disk_full_error(path), safe_open.append_to_file(path) as file:
        file.write(json.dumps(value).encode() + b"\n")
        if fsync:
            file.flush()
            os.fsync(file.fileno())


def read_jsonl(path: Path, *, is_own_cache: bool = False) -> list[dict[str, Any]]:
    """Return the complete lines of a JSONL file, without a last line that was cut off when the writer was killed.

    The size of files in this user's caches is not limited (`is_own_cache`).
    """
    if not path.is_file():
        return []
    max_bytes = safe_open.MAX_WEIGHTS_BYTES if is_own_cache else safe_open.MAX_FILE_BYTES
    complete_lines, _, _ = safe_open.read_file(path, max_bytes).rpartition(b"\n")
    if not is_own_cache:
        safe_open.check_value_count(complete_lines, path)
    rows = []
    for number, line in enumerate(complete_lines.split(b"\n"), start=1):
        if line:
            row = parse_json(line, f"{path}, line {number}", require_finite=False)
            if not isinstance(row, dict):
                raise RunFolderError(f"{path}, line {number} is corrupted: expected a JSON object")
            rows.append(row)
    return rows


def repair_jsonl(path: Path, *, is_own_cache: bool = False) -> list[dict[str, Any]]:
    """Return the complete lines of a JSONL file and remove an incomplete last line, so that lines can be appended."""
    rows = read_jsonl(path, is_own_cache=is_own_cache)
    if path.is_file():
        content = safe_open.read_file(path, safe_open.MAX_WEIGHTS_BYTES)
        truncate_file(path, content.rfind(b"\n") + 1)
    return rows


def truncate_file(path: Path, size: int) -> None:
    """Truncate a file to `size` bytes if it is longer."""
    with translate_disk_full_error(path), safe_open.append_to_file(path) as file:
        if os.fstat(file.fileno()).st_size > size:
            file.truncate(size)


def compute_sha256(path: Path) -> str:
    """Return the SHA-256 of the content of a regular file. The path may be a link, because users name such files."""
    with safe_open.open_file(path, safe_open.MAX_WEIGHTS_BYTES, follow_link=True) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def get_cache_folder(name: str) -> Path:
    """Return the folder of a cache: $XDG_CACHE_HOME/headtohead/NAME, by default in ~/.cache."""
    cache_home = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache_home) if cache_home else Path.home() / ".cache") / "headtohead" / name


@contextmanager
def lock_cache_folder(folder: Path) -> Iterator[None]:
    """Hold an exclusive lock on a cache folder. Other processes wait, then find the cached result."""
    with translate_disk_full_error(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with safe_open.open_lock_file(folder / ".lock") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            path = escape_control_characters(str(folder / ".lock"))
            sys.stderr.write(f"waiting for another process, which holds the lock {path}\n")
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            reason = f"its file system has no file locks ({error.strerror}); set XDG_CACHE_HOME to a local folder"
            raise OSError(error.errno, reason, str(folder)) from None
        yield


@contextmanager
def lock_run_folder(folder: Path) -> Iterator[None]:
    """Hold an exclusive lock on a run folder; other processes wait.

    The lock is held on the folder itself, and the operating system releases it when the process exits for any reason.
    """
    with translate_disk_full_error(folder):
        folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network file systems cannot lock folders
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
