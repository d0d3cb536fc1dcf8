"""Experiment trackers: `--log tensorboard`, `--log wandb`, `--log trackio`.

Each tracker runs in its own process (`process`), which reads the run folders while trials write them, so it
cannot slow down or break training. A tracker's first problem is reported as a warning.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from headtohead.errors import MissingExtraError, RequestError, format_suggestion
from headtohead.json_channel import ChildProcess

OnJobsUpdate = Callable[[Sequence[Any]], None]
TRACKER_NAMES = ("tensorboard", "wandb", "trackio")
LOGS_FOLDER = "logs"
"""folder inside the experiment folder"""
SHUTDOWN_TIMEOUT_SECONDS = 60.0
"""time limit for logging the remaining data after the last trial"""
TRACKIO_REMOTE_VARIABLES = ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL")
"""set by users who want trackio to log over the network; otherwise it logs to this machine"""


def check_trackers(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names without duplicates; raise an error for unknown trackers and missing packages."""
    for name in names:
        if name not in TRACKER_NAMES:
            hint = format_suggestion(name, TRACKER_NAMES)
            raise RequestError(f"--log: unknown tracker {name!r}{hint} (allowed: {', '.join(TRACKER_NAMES)})")
        if importlib.util.find_spec(name) is None:
            raise MissingExtraError(name, name, f"--log {name}")
    return tuple(dict.fromkeys(names))


class TrackerGroup:
    """Context manager for an experiment's trackers: they start with the first trial and finish after the last."""

    def __init__(self, folder: Path, names: Sequence[str], on_warning: Callable[[str], None]) -> None:
        self.folder, self.names, self.on_warning = folder, check_trackers(names), on_warning
        self._trackers: dict[str, TrackerProcess] = {}

    def __enter__(self) -> TrackerGroup:
        return self

    def wrap_callback(self, on_update: OnJobsUpdate) -> OnJobsUpdate:
        """Return a callback that starts the trackers at the first update, then calls `on_update`.

        Before that, it is not certain that the folder belongs to this experiment.
        """

        def start_and_update(jobs: Sequence[Any]) -> None:
            self._start()
            on_update(jobs)

        return start_and_update if self.names else on_update

    def _start(self) -> None:
        """Start the trackers that are not running yet."""
        for name in self.names:
            if name not in self._trackers:
                self._trackers[name] = TrackerProcess(name, self.folder, self.on_warning)

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if exc_type is None:
            self._start()  # with nothing left to train, there may still be something to log
        for tracker in self._trackers.values():
            tracker.close_input()
        for tracker in self._trackers.values():
            tracker.wait()


class TrackerProcess(ChildProcess):
    """One tracker's process, with a thread that reports its first warning."""

    def __init__(self, name: str, folder: Path, on_warning: Callable[[str], None]) -> None:
        self.name, self.on_warning, self._has_warned = name, on_warning, False
        self.log_path = folder / LOGS_FOLDER / f"{name}.log"
        self.log_path.parent.mkdir(exist_ok=True)
        environment = {"WANDB_ERROR_REPORTING": "false", "WANDB_SILENT": "true"}
        if name == "trackio" and not any(variable in os.environ for variable in TRACKIO_REMOTE_VARIABLES):
            environment["HF_HUB_OFFLINE"] = "1"
        super().__init__(
            "headtohead.execution.trackers.process",
            name,
            str(folder.absolute()),
            environment=environment,
            log_path=self.log_path,
        )
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        """Forward warnings, and a non-zero exit code."""
        for message in self.messages():
            self._warn_once(str(message["warning"]))
        if self.process.wait() != 0:
            self._warn_once(self.exit_reason)

    def _warn_once(self, message: str) -> None:
        """Report a warning unless one has already been reported."""
        if not self._has_warned:
            self._has_warned = True
            self.on_warning(f"--log {self.name}: {message}; the experiment continues (see {self.log_path})")

    def wait(self) -> None:
        """Wait until the tracker has logged everything; kill it after `SHUTDOWN_TIMEOUT_SECONDS`."""
        try:
            self.process.wait(SHUTDOWN_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            self._warn_once(f"did not finish within {SHUTDOWN_TIMEOUT_SECONDS:.0f} s")
        finally:
            self.process.kill()
            self.process.wait()
            self._listener.join(timeout=5)
            self.close_pipes()
