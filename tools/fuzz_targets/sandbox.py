"""Detect file access, processes and connections that no input may cause, with an audit hook (PEP 578)."""

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

import torch  # noqa: F401  outside the sandbox, because its import reads many files


class SandboxViolationError(AssertionError):
    """An input caused a forbidden effect."""


_sandbox_state = threading.local()
_installed_hooks: list[bool] = []
FORBIDDEN_EVENTS = (
    "subprocess.Popen",
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.fork",
    "socket.connect",
    "pickle.find_class",
)
PATH_CHANGING_EVENTS = (
    "os.remove",
    "os.rmdir",
    "shutil.rmtree",
    "os.rename",
    "os.truncate",
    "os.mkdir",
    "os.symlink",
    "os.link",
)


@contextlib.contextmanager
def run_in_sandbox(scratch: Path) -> Iterator[None]:
    """Raise `SandboxViolationError` if this thread accesses files outside the scratch folder and installed packages.

    Writes raise immediately. All violations raise at the end of the context as well, in case the exception was caught.
    """
    if not _installed_hooks:
        sys.addaudithook(_audit)
        _installed_hooks.append(True)
    previous_scratch = getattr(_sandbox_state, "scratch", None)
    _sandbox_state.scratch, _sandbox_state.violations = str(scratch.resolve()), []
    previous_tempdir, tempfile.tempdir = tempfile.tempdir, str(scratch)
    try:
        yield
        if _sandbox_state.violations:
            raise SandboxViolationError("; ".join(_sandbox_state.violations[:3]))
    finally:
        _sandbox_state.scratch, tempfile.tempdir = previous_scratch, previous_tempdir


@lru_cache
def _list_readable_paths() -> tuple[str, ...]:
    """Return the paths of Python, its packages and system information, which may be read."""
    root = str(Path(__file__).parents[2])
    readable_paths = {*sysconfig.get_paths().values(), *site.getsitepackages(), sys.prefix, sys.base_prefix, root}
    readable_paths.add(str(Path(sys.argv[0]).resolve()))
    return (*readable_paths, "/proc", "/sys", "/dev/null", "/dev/urandom", "/etc/localtime", "/usr/share", "/usr/lib")


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    """Record and reject forbidden effects; called by Python for every audit event."""
    scratch = getattr(_sandbox_state, "scratch", None)
    if scratch is None:
        return
    violation = None
    if event in FORBIDDEN_EVENTS:
        violation = f"{event}: {arguments[0]!r}"
    elif event == "open" and isinstance(arguments[0], str | bytes | os.PathLike):
        violation = _check_open(*arguments, scratch=scratch)
    elif event in PATH_CHANGING_EVENTS and isinstance(arguments[0], str | bytes | os.PathLike):
        path = _resolve_path(arguments[0])
        violation = None if path.startswith(scratch) or "__pycache__" in path else f"{event}: {path}"
    elif event == "exec" and str(getattr(arguments[0], "co_filename", "")).startswith(scratch):
        violation = f"code of the input was run: {arguments[0].co_filename}"
    if violation is not None:
        _sandbox_state.violations.append(violation)
        if not violation.startswith("read"):
            raise SandboxViolationError(violation)


def _resolve_path(path: Any) -> str:
    return os.path.realpath(os.fsdecode(path))


def _check_open(path: Any, mode: Any, flags: Any, *, scratch: str) -> str | None:
    """Return the violation of opening a file, or None if it is allowed."""
    resolved = _resolve_path(path)
    if resolved.startswith(scratch):
        return None
    is_compiled_module = "__pycache__" in resolved and resolved.startswith(_list_readable_paths())
    if isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) and not is_compiled_module:
        return f"written outside: {resolved}"
    return None if resolved.startswith(_list_readable_paths()) else f"read outside: {resolved}"
