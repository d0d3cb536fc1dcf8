"""The experiment trackers of one experiment: `--log tensorboard`, `--log wandb`, `--log trackio`.

Each tracker runs in a separate process, which reads the run folders while trials write them, so it cannot slow down or
break training.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from headtohead.errors import MissingExtraError, RequestError, format_suggestion
from headtohead.execution.trackers.tracker_process import TrackerProcess

OnJobsUpdate = Callable[[Sequence[Any]], None]
TRACKER_NAMES = ("tensorboard", "wandb", "trackio")


def check_tracker_names(names: Sequence[str]) -> tuple[str, ...]:
    """Return the trackers of `--log` without duplicates; raise an error for unknown or uninstalled ones."""
    for name in names:
        if name not in TRACKER_NAMES:
            hint = format_suggestion(name, TRACKER_NAMES)
            raise RequestError(f"--log: unknown tracker {name!r}{hint} (allowed: {', '.join(TRACKER_NAMES)})")
        if importlib.util.find_spec(name) is None:
            raise MissingExtraError(name, name, f"--log {name}")
    return tuple(dict.fromkeys(names))


class TrackerGroup:
    """Context manager for an experiment's trackers: they start with the first trial and finish after the last one."""

    def __init__(self, folder: Path, names: Sequence[str], on_warning: Callable[[str], None]) -> None:
        self.folder, self.names, self.on_warning = folder, check_tracker_names(names), on_warning
        self._processes: dict[str, TrackerProcess] = {}

    def __enter__(self) -> TrackerGroup:
        return self

    def wrap_callback(self, on_update: OnJobsUpdate) -> OnJobsUpdate:
        """Return a callback that starts the trackers at the first update, then calls `on_update`.

        Before that, it is not certain that the folder belongs to this experiment.
        """

        def start_and_update(jobs: Sequence[Any]) -> None:
            self._start_missing_trackers()
            on_update(jobs)

        return start_and_update if self.names else on_update

    def _start_missing_trackers(self) -> None:
        """Start the processes of the trackers that are not running yet."""
        for name in self.names:
            if name not in self._processes:
                self._processes[name] = TrackerProcess(name, self.folder, self.on_warning)

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Wait until all trackers of the group have logged everything."""
        if exc_type is None:
            self._start_missing_trackers()  # with nothing left to train, there may still be something to log
        for process in self._processes.values():
            process.close_input()
        for process in self._processes.values():
            process.wait()
