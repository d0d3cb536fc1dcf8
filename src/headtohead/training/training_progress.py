"""Progress of a training run, and the estimate of the remaining time of its trial."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

MAX_REPORT_INTERVAL_SECONDS = 1.0
"""Time after which progress is reported between two loss checks and during evaluations."""
PASSES_PER_STEP = 3
"""Forward passes that take as long as a training step on the same rows: a backward pass takes about two."""


@dataclass(frozen=True)
class TrainingProgress:
    """Progress of a training run, passed to `on_progress`."""

    step: int
    total_steps: int
    loss: float | None
    """Mean since the last evaluation; None before the first loss is known."""
    steps_per_second: float
    """Measured since this process started, excluding evaluations."""
    seconds_left: float
    """Estimate for the rest of the trial: steps, evaluations and everything after training."""


@dataclass
class StepTimer:
    """How long training steps, and forward passes over a row, have taken in this process."""

    rows_per_step: int
    num_steps: int = 0
    step_seconds: float = 0.0
    """Time of all steps together."""
    num_passes: float = 0.0
    pass_seconds: float = 0.0
    """Time of all forward passes together."""
    last_report_time: float = field(default=0.0, init=False)
    """When progress was last reported, as `time.perf_counter()`."""

    @contextmanager
    def time_step(self) -> Iterator[None]:
        """Measure a training step, from which the remaining time of training is estimated."""
        start = time.perf_counter()
        yield
        self.step_seconds += time.perf_counter() - start
        self.num_steps += 1

    def add_passes(self, num_passes: float, seconds: float) -> None:
        """Record the time of forward passes over a row."""
        self.num_passes += num_passes
        self.pass_seconds += seconds

    @property
    def steps_per_second(self) -> float:
        """The speed of training, 0 before the first step."""
        return self.num_steps / self.step_seconds if self.num_steps else 0.0

    def is_report_due(self) -> bool:
        """Return whether enough time has passed since progress was last reported."""
        return time.perf_counter() - self.last_report_time > MAX_REPORT_INTERVAL_SECONDS

    def estimate_seconds(self, num_steps: int, num_passes: float) -> float:
        """Return the remaining seconds of training: for this many steps and forward passes over a row."""
        seconds_per_pass = self.pass_seconds / self.num_passes if self.num_passes else 0.0
        seconds_per_step = PASSES_PER_STEP * self.rows_per_step * seconds_per_pass
        if self.num_steps:
            seconds_per_step = self.step_seconds / self.num_steps
        return num_steps * seconds_per_step + num_passes * seconds_per_pass
