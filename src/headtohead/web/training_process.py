"""Training processes that the server starts. They outlive it, and the next server finds them.

Two hidden files are kept next to the experiment's folder. `.NAME.training.json` records the process id, its start time
(so that a reused id is not mistaken for the process) and a signature (so that a record in someone else's folder is not
trusted). `.NAME.training.log` contains the output. Every training run locks its folder. The server stops only processes
that were started by a server.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import psutil

from headtohead import safe_open
from headtohead.atomic_io import get_cache_folder, read_json, write_json
from headtohead.errors import HeadToHeadError, RequestError, RunFolderError
from headtohead.experiment import trust

MAX_CONCURRENT_TRAININGS = 2
INTERRUPT_GRACE_SECONDS = 10.0
"""SIGTERM follows SIGINT after this time"""
NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}")
LOG_TAIL_BYTES = 2000
_start_lock = threading.Lock()


class ConflictError(RequestError):
    """The request conflicts with the current state and may succeed later."""


@dataclass(frozen=True)
class TrainingProcess:
    """A process that trains an experiment."""

    name: str
    pid: int
    began: float

    def is_alive(self) -> bool:
        """Return whether the process is running. Its start time rules out a different process with the same id."""
        try:
            process = psutil.Process(self.pid)
            return abs(process.create_time() - self.began) < 1 and process.status() != psutil.STATUS_ZOMBIE
        except (psutil.Error, ValueError, OverflowError):  # exited, or not a valid process id
            return False

    def signal(self, signal_number: signal.Signals) -> None:
        if self.is_alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal_number)


def validate_name(name: str) -> str:
    """Return the experiment name, or raise RequestError if it is not a valid folder name."""
    if not NAME_PATTERN.fullmatch(name):
        raise RequestError(
            "name: use letters, digits and . _ + -, at most 64 characters, starting with a letter or digit"
        )
    return name


def list_started_names(root: Path) -> list[str]:
    """Return the names of all experiments that a server has started in this runs folder."""
    suffix = ".training.json"
    files = [entry.name for entry in os.scandir(root) if entry.name.endswith(suffix) and entry.name.startswith(".")]
    return sorted(name for file in files if NAME_PATTERN.fullmatch(name := file[1 : -len(suffix)]))


def find_training_process(root: Path, name: str) -> TrainingProcess | None:
    """Return the process that trains this experiment, provided a server started it and it is still alive."""
    if not NAME_PATTERN.fullmatch(name):
        return None
    try:
        record = read_json(_get_record_path(root, name))
        training = TrainingProcess(name, int(record["pid"]), float(record["began"]))
        if not hmac.compare_digest(str(record["signature"]), _sign_record(root, training)):
            return None
    except (HeadToHeadError, OSError, KeyError, TypeError, ValueError):
        return None
    return training if training.is_alive() else None


def is_locked(folder: Path) -> bool:
    """Return whether a process is training in this folder, without blocking one that is about to lock it."""
    lock = folder.parent / f".{folder.name}.lock"
    try:
        inode = lock.lstat().st_ino
        if inode not in _read_locked_inodes():
            return False
        with safe_open.open_file(lock) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except (OSError, RunFolderError):
        return False
    return False


def _read_locked_inodes() -> _UniversalSet | set[int]:
    """Return the inodes of locked files, or a set that contains every inode if /proc/locks is unavailable."""
    try:
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return _UniversalSet()
    device_inodes = [word for line in lines for word in line.split() if word.count(":") == 2]
    return {int(word.rpartition(":")[2]) for word in device_inodes}


class _UniversalSet:
    """Contains every inode, for systems without /proc/locks."""

    def __contains__(self, number: object) -> bool:
        return True


def start(root: Path, name: str, arguments: Sequence[str]) -> TrainingProcess:
    """Start `h2h run ARGUMENTS --out RUNS/NAME`."""
    folder = root / validate_name(name)
    with _start_lock:
        if folder.exists() or find_training_process(root, name):
            raise RequestError(f"name: an experiment {name!r} already exists; choose another name")
        _check_concurrency_limit(root)
        return _launch_process(root, name, [*_get_h2h_command(), "run", *arguments, "--out", str(folder)])


def resume(root: Path, name: str, num_seeds: int | None = None) -> TrainingProcess:
    """Resume an experiment; with `num_seeds`, train until every variant has that many seeds."""
    validate_name(name)
    trust.check_experiment_trusted(root / name)
    with _start_lock:
        if find_training_process(root, name) or is_locked(root / name):
            raise ConflictError("this experiment is being trained")
        _check_concurrency_limit(root)
        seeds = [] if num_seeds is None else [str(num_seeds)]
        return _launch_process(root, name, [sys.executable, "-m", "headtohead.web.resume", str(root / name), *seeds])


def stop(root: Path, name: str) -> None:
    """Interrupt training as Ctrl-C would, and terminate the process if it does not stop. Checkpoints are kept."""
    training = find_training_process(root, name)
    if training is None:
        if NAME_PATTERN.fullmatch(name) and is_locked(root / name):
            raise ConflictError("this training was not started here: press Ctrl-C in its terminal")
        raise ConflictError("this experiment is not being trained")
    training.signal(signal.SIGINT)
    threading.Thread(target=_terminate_after_grace, args=(training,), daemon=True).start()


def _terminate_after_grace(training: TrainingProcess) -> None:
    deadline = time.monotonic() + INTERRUPT_GRACE_SECONDS
    while training.is_alive() and time.monotonic() < deadline:
        time.sleep(0.2)
    training.signal(signal.SIGTERM)


def read_log_tail(root: Path, name: str) -> str:
    """Return the last part of the training log."""
    if not NAME_PATTERN.fullmatch(name):
        return ""
    try:
        return safe_open.read_tail(_get_log_path(root, name), LOG_TAIL_BYTES).decode(errors="replace").strip()
    except (OSError, RunFolderError):
        return ""


def _check_concurrency_limit(root: Path) -> None:
    alive = [name for name in list_started_names(root) if find_training_process(root, name)]
    if len(alive) >= MAX_CONCURRENT_TRAININGS:
        raise ConflictError(f"{len(alive)} trainings are running ({', '.join(alive)}); wait for one or stop one")


def _launch_process(root: Path, name: str, command: list[str]) -> TrainingProcess:
    """Start the process in a new session, so that it survives the server."""
    with safe_open.create_file(_get_log_path(root, name)) as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd=Path.cwd()
        )
    training = TrainingProcess(name, process.pid, psutil.Process(process.pid).create_time())
    record = {"pid": training.pid, "began": training.began, "command": command}
    write_json(_get_record_path(root, name), {**record, "signature": _sign_record(root, training)})
    # Reap the process when it exits.
    threading.Thread(target=process.wait, daemon=True).start()
    return training


def _get_h2h_command() -> list[str]:
    """Return the h2h script installed next to this Python interpreter, or the module if there is none."""
    script = Path(sys.executable).with_name("h2h")
    return [str(script)] if script.is_file() else [sys.executable, "-m", "headtohead.cli"]


def _sign_record(root: Path, training: TrainingProcess) -> str:
    """Return a signature that only this user's servers can create, because a runs folder may contain forged records."""
    record = json.dumps([str(root.resolve()), training.name, training.pid, training.began])
    return hmac.new(_read_signing_key(), record.encode(), hashlib.sha256).hexdigest()


@lru_cache(maxsize=1)
def _read_signing_key() -> bytes:
    """Return this user's signing key, created on first use. Without a writable cache it lasts as long as the server."""
    path = get_cache_folder("serve") / "signing-key"
    key = secrets.token_bytes(32)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with (
            contextlib.suppress(FileExistsError),
            os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as file,
        ):
            file.write(key)
        return safe_open.read_file(path) or key
    except (OSError, RunFolderError):
        return key


def _get_record_path(root: Path, name: str) -> Path:
    return root / f".{name}.training.json"


def _get_log_path(root: Path, name: str) -> Path:
    return root / f".{name}.training.log"
