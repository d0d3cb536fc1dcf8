"""Trainings that the server starts: processes of their own that outlive it and are found again.

Beside the experiment's folder lie, hidden like its lock: `.NAME.training.json`, which process it is (its number and
when it began, so that a number that was given to another process since is never mistaken for it),
and `.NAME.training.log`, what it said. A training holds the lock of its folder, whoever started it; the server ends
only what a server started.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from headtohead.atomic_io import read_json, write_json
from headtohead.errors import HeadToHeadError, RequestError

MAX_CONCURRENT_TRAININGS = 2
INTERRUPT_GRACE_SECONDS = 10.0
"""seconds after which a training that was asked to stop is told to"""
NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}")
LOG_TAIL_BYTES = 2000
_start_lock = threading.Lock()


class ConflictError(RequestError):
    """It cannot be done now, and can be later."""


@dataclass(frozen=True)
class TrainingProcess:
    """A process that trains."""

    name: str
    pid: int
    began: float

    def is_alive(self) -> bool:
        try:
            process = psutil.Process(self.pid)
            return abs(process.create_time() - self.began) < 1 and process.status() != psutil.STATUS_ZOMBIE
        except (psutil.Error, ValueError, OverflowError):  # gone, or no number that a process can have
            return False

    def signal(self, signal_number: signal.Signals) -> None:
        if self.is_alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal_number)


def validate_name(name: str) -> str:
    if not NAME_PATTERN.fullmatch(name):
        raise RequestError("name: letters, digits and . _ + - inside, at most 64 of them, and a letter or digit first")
    return name


def list_started_names(root: Path) -> list[str]:
    """The names of all that servers have started here."""
    ending = ".training.json"
    found = [entry.name for entry in os.scandir(root) if entry.name.endswith(ending) and entry.name.startswith(".")]
    return sorted(name for one in found if NAME_PATTERN.fullmatch(name := one[1 : -len(ending)]))


def find_training_process(root: Path, name: str) -> TrainingProcess | None:
    """The process that trains this experiment, if a server started it and it is alive."""
    if not NAME_PATTERN.fullmatch(name):
        return None
    try:
        found = read_json(_get_record_path(root, name))
        training = TrainingProcess(name, int(found["pid"]), float(found["began"]))
    except (HeadToHeadError, OSError, KeyError, TypeError, ValueError):
        return None
    return training if training.is_alive() else None


def is_locked(folder: Path) -> bool:
    """Whether somebody trains in this folder, asked without disturbing anybody who is about to begin."""
    lock = folder.parent / f".{folder.name}.lock"
    try:
        number = lock.stat().st_ino
        if number not in _read_locked_inodes():
            return False
        with lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _read_locked_inodes() -> _UniversalSet | set[int]:
    """The numbers of the files that are locked on this machine, where the system tells."""
    try:
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return _UniversalSet()
    places = [word for line in lines for word in line.split() if word.count(":") == 2]
    return {int(place.rpartition(":")[2]) for place in places}


class _UniversalSet:
    """Where the system does not tell, every file may be locked."""

    def __contains__(self, number: object) -> bool:
        return True


def start(root: Path, name: str, arguments: Sequence[str]) -> TrainingProcess:
    """`h2h run ARGUMENTS --out RUNS/NAME` in a new experiment's folder."""
    folder = root / validate_name(name)
    with _start_lock:
        if folder.exists() or find_training_process(root, name):
            raise RequestError(f"name: there is an experiment {name!r} already; give another name")
        _check_concurrency_limit(root)
        return _launch_process(root, name, [*_get_h2h_command(), "run", *arguments, "--out", str(folder)])


def resume(root: Path, name: str, num_seeds: int | None = None) -> TrainingProcess:
    """Go on with what is there; with `seeds`, until every variant has so many."""
    validate_name(name)
    with _start_lock:
        if find_training_process(root, name) or is_locked(root / name):
            raise ConflictError("it is being trained right now")
        _check_concurrency_limit(root)
        more = [] if num_seeds is None else [str(num_seeds)]
        return _launch_process(root, name, [sys.executable, "-m", "headtohead.web.resume", str(root / name), *more])


def stop(root: Path, name: str) -> None:
    """Ask it to stop, as Ctrl-C does; if it does not, tell it. Checkpoints are kept either way."""
    training = find_training_process(root, name)
    if training is None:
        if NAME_PATTERN.fullmatch(name) and is_locked(root / name):
            raise ConflictError("it was not started from here: press Ctrl-C where it was")
        raise ConflictError("it is not being trained")
    training.signal(signal.SIGINT)
    threading.Thread(target=_terminate_after_grace, args=(training,), daemon=True).start()


def _terminate_after_grace(training: TrainingProcess) -> None:
    until = time.monotonic() + INTERRUPT_GRACE_SECONDS
    while training.is_alive() and time.monotonic() < until:
        time.sleep(0.2)
    training.signal(signal.SIGTERM)


def read_log_tail(root: Path, name: str) -> str:
    """The end of what a training said."""
    if not NAME_PATTERN.fullmatch(name):
        return ""
    path = _get_log_path(root, name)
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - LOG_TAIL_BYTES))
            return file.read().decode(errors="replace").strip()
    except OSError:
        return ""


def _check_concurrency_limit(root: Path) -> None:
    alive = [name for name in list_started_names(root) if find_training_process(root, name)]
    if len(alive) >= MAX_CONCURRENT_TRAININGS:
        raise ConflictError(f"{len(alive)} trainings are running ({', '.join(alive)}); wait for one, or stop one")


def _launch_process(root: Path, name: str, command: list[str]) -> TrainingProcess:
    """In a session of its own, so that what ends the server does not end it."""
    with _get_log_path(root, name).open("wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd=Path.cwd()
        )
    training = TrainingProcess(name, process.pid, psutil.Process(process.pid).create_time())
    write_json(_get_record_path(root, name), {"pid": training.pid, "began": training.began, "command": command})
    # Somebody has to wait for it, or its number stays taken until the server ends.
    threading.Thread(target=process.wait, daemon=True).start()
    return training


def _get_h2h_command() -> list[str]:
    """The command as a person types it, where it is installed beside this Python."""
    script = Path(sys.executable).with_name("h2h")
    return [str(script)] if script.is_file() else [sys.executable, "-m", "headtohead.cli"]


def _get_record_path(root: Path, name: str) -> Path:
    return root / f".{name}.training.json"


def _get_log_path(root: Path, name: str) -> Path:
    return root / f".{name}.training.log"
