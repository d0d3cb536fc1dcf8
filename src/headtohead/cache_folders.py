"""The user's cache: where its folders are, and a lock so that only one process builds a cached result."""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headtohead import safe_open
from headtohead.atomic_io import translate_disk_full_error
from headtohead.control_characters import escape_control_characters


def get_cache_folder(name: str) -> Path:
    """Return the folder of a cache: $XDG_CACHE_HOME/headtohead/NAME, by default in ~/.cache."""
    cache_home = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache_home) if cache_home else Path.home() / ".cache") / "headtohead" / name


@contextmanager
def lock_cache_folder(folder: Path) -> Iterator[None]:
    """Hold an exclusive lock on a folder in the user's cache. Other processes wait, then find the cached result."""
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
