"""Atomic file writes, and the checksum of a file.

A file is replaced by rename, so readers see the old content or the new one but never a part of it. A full disk raises
`DiskFullError`.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from headtohead import safe_open
from headtohead.errors import DiskFullError


@contextmanager
def translate_disk_full_error(path: Path) -> Iterator[None]:
    """Raise `DiskFullError` if writing a file atomically fails because the disk is full or a quota is exceeded."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFullError(
                f"no disk space left to write {path}; free some space and continue with --resume"
            ) from error
        raise


def write_bytes(path: Path, content: bytes, *, fsync: bool = False) -> None:
    """Write a file atomically; see `open_atomic`."""
    with open_atomic(path, fsync=fsync) as file:
        file.write(content)


@contextmanager
def open_atomic(path: Path, *, fsync: bool = False) -> Iterator[BinaryIO]:
    """Open a temporary file in the same folder for writing, and rename it to `path` when the context ends.

    With `fsync`, also wait until the content has reached the disk. This is much slower and only protects against power
    loss.
    """
    temporary_path = path.with_name(f".{path.name}.{os.getpid()}.part")
    with translate_disk_full_error(path):
        try:
            with safe_open.create_file(temporary_path) as file:
                yield file
                if fsync:
                    file.flush()
                    os.fsync(file.fileno())
            temporary_path.replace(path)
        finally:
            temporary_path.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text atomically."""
    write_bytes(path, text.encode())


def truncate_file(path: Path, max_bytes: int) -> None:
    """Truncate a file to `max_bytes` if it is longer."""
    with translate_disk_full_error(path), safe_open.append_to_file(path) as file:
        if os.fstat(file.fileno()).st_size > max_bytes:
            file.truncate(max_bytes)


def compute_sha256(path: Path) -> str:
    """Return the SHA-256 of the content of a regular file. The path may be a link, because users name such files."""
    with safe_open.open_file(path, safe_open.MAX_WEIGHTS_BYTES, follow_link=True) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
