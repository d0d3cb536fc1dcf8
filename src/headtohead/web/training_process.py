"""Start, find and stop training processes. They outlive the server that started them, and the next server finds them.

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
from headtohead.cache_folders import get_cache_folder
from headtohead.child_process import PYTHON_COMMAND
from headtohead.errors import HeadToHeadError, RequestError, RunFolderError
from headtohead.experiment import trust
from headtohead.json_files import read_json, write_json
from headtohead.web.experiment_folders import EXPERIMENT_NAME_PATTERN, validate_new_experiment_name

MAX_CONCURRENT_TRAININGS = 2
INTERRUPT_GRACE_SECONDS = 10.0
"""SIGTERM follows SIGINT after this time"""
LOG_TAIL_BYTES = 2000
_start_lock = threading.Lock()


class ConflictError(RequestError):
    """The request conflicts with the current state and may succeed later."""


@dataclass(frozen=True)
class TrainingProcess:
    """A process that trains an experiment."""

    name: str
    pid: int
    start_time: float
    """in seconds since the epoch, as the operating system reports it"""

    def is_alive(self) -> bool:
        """Return whether the process is running. Its start time rules out a different process with the same id."""
        try:
            process = psutil.Process(self.pid)
            return abs(process.create_time() - self.start_time) < 1 and process.status() != psutil.STATUS_ZOMBIE
        except (psutil.Error, ValueError, OverflowError):  # exited, or not a valid process id
            return False

    def send_signal(self, signal_number: signal.Signals) -> None:
        """Send a signal to the process, unless it has exited."""
        if self.is_alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal_number)


def list_names_started_by_server(root: Path) -> list[str]:
    """Return the names of all experiments that a server has started in this runs folder."""
    suffix = ".training.json"
    files = [entry.name for entry in os.scandir(root) if entry.name.endswith(suffix) and entry.name.startswith(".")]
    return sorted(name for file in files if EXPERIMENT_NAME_PATTERN.fullmatch(name := file[1 : -len(suffix)]))


def find_training_process(root: Path, name: str) -> TrainingProcess | None:
    """Return the process that trains this experiment, provided a server started it and it is still alive."""
    if not EXPERIMENT_NAME_PATTERN.fullmatch(name):
        return None
    try:
        record = read_json(_get_record_path(root, name))
        training = TrainingProcess(name, int(record["pid"]), float(record["began"]))
        if not hmac.compare_digest(str(record["signature"]), _sign_record(root, training)):
            return None
    except (HeadToHeadError, OSError, KeyError, TypeError, ValueError):
        return None
    return training if training.is_alive() else None


def is_being_trained(experiment_folder: Path) -> bool:
    """Return whether any process, started by a server or in a terminal, trains in an experiment's folder.

    Every training locks its folder. Testing the lock must not block a training that is about to take it.
    """
    lock_path = experiment_folder.parent / f".{experiment_folder.name}.lock"
    try:
        inode = lock_path.lstat().st_ino
        if inode not in _list_locked_inodes():
            return False
        with safe_open.open_file(lock_path) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except (OSError, RunFolderError):
        return False
    return False


def _list_locked_inodes() -> _EveryInode | set[int]:
    """Return the inodes of all locked files on this machine: any other folder is certainly not being trained.

    If /proc/locks is unavailable, return a set that contains every inode.
    """
    try:
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return _EveryInode()
    lock_ids = [word for line in lines for word in line.split() if word.count(":") == 2]  # MAJOR:MINOR:INODE
    return {int(lock_id.rpartition(":")[2]) for lock_id in lock_ids}


class _EveryInode:
    """Contains every inode, for systems without /proc/locks."""

    def __contains__(self, inode: object) -> bool:
        return True


def start_training_process(root: Path, name: str, arguments: Sequence[str]) -> TrainingProcess:
    """Start the process `h2h run ARGUMENTS --out RUNS/NAME`, which trains a new experiment."""
    folder = root / validate_new_experiment_name(name)
    with _start_lock:
        if folder.exists() or find_training_process(root, name):
            raise RequestError(f"name: an experiment {name!r} already exists; choose another name")
        _check_concurrency_limit(root)
        return _launch_process(root, name, [*_get_h2h_command(), "run", *arguments, "--out", str(folder)])


def resume_training_process(root: Path, name: str, num_seeds: int | None = None) -> TrainingProcess:
    """Start a process that resumes an experiment (resume_entrypoint.py).

    With `num_seeds`, it trains until every variant has that many seeds.
    """
    validate_new_experiment_name(name)
    trust.check_experiment_is_trusted(root / name)
    with _start_lock:
        if find_training_process(root, name) or is_being_trained(root / name):
            raise ConflictError("this experiment is being trained")
        _check_concurrency_limit(root)
        arguments = [str(root / name)] if num_seeds is None else [str(root / name), str(num_seeds)]
        return _launch_process(root, name, [*PYTHON_COMMAND, "-m", "headtohead.web.resume_entrypoint", *arguments])


def stop_training_process(root: Path, name: str) -> None:
    """Interrupt training as Ctrl-C would, and terminate the process if it does not stop. Its checkpoints remain."""
    training = find_training_process(root, name)
    if training is None:
        if EXPERIMENT_NAME_PATTERN.fullmatch(name) and is_being_trained(root / name):
            raise ConflictError("this training was not started here: press Ctrl-C in its terminal")
        raise ConflictError("this experiment is not being trained")
    training.send_signal(signal.SIGINT)
    threading.Thread(target=_terminate_after_grace, args=(training,), daemon=True).start()


def _terminate_after_grace(training: TrainingProcess) -> None:
    """Terminate a training process that does not exit soon after it was interrupted."""
    deadline = time.monotonic() + INTERRUPT_GRACE_SECONDS
    while training.is_alive() and time.monotonic() < deadline:
        time.sleep(0.2)
    training.send_signal(signal.SIGTERM)


def read_log_tail(root: Path, name: str) -> str:
    """Return the end of the output of the process that trained an experiment, or "" if a server did not start it."""
    if not EXPERIMENT_NAME_PATTERN.fullmatch(name):
        return ""
    try:
        return safe_open.read_tail(_get_log_path(root, name), LOG_TAIL_BYTES).decode(errors="replace").strip()
    except (OSError, RunFolderError):
        return ""


def _check_concurrency_limit(root: Path) -> None:
    """Raise ConflictError if MAX_CONCURRENT_TRAININGS experiments are being trained."""
    running_names = [name for name in list_names_started_by_server(root) if find_training_process(root, name)]
    if len(running_names) >= MAX_CONCURRENT_TRAININGS:
        raise ConflictError(
            f"{len(running_names)} trainings are running ({', '.join(running_names)}); wait for one or stop one"
        )


def _launch_process(root: Path, name: str, command: list[str]) -> TrainingProcess:
    """Start a training process in a new session, so that it survives the server, and record it in the runs folder."""
    with safe_open.create_file(_get_log_path(root, name)) as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd=Path.cwd()
        )
    training = TrainingProcess(name, process.pid, psutil.Process(process.pid).create_time())
    record = {"pid": training.pid, "began": training.start_time, "command": command}
    write_json(_get_record_path(root, name), {**record, "signature": _sign_record(root, training)})
    # Reap the process when it exits.
    threading.Thread(target=process.wait, daemon=True).start()
    return training


def _get_h2h_command() -> list[str]:
    """Return the h2h script installed next to this Python interpreter, or the module if there is none."""
    script = Path(sys.executable).with_name("h2h")
    return [str(script)] if script.is_file() else [*PYTHON_COMMAND, "-m", "headtohead.cli"]


def _sign_record(root: Path, training: TrainingProcess) -> str:
    """Return a signature that only this user's servers can create, because a runs folder may contain forged records."""
    record = json.dumps([str(root.resolve()), training.name, training.pid, training.start_time])
    return hmac.new(_read_signing_key(), record.encode(), hashlib.sha256).hexdigest()


@lru_cache(maxsize=1)
def _read_signing_key() -> bytes:
    """Return the user's key for records of training processes, created on first use."""
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
