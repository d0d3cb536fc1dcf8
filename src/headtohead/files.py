"""Writing that survives: a file is there whole or not at all, and a full disk is said in plain words."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .errors import DiskFullError, RunFolderError


@contextmanager
def disk_full_in_words(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFullError(
                f"no room left on the disk to write {path}; free some and run again with --resume"
            ) from error
        raise


def write_bytes(path: Path, content: bytes, *, durable: bool = False) -> None:
    """Write to a neighbour, then rename: nobody ever sees half a file, however the process ends. `durable` waits for
    the disk as well, which costs much more and only helps against a loss of power."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    with disk_full_in_words(path):
        try:
            with temporary.open("wb") as file:
                file.write(content)
                if durable:
                    file.flush()
                    os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any, *, durable: bool = False) -> None:
    write_bytes(path, (json.dumps(value, indent=1, allow_nan=False) + "\n").encode(), durable=durable)


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        raise RunFolderError(f"{path}: no such file; is this a run folder?") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise RunFolderError(f"{path}: is damaged ({error})") from None


def append_line(path: Path, value: Any) -> None:
    """One more line of a JSONL file, written in one piece."""
    with disk_full_in_words(path), path.open("ab") as file:
        file.write(json.dumps(value).encode() + b"\n")


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a JSONL file; a last line that was cut off by a kill is left out."""
    if not path.is_file():
        return []
    whole, _, _ = path.read_bytes().rpartition(b"\n")
    return [json.loads(line) for line in whole.split(b"\n") if line]


def whole_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a JSONL file that is to be gone on with. The piece that a kill left at its end is taken away, so
    that the next line begins where a line begins."""
    found = read_lines(path)
    if path.is_file():
        content = path.read_bytes()
        cut_to(path, content.rfind(b"\n") + 1)
    return found


def cut_to(path: Path, size: int) -> None:
    """Take away what a file has beyond so many bytes."""
    if path.stat().st_size > size:
        with disk_full_in_words(path), path.open("r+b") as file:
            file.truncate(size)


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def cache_folder(name: str) -> Path:
    """Where work is kept that can be done again: $XDG_CACHE_HOME/headtohead/NAME (~/.cache unless set)."""
    place = os.environ.get("XDG_CACHE_HOME")
    return (Path(place) if place else Path.home() / ".cache") / "headtohead" / name


@contextmanager
def at_work(folder: Path) -> Iterator[None]:
    """One process a folder at a time; whoever comes later waits, and then finds the work done."""
    with disk_full_in_words(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


SAMPLES, SAMPLE_BYTES = 16, 2**16


def fingerprint(path: Path) -> str:
    """SHA-256 of a file of up to 1 MiB; of a larger one, of its size and 16 pieces of it, spread from end to end: it
    tells other files apart, and one that was cut or swapped, without reading it whole."""
    size = path.stat().st_size
    made = hashlib.sha256(f"{size} ".encode())
    with path.open("rb") as file:
        if size <= SAMPLES * SAMPLE_BYTES:
            made.update(file.read())
        else:
            for at in range(SAMPLES):
                file.seek(at * (size - SAMPLE_BYTES) // (SAMPLES - 1))
                made.update(file.read(SAMPLE_BYTES))
    return made.hexdigest()
