"""Writing that survives: a file is there whole or not at all, and a full disk is said in plain words."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from headtohead.errors import DiskFullError, RunFolderError, truncate_text


@contextmanager
def translate_disk_full_error(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFullError(
                f"no room left on the disk to write {path}; free some and run again with --resume"
            ) from error
        raise


def write_bytes(path: Path, content: bytes, *, fsync: bool = False) -> None:
    """Write to a neighbour, then rename: nobody ever sees half a file, however the process ends. `durable` waits for
    the disk as well, which costs much more and only helps against a loss of power."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    with translate_disk_full_error(path):
        try:
            with temporary.open("wb") as file:
                file.write(content)
                if fsync:
                    file.flush()
                    os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any, *, fsync: bool = False, with_checksum: bool = False) -> None:
    """`sealed` adds a checksum of all the rest, for files that no other file vouches for."""
    kept = {**value, CHECKSUM_KEY: compute_checksum(value)} if with_checksum else value
    write_bytes(path, (json.dumps(kept, indent=1, allow_nan=False) + "\n").encode(), fsync=fsync)


CHECKSUM_KEY = "checksum"


def compute_checksum(value: dict[str, Any]) -> str:
    """SHA-256 of what an object says, its seal left out."""
    kept = {key: one for key, one in value.items() if key != CHECKSUM_KEY}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()


def has_valid_checksum(value: dict[str, Any]) -> bool:
    """Does an object agree with its seal, if it has one? A seal is the last entry: where that is a seal by another
    name, the name is what was damaged."""
    if CHECKSUM_KEY in value:
        return bool(value[CHECKSUM_KEY] == compute_checksum(value))
    *others, last = value or {"": None}
    said = value.get(last)
    is_seal = isinstance(said, str) and len(said) == 64
    return not (is_seal and said == compute_checksum({key: value[key] for key in others}))


def verify_checksum(path: Path, remedy: str) -> None:
    """RunFolderError for a sealed file that is not what was written."""
    if not has_valid_checksum(read_json_object(path)):
        raise RunFolderError(f"{path}: is damaged (its checksum does not agree); {remedy}")


MAX_INTEGER = 2**63
MAX_NESTING_DEPTH = 64
"""no file of ours holds lists in lists beyond this; one that does would be too deep for those who read it"""


def read_bytes(path: Path) -> bytes:
    """The content of a plain file. A pipe or a device in its place could be read for ever."""
    if not path.exists():
        raise RunFolderError(f"{path}: no such file; is this a run folder?")
    if not path.is_file():
        raise RunFolderError(f"{path}: is no plain file")
    try:
        return path.read_bytes()
    except OSError as error:
        raise RunFolderError(f"{path}: cannot be read ({error.strerror})") from None


def read_json(path: Path) -> Any:
    return parse_json(read_bytes(path), path)


def read_json_object(path: Path) -> dict[str, Any]:
    """A JSON file that holds an object, as all of ours do."""
    found = read_json(path)
    if not isinstance(found, dict):
        raise RunFolderError(
            f"{path}: is damaged (an object was expected, and it holds {truncate_text(repr(found), 120)})"
        )
    return found


def parse_json(raw: bytes, source: object, *, require_finite: bool = True) -> Any:
    """JSON of which every number is a number (unless a loss may have run away), every text can be written down, and the
    depth has an end."""
    try:
        found = (
            json.loads(raw, parse_constant=_reject_non_finite, parse_float=_parse_finite_float)
            if require_finite
            else json.loads(raw)
        )
        check_json_value(found)
    except RecursionError:
        raise RunFolderError(f"{source}: is damaged (its lists are nested too deep)") from None
    except ValueError as error:  # JSON, UTF-8 and numbers of too many digits
        raise RunFolderError(f"{source}: is damaged ({error})") from None
    return found


def _reject_non_finite(word: str) -> float:
    raise ValueError(f"{word} is not a number")


