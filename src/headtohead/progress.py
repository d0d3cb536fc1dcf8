"""Progress reports of long operations.

The code that does the work calls a `ProgressCallback`; the caller decides how to show the updates.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from headtohead.control_characters import escape_control_characters


def format_duration(seconds: float) -> str:
    """Format elapsed or remaining time in progress reports, such as 3.0 s, 2 min 05 s or 1 h 20 min."""
    whole_seconds = round(seconds)
    if whole_seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole_seconds} s"
    if whole_seconds < 3600:
        return f"{whole_seconds // 60} min {whole_seconds % 60:02d} s"
    return f"{whole_seconds // 3600} h {whole_seconds % 3600 // 60:02d} min"


@dataclass(frozen=True)
class ProgressUpdate:
    """The state of an operation: `completed` of `total` units of work. `total` is 0 if the total is unknown."""

    description: str
    completed: int
    total: int
    seconds_left: float | None = None

    def __str__(self) -> str:
        has_estimate = self.seconds_left is not None and self.completed < self.total
        remaining_time = f", about {format_duration(self.seconds_left or 0)} left" if has_estimate else ""
        return (
            f"{self.description}: {self.completed} of {self.total}{remaining_time}" if self.total else self.description
        )


ProgressCallback = Callable[[ProgressUpdate], None]
FIRST_EXTRAPOLATED_STEP = 3
"""The step from which on `ProgressReporter` ignores the time of the first step, which includes startup."""


def ignore_progress(update: ProgressUpdate) -> None:
    """Do nothing: the default progress callback."""


class ProgressReporter:
    """Count completed units of work and report them with an estimate of the remaining time.

    The estimate extrapolates the average time per unit. From the third step on, the average excludes the first step,
    which includes the start of processes and the loading of models. `completed` is the number of units that an
    interrupted run has finished before.
    """

    def __init__(self, description: str, total: int, on_progress: ProgressCallback, completed: int = 0) -> None:
        self.description, self.total, self.on_progress, self.completed = description, total, on_progress, completed
        self._extrapolated_from_count, self._start_time, self._num_steps = completed, time.monotonic(), 0
        self._first_step = (completed, self._start_time)
        self.on_progress(ProgressUpdate(description, completed, total))

    def step(self, count: int = 1) -> None:
        """Add `count` completed units and report the new state."""
        now = time.monotonic()
        self.completed += count
        self._num_steps += 1
        if self._num_steps == 1:
            self._first_step = (self.completed, now)
        elif self._num_steps == FIRST_EXTRAPOLATED_STEP:
            self._extrapolated_from_count, self._start_time = self._first_step
        seconds_per_unit = (now - self._start_time) / max(1, self.completed - self._extrapolated_from_count)
        seconds_left = seconds_per_unit * (self.total - self.completed)
        self.on_progress(ProgressUpdate(self.description, self.completed, self.total, seconds_left))


class StderrProgress:
    """Print progress on stderr: one line that is overwritten on a terminal, otherwise a new line every 30 seconds.

    Nothing is printed for the first two seconds, so short operations stay silent.
    """

    SILENT_SECONDS = 2.0
    """Time before the first line."""
    TERMINAL_INTERVAL_SECONDS = 0.25
    """Time between updates of the line on a terminal."""
    LOG_INTERVAL_SECONDS = 30.0
    """Time between lines if stderr is not a terminal."""

    def __init__(self) -> None:
        self._start_time = self._last_write_time = time.monotonic()
        self._description = ""

    def __call__(self, update: ProgressUpdate) -> None:
        now, is_terminal = time.monotonic(), sys.stderr.isatty()
        if update.description != self._description:
            self._description, self._start_time, self._last_write_time = update.description, now, now
        is_finished = 0 < update.total <= update.completed and self._last_write_time > self._start_time
        if not is_finished and (
            now - self._start_time < self.SILENT_SECONDS
            or now - self._last_write_time < self._get_write_interval(is_terminal)
        ):
            return
        self._last_write_time = now
        text = escape_control_characters(str(update))
        line = f"\r\033[K{text}" if is_terminal else text
        sys.stderr.write(line if is_terminal and not is_finished else f"{line}\n")
        sys.stderr.flush()

    def _get_write_interval(self, is_terminal: bool) -> float:
        return self.TERMINAL_INTERVAL_SECONDS if is_terminal else self.LOG_INTERVAL_SECONDS
