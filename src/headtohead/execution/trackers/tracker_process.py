"""The parent's side of a tracker: start its child process, report its warnings, and wait until it has finished.

The child process runs `run_folder_poller`.
"""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

from headtohead.child_process import ChildProcess

POLLER_MODULE = "headtohead.execution.trackers.run_folder_poller"
LOGS_FOLDER = "logs"
"""name of the folder in the experiment's folder that trackers write to"""
SHUTDOWN_TIMEOUT_SECONDS = 60.0
"""time limit for logging the remaining data after the last trial"""
JOIN_TIMEOUT_SECONDS = 5.0
TRACKIO_REMOTE_VARIABLES = ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL")
"""set by users who want trackio to log over the network; otherwise it logs to this machine"""


class TrackerProcess(ChildProcess):
    """The child process of one tracker, with a thread that reports its first warning."""

    def __init__(self, name: str, folder: Path, on_warning: Callable[[str], None]) -> None:
        """Start the process that reads the run folders in `folder` and logs them to this tracker."""
        self.name, self.on_warning, self._has_warned = name, on_warning, False
        self.log_path = folder / LOGS_FOLDER / f"{name}.log"
        self.log_path.parent.mkdir(exist_ok=True)
        environment = {"WANDB_ERROR_REPORTING": "false", "WANDB_SILENT": "true"}
        if name == "trackio" and not any(variable in os.environ for variable in TRACKIO_REMOTE_VARIABLES):
            environment["HF_HUB_OFFLINE"] = "1"
        super().__init__(
            POLLER_MODULE,
            name,
            str(folder.absolute()),
            environment=environment,
            log_path=self.log_path,
        )
        self._warning_thread = threading.Thread(target=self._forward_warnings, daemon=True)
        self._warning_thread.start()

    def _forward_warnings(self) -> None:
        """Report the warnings that the tracker's process sends, and an exit code other than 0."""
        for message in self.iter_messages():
            self._warn_once(str(message["warning"]))
        if self.process.wait() != 0:
            self._warn_once(self.exit_reason)

    def _warn_once(self, message: str) -> None:
        """Report a warning unless one has already been reported."""
        if not self._has_warned:
            self._has_warned = True
            self.on_warning(f"--log {self.name}: {message}; the experiment continues (see {self.log_path})")

    def wait(self) -> None:
        """Wait until the tracker's process has logged everything; kill it after `SHUTDOWN_TIMEOUT_SECONDS`."""
        try:
            self.process.wait(SHUTDOWN_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            self._warn_once(f"did not finish within {SHUTDOWN_TIMEOUT_SECONDS:.0f} s")
        finally:
            self.process.kill()
            self.process.wait()
            self._warning_thread.join(JOIN_TIMEOUT_SECONDS)
            self.close_pipes()
