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

MOST_AT_ONCE = 2
PATIENCE = 10.0
"""seconds after which a training that was asked to stop is told to"""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}")
LAST_WORDS = 2000
_starting = threading.Lock()


class BusyError(RequestError):
    """It cannot be done now, and can be later."""


@dataclass(frozen=True)
class Training:
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

    def signal(self, number: signal.Signals) -> None:
        if self.is_alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


def check_name(name: str) -> str:
    if not NAME.fullmatch(name):
        raise RequestError("name: letters, digits and . _ + - inside, at most 64 of them, and a letter or digit first")
    return name


def started(root: Path) -> list[str]:
    """The names of all that servers have started here."""
    ending = ".training.json"
    found = [entry.name for entry in os.scandir(root) if entry.name.endswith(ending) and entry.name.startswith(".")]
    return sorted(name for one in found if NAME.fullmatch(name := one[1 : -len(ending)]))


def find(root: Path, name: str) -> Training | None:
    """The process that trains this experiment, if a server started it and it is alive."""
    if not NAME.fullmatch(name):
        return None
    try:
        found = read_json(_record(root, name))
        training = Training(name, int(found["pid"]), float(found["began"]))
    except (HeadToHeadError, OSError, KeyError, TypeError, ValueError):
        return None
    return training if training.is_alive() else None


def is_locked(folder: Path) -> bool:
    """Whether somebody trains in this folder, asked without disturbing anybody who is about to begin."""
    lock = folder.parent / f".{folder.name}.lock"
    try:
        number = lock.stat().st_ino
        if number not in _locked_numbers():
            return False
        with lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _locked_numbers() -> _Anything | set[int]:
    """The numbers of the files that are locked on this machine, where the system tells."""
    try:
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return _Anything()
    places = [word for line in lines for word in line.split() if word.count(":") == 2]
    return {int(place.rpartition(":")[2]) for place in places}


class _Anything:
    """Where the system does not tell, every file may be locked."""

    def __contains__(self, number: object) -> bool:
        return True


def start(root: Path, name: str, arguments: Sequence[str]) -> Training:
    """`h2h run ARGUMENTS --out RUNS/NAME` in a new experiment's folder."""
    folder = root / check_name(name)
    with _starting:
        if folder.exists() or find(root, name):
            raise RequestError(f"name: there is an experiment {name!r} already; give another name")
        _check_number(root)
        return _launch(root, name, [*_h2h(), "run", *arguments, "--out", str(folder)])


def resume(root: Path, name: str, seeds: int | None = None) -> Training:
    """Go on with what is there; with `seeds`, until every variant has so many."""
    check_name(name)
    with _starting:
        if find(root, name) or is_locked(root / name):
            raise BusyError("it is being trained right now")
        _check_number(root)
        more = [] if seeds is None else [str(seeds)]
        return _launch(root, name, [sys.executable, "-m", "headtohead.web.resume", str(root / name), *more])


def stop(root: Path, name: str) -> None:
    """Ask it to stop, as Ctrl-C does; if it does not, tell it. Checkpoints are kept either way."""
    training = find(root, name)
    if training is None:
        if NAME.fullmatch(name) and is_locked(root / name):
            raise BusyError("it was not started from here: press Ctrl-C where it was")
        raise BusyError("it is not being trained")
    training.signal(signal.SIGINT)
    threading.Thread(target=_insist, args=(training,), daemon=True).start()


def _insist(training: Training) -> None:
    until = time.monotonic() + PATIENCE
    while training.is_alive() and time.monotonic() < until:
        time.sleep(0.2)
    training.signal(signal.SIGTERM)


def last_words(root: Path, name: str) -> str:
    """The end of what a training said."""
    if not NAME.fullmatch(name):
        return ""
    path = _log(root, name)
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - LAST_WORDS))
            return file.read().decode(errors="replace").strip()
    except OSError:
        return ""


def _check_number(root: Path) -> None:
    alive = [name for name in started(root) if find(root, name)]
    if len(alive) >= MOST_AT_ONCE:
        raise BusyError(f"{len(alive)} trainings are running ({', '.join(alive)}); wait for one, or stop one")


def _launch(root: Path, name: str, command: list[str]) -> Training:
    """In a session of its own, so that what ends the server does not end it."""
    with _log(root, name).open("wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd=Path.cwd()
        )
    training = Training(name, process.pid, psutil.Process(process.pid).create_time())
    write_json(_record(root, name), {"pid": training.pid, "began": training.began, "command": command})
    # Somebody has to wait for it, or its number stays taken until the server ends.
    threading.Thread(target=process.wait, daemon=True).start()
    return training


def _h2h() -> list[str]:
    """The command as a person types it, where it is installed beside this Python."""
    script = Path(sys.executable).with_name("h2h")
    return [str(script)] if script.is_file() else [sys.executable, "-m", "headtohead.cli"]


def _record(root: Path, name: str) -> Path:
    return root / f".{name}.training.json"


def _log(root: Path, name: str) -> Path:
    return root / f".{name}.training.log"
