"""How far long work has come, and how long the rest will take. Whoever does the work tells; who asked decides how it is
shown."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass


def format_duration(seconds: float) -> str:
    """3 s, 2 min 05 s, 1 h 20 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


@dataclass(frozen=True)
class ProgressUpdate:
    """How far a piece of work has come; `of` is 0 where nobody knows how much there is."""

    what: str
    done: int
    of: int
    seconds_left: float | None = None

    def __str__(self) -> str:
        is_open = self.seconds_left is not None and self.done < self.of
        left = f", about {format_duration(self.seconds_left or 0)} left" if is_open else ""
        return f"{self.what}: {self.done} of {self.of}{left}" if self.of else self.what


ProgressCallback = Callable[[ProgressUpdate], None]


def ignore_progress(update: ProgressUpdate) -> None:
    """Do nothing: the default progress callback."""


class ProgressReporter:
    """Tells how far work has come and how long the rest will take, from the pace of what was done since it began."""

    def __init__(self, description: str, total: int, on_progress: ProgressCallback, completed: int = 0) -> None:
        self.what, self.of, self.tell, self.done = description, total, on_progress, completed
        self._first, self._start_time = completed, time.monotonic()
        self.tell(ProgressUpdate(description, completed, total))

    def step(self, count: int = 1) -> None:
        self.done += count
        each = (time.monotonic() - self._start_time) / max(1, self.done - self._first)
        self.tell(ProgressUpdate(self.what, self.done, self.of, each * (self.of - self.done)))


class StderrProgress:
    """One line on stderr: written over on a terminal, a new one now and then elsewhere. Work that is over at once is
    not mentioned."""

    WAIT, TERMINAL, ELSEWHERE = 2.0, 0.25, 30.0

    def __init__(self) -> None:
        self._start_time = self._last_write_time = time.monotonic()
        self._description = ""

    def __call__(self, update: ProgressUpdate) -> None:
        now, terminal = time.monotonic(), sys.stderr.isatty()
        if update.what != self._description:
            self._description, self._start_time, self._last_write_time = update.what, now, now
        ended = 0 < update.of <= update.done and self._last_write_time > self._start_time
        if not ended and (
            now - self._start_time < self.WAIT or now - self._last_write_time < self._get_interval(terminal)
        ):
            return
        self._last_write_time = now
        line = f"\r\033[K{update}" if terminal else str(update)
        sys.stderr.write(line if terminal and not ended else f"{line}\n")
        sys.stderr.flush()

    def _get_interval(self, is_terminal: bool) -> float:
        return self.TERMINAL if is_terminal else self.ELSEWHERE


__all__ = [
    "ProgressCallback",
    "ProgressReporter",
    "ProgressUpdate",
    "StderrProgress",
    "format_duration",
    "ignore_progress",
]
