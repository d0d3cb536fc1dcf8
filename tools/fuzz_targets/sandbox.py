"""What no input may cause, watched from inside the interpreter (PEP 578)."""

from __future__ import annotations

import contextlib
import os
import site
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch  # noqa: F401  before anything is watched: it reads and compiles a lot when it is imported


class TrespassError(AssertionError):
    """Something was done that no input may cause."""


_watching = threading.local()
_hooked: list[bool] = []
STARTED = (
    "subprocess.Popen",
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.fork",
    "socket.connect",
    "pickle.find_class",
)
REMOVED = ("os.remove", "os.rmdir", "shutil.rmtree", "os.rename", "os.truncate", "os.mkdir", "os.symlink", "os.link")


@contextlib.contextmanager
def watched(scratch: Path) -> Iterator[None]:
    """Inside, what this thread does beyond the scratch folder and the installed packages raises `TrespassError`: at
    once where something would be changed, and at the end in any case, should somebody have caught it."""
    if not _hooked:
        sys.addaudithook(_audit)
        _hooked.append(True)
    before = getattr(_watching, "scratch", None)
    _watching.scratch, _watching.found = str(scratch.resolve()), []
    temporary, tempfile.tempdir = tempfile.tempdir, str(scratch)
    try:
        yield
        if _watching.found:
            raise TrespassError("; ".join(_watching.found[:3]))
    finally:
        _watching.scratch, tempfile.tempdir = before, temporary


@lru_cache
def _readable() -> tuple[str, ...]:
    """Where Python and the packages lie, and what the system tells about itself."""
    root = str(Path(__file__).parents[2])
    places = {*sysconfig.get_paths().values(), *site.getsitepackages(), sys.prefix, sys.base_prefix, root}
    places.add(str(Path(sys.argv[0]).resolve()))
    return (*places, "/proc", "/sys", "/dev/null", "/dev/urandom", "/etc/localtime", "/usr/share", "/usr/lib")


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    scratch = getattr(_watching, "scratch", None)
    if scratch is None:
        return
    violation = None
    if event in STARTED:
        violation = f"{event}: {arguments[0]!r}"
    elif event == "open" and isinstance(arguments[0], str | bytes | os.PathLike):
        violation = _opened(*arguments, scratch=scratch)
    elif event in REMOVED and isinstance(arguments[0], str | bytes | os.PathLike):
        path = _resolve_path(arguments[0])
        violation = None if path.startswith(scratch) or "__pycache__" in path else f"{event}: {path}"
    elif event == "exec" and str(getattr(arguments[0], "co_filename", "")).startswith(scratch):
        violation = f"code of the input was run: {arguments[0].co_filename}"
    if violation is not None:
        _watching.found.append(violation)
        if not violation.startswith("read"):
            raise TrespassError(violation)


def _resolve_path(path: Any) -> str:
    return os.path.realpath(os.fsdecode(path))


def _opened(path: Any, mode: Any, flags: Any, *, scratch: str) -> str | None:
    resolved = _resolve_path(path)
    if resolved.startswith(scratch):
        return None
    compiled = "__pycache__" in resolved and resolved.startswith(_readable())  # of a module that was imported just now
    if isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) and not compiled:
        return f"written outside: {resolved}"
    return None if resolved.startswith(_readable()) else f"read outside: {resolved}"
