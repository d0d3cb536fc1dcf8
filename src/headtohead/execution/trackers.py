"""Trackers that people already use: `--log tensorboard`, `--log wandb`, `--log trackio`.

A tracker lives in a process of its own (`tracking`), which reads the run folders while they grow. It knows nothing of
how trials are run, cannot slow a training down or break it, and what fails there is told once.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from headtohead.errors import MissingExtraError, RequestError, suggest

OnJobsUpdate = Callable[[Sequence[Any]], None]
TRACKER_NAMES = ("tensorboard", "wandb", "trackio")
LOGS_FOLDER = "logs"
"""the folder inside an experiment's folder"""
SHUTDOWN_TIMEOUT_SECONDS = 60.0
"""seconds that a tracker has at the end, to pass on what it still holds"""
TRACKIO_REMOTE_VARIABLES = ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL")
"""set by a user who wants trackio to log over the network; otherwise it stays on this machine"""


def check_trackers(names: Sequence[str]) -> tuple[str, ...]:
    """Do these trackers exist, and are they installed?"""
    for kind in names:
        if kind not in TRACKER_NAMES:
            meant = suggest(kind, TRACKER_NAMES)
            hint = f"; did you mean {meant!r}?" if meant else ""
            raise RequestError(f"--log: no tracker is called {kind!r}{hint} (allowed: {', '.join(TRACKER_NAMES)})")
        if importlib.util.find_spec(kind) is None:
            raise MissingExtraError(kind, kind, f"--log {kind}")
    return tuple(dict.fromkeys(names))


class TrackerGroup:
    """The trackers of one experiment. They are started when its first trial is, and let go when all is over."""

    def __init__(self, folder: Path, names: Sequence[str], on_warning: Callable[[str], None]) -> None:
        self.folder, self.names, self.tell = folder, check_trackers(names), on_warning
        self._processes: dict[str, TrackerProcess] = {}

    def __enter__(self) -> TrackerGroup:
        return self

    def wrap_callback(self, on_update: OnJobsUpdate) -> OnJobsUpdate:
        """The same watch, which also starts the trackers once trials run. Before that, it is not known that the folder
        is this experiment's."""

        def also(jobs: Sequence[Any]) -> None:
            self._start()
            on_update(jobs)

        return also if self.names else on_update

    def _start(self) -> None:
        for kind in self.names:
            if kind not in self._processes:
                self._processes[kind] = TrackerProcess(kind, self.folder, self.tell)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is None:
            self._start()  # nothing was left to train, but something may be left to log
        for tracker in self._processes.values():
            tracker.let_go()
        for tracker in self._processes.values():
            tracker.wait()


class TrackerProcess:
    """One child process, and a thread that passes on what it says."""

    def __init__(self, name: str, folder: Path, on_warning: Callable[[str], None]) -> None:
        self.kind, self.tell = name, on_warning
        place = folder / LOGS_FOLDER
        place.mkdir(exist_ok=True)
        self.log = place / f"{name}.log"
        environment = {**os.environ, "WANDB_ERROR_REPORTING": "false", "WANDB_SILENT": "true"}
        if name == "trackio" and not any(name in os.environ for name in TRACKIO_REMOTE_VARIABLES):
            environment["HF_HUB_OFFLINE"] = "1"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "headtohead.execution.tracker_process", name, str(folder.absolute())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                start_new_session=True,  # Ctrl-C is for the parent, which lets it go in order
            )
        self._told = False
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._warn_once(str(json.loads(line)["trouble"]))
        if self.process.wait() != 0:
            self._warn_once(f"ended with {self.process.returncode}")

    def _warn_once(self, message: str) -> None:
        if not self._told:
            self._told = True
            self.tell(f"--log {self.kind}: {message}; the experiment itself goes on ({self.log} has more)")

    def let_go(self) -> None:
        """Nothing more will come; it may finish."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    def wait(self) -> None:
        try:
            self.process.wait(SHUTDOWN_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            self._warn_once(f"did not finish within {SHUTDOWN_TIMEOUT_SECONDS:.0f} s")
        finally:
            self.process.kill()
            self.process.wait()
            self._listener.join(timeout=5)
            assert self.process.stdout is not None
            self.process.stdout.close()
