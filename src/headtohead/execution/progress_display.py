"""Live progress of running trials on stderr."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from rich.console import Group
from rich.live import Live as RichLive
from rich.markup import escape
from rich.table import Table

from headtohead.config import experiment
from headtohead.presentation.terminal import get_stderr_console, make_rich_table
from headtohead.progress import ProgressUpdate, StderrProgress, format_duration

REFRESHES_PER_SECOND = 4


class TrialProgressDisplay:
    """A table that grows while trials run: variants down, seeds across, and below it the rate and the time left."""

    MAX_SEED_COLUMNS = 8

    def __init__(self, experiment: experiment.Experiment) -> None:
        self.experiment = experiment
        self.began = time.monotonic()
        console = get_stderr_console()
        self.is_interactive = console.is_terminal
        self.rich_live = RichLive(console=console, refresh_per_second=REFRESHES_PER_SECOND, transient=True)
        self.line = StderrProgress()
        self.last_line_time = self.began

    def __enter__(self) -> TrialProgressDisplay:
        if self.is_interactive:
            self.rich_live.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        self.rich_live.stop()

    def watch(self, jobs: Sequence[Any]) -> None:
        if self.is_interactive:
            self.rich_live.update(self.shown(jobs))
        elif time.monotonic() - self.last_line_time >= StderrProgress.ELSEWHERE:
            self.last_line_time = time.monotonic()
            self.say(" · ".join(self.progress(jobs)))

    def say(self, text: str) -> None:
        """A line that stays, above the table."""
        self.rich_live.console.print(escape(text), soft_wrap=not self.is_interactive)

    def tell(self, progress: ProgressUpdate) -> None:
        """Work that is done before any trial begins."""
        self.rich_live.update(escape(str(progress))) if self.is_interactive else self.line(progress)

    def shown(self, jobs: Sequence[Any]) -> Group:
        """The question, the table, and how far it is."""
        lines = [f"[dim]{escape(line)}[/]" for line in self.progress(jobs)]
        return Group(f"[bold]{escape(self.experiment.question)}[/]", self.table(jobs), *lines)

    def table(self, jobs: Sequence[Any]) -> Table:
        seeds = sorted({job.trial.seed for job in jobs})[-self.MAX_SEED_COLUMNS :]
        made = make_rich_table("", *(f"seed {seed}" for seed in seeds))
        by_place = {(job.trial.variant, job.trial.seed): job for job in jobs}
        for name in self.experiment.names:
            made.add_row(escape(name), *(format_job_cell(by_place.get((name, seed))) for seed in seeds))
        return made

    def progress(self, jobs: Sequence[Any]) -> list[str]:
        """How far it is and how long it will take; then what went wrong."""
        running = [job for job in jobs if job.state == "running"]
        over = sum(job.is_over for job in jobs)
        rate = sum(job.rate for job in running)
        words = [f"{over} of {len(jobs)} trials done"]
        if over < len(jobs):
            left = estimate_time_left(jobs)
            words.append(f"{rate:.1f} steps/s")
            words.append(f"about {format_duration(left)} left" if left is not None else "time left: measuring")
        failed = [job for job in jobs if job.state in ("failed", "lost")]
        return [" · ".join(words), *(f"{job.trial.variant}/{job.trial.seed}: {job.message}" for job in failed)]


def estimate_time_left(jobs: Sequence[Any]) -> float | None:
    """From the steps still to do and the rate of those that run; one that is starting or scoring will be as fast."""
    running = [job for job in jobs if job.state == "running"]
    rates = [job.rate for job in running if job.rate > 0]
    if not rates:
        return None
    per_trial = max(job.steps for job in running)
    to_do = sum((job.steps or per_trial) - job.step for job in running)
    to_do += per_trial * sum(job.state == "waiting" for job in jobs)
    return float(to_do / (statistics.fmean(rates) * len(running)))


def format_job_cell(job: Any) -> str:
    if job is None:
        return ""
    if job.state == "running":
        share = f"{100 * job.step / job.steps:3.0f} %" if job.steps else "starts"
        return f"[cyan]{share}[/]" + (f" {job.loss:.2f}" if job.loss is not None else "")
    if job.state == "finished":
        return f"[green]done[/] {job.end_time - job.start_time:.0f} s"
    return {
        "waiting": "[dim]waits[/]",
        "kept": "[green]done[/]",
        "failed": "[red]failed[/]",
        "lost": "[red]lost[/]",
    }[job.state]