def _parse_finite_float(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _reject_non_finite(text)


def check_json_value(value: Any) -> None:
    """ValueError for plain data that could not be handed on: nested too deep, whole numbers that no other program
    reads, half characters."""
    level = [value]
    for _ in range(MAX_NESTING_DEPTH):
        below: list[Any] = []
        for one in level:
            if isinstance(one, str):
                one.encode()
            elif isinstance(one, int) and abs(one) > MAX_INTEGER:
                raise ValueError(f"{truncate_text(str(one), 120)} is too large a number")
            elif isinstance(one, dict):
                below += [*one, *one.values()]
            elif isinstance(one, list):
                below += one
        if not below:
            return
        level = below
    raise ValueError("its lists are nested too deep")


def append_jsonl(path: Path, value: Any) -> None:
    """One more line of a JSONL file, written in one piece."""
    _reject_symlink(path)
    with translate_disk_full_error(path), path.open("ab") as file:
        file.write(json.dumps(value).encode() + b"\n")


def _reject_symlink(path: Path) -> None:
    """A link in the place of a file is not written through: it may lead anywhere."""
    if path.is_symlink():
        raise RunFolderError(f"{path}: is a link to somewhere else, and is not written to")


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a JSONL file; a last line that was cut off by a kill is left out."""
    if not path.is_file():
        return []
    whole, _, _ = read_bytes(path).rpartition(b"\n")
    found = []
    for number, line in enumerate(whole.split(b"\n"), start=1):
        if line:
            row = parse_json(line, f"{path}, line {number}", require_finite=False)
            if not isinstance(row, dict):
                raise RunFolderError(f"{path}, line {number}: is damaged (it holds no object)")
            found.append(row)
    return found


def repair_jsonl(path: Path) -> list[dict[str, Any]]:
    """The lines of a JSONL file that is to be gone on with. The piece that a kill left at its end is taken away, so
    that the next line begins where a line begins."""
    found = read_jsonl(path)
    if path.is_file():
        content = read_bytes(path)
        truncate_file(path, content.rfind(b"\n") + 1)
    return found


def truncate_file(path: Path, size: int) -> None:
    """Take away what a file has beyond so many bytes."""
    if path.stat().st_size > size:
        _reject_symlink(path)
        with translate_disk_full_error(path), path.open("r+b") as file:
            file.truncate(size)


def compute_sha256(path: Path) -> str:
    if not path.is_file():
        raise RunFolderError(f"{path}: no such file, or no plain one")
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def get_cache_folder(name: str) -> Path:
    """Where work is kept that can be done again: $XDG_CACHE_HOME/headtohead/NAME (~/.cache unless set)."""
    place = os.environ.get("XDG_CACHE_HOME")
    return (Path(place) if place else Path.home() / ".cache") / "headtohead" / name


@contextmanager
def lock_cache_folder(folder: Path) -> Iterator[None]:
    """One process a folder at a time; whoever comes later waits, and then finds the work done."""
    with translate_disk_full_error(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def lock_run_folder(folder: Path) -> Iterator[None]:
    """One process at a time in a run's folder; a second one waits. The lock is on the folder itself and ends with the
    process, however that ends."""
    with translate_disk_full_error(folder):
        folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network disks lock no folders
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


FINGERPRINT_CHUNKS, FINGERPRINT_CHUNK_BYTES = 16, 2**16


def compute_fingerprint(path: Path) -> str:
    """SHA-256 of a file of up to 1 MiB; of a larger one, of its size and 16 pieces of it, spread from end to end: it
    tells other files apart, and one that was cut or swapped, without reading it whole."""
    if not path.is_file():
        raise RunFolderError(f"{path}: no such file, or no plain one")
    size = path.stat().st_size
    made = hashlib.sha256(f"{size} ".encode())
    with path.open("rb") as file:
        if size <= FINGERPRINT_CHUNKS * FINGERPRINT_CHUNK_BYTES:
            made.update(file.read())
        else:
            for at in range(FINGERPRINT_CHUNKS):
                file.seek(at * (size - FINGERPRINT_CHUNK_BYTES) // (FINGERPRINT_CHUNKS - 1))
                made.update(file.read(FINGERPRINT_CHUNK_BYTES))
    return made.hexdigest()
