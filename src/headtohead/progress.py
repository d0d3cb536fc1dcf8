"""How far long work has come, and how long the rest will take. Whoever does the work tells; who asked decides how it is
shown."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass


def duration(seconds: float) -> str:
    """3 s, 2 min 05 s, 1 h 20 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


@dataclass(frozen=True)
class Pace:
    """How far a piece of work has come; `of` is 0 where nobody knows how much there is."""

    what: str
    done: int
    of: int
    seconds_left: float | None = None

    def __str__(self) -> str:
        is_open = self.seconds_left is not None and self.done < self.of
        left = f", about {duration(self.seconds_left or 0)} left" if is_open else ""
        return f"{self.what}: {self.done} of {self.of}{left}" if self.of else self.what


Tell = Callable[[Pace], None]


class Clock:
    """Tells how far work has come and how long the rest will take, from the pace of what was done since it began."""

    def __init__(self, what: str, of: int, tell: Tell, done: int = 0) -> None:
        self.what, self.of, self.tell, self.done = what, of, tell, done
        self._first, self._began = done, time.monotonic()
        self.tell(Pace(what, done, of))

    def step(self, count: int = 1) -> None:
        self.done += count
        each = (time.monotonic() - self._began) / max(1, self.done - self._first)
        self.tell(Pace(self.what, self.done, self.of, each * (self.of - self.done)))


class OnStderr:
    """One line on stderr: written over on a terminal, a new one now and then elsewhere. Work that is over at once is
    not mentioned."""

    WAIT, TERMINAL, ELSEWHERE = 2.0, 0.25, 30.0

    def __init__(self) -> None:
        self._began = self._last = time.monotonic()
        self._what = ""

    def __call__(self, pace: Pace) -> None:
        now, terminal = time.monotonic(), sys.stderr.isatty()
        if pace.what != self._what:
            self._what, self._began, self._last = pace.what, now, now
        ended = 0 < pace.of <= pace.done and self._last > self._began
        if not ended and (now - self._began < self.WAIT or now - self._last < self._every(terminal)):
            return
        self._last = now
        line = f"\r\033[K{pace}" if terminal else str(pace)
        sys.stderr.write(line if terminal and not ended else f"{line}\n")
        sys.stderr.flush()

    def _every(self, terminal: bool) -> float:
        return self.TERMINAL if terminal else self.ELSEWHERE


__all__ = ["Clock", "OnStderr", "Pace", "Tell", "duration"]
