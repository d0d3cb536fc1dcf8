"""Live progress of a command comparison on stderr: a row per variant, a column per seed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType

from rich.console import Group
from rich.live import Live as RichLive

from headtohead.errors import HeadToHeadError
from headtohead.presentation.renderers.terminal import build_rich_table, get_stderr_console
from headtohead.presentation.table import Cell, Column, make_numeric_columns, make_table
from headtohead.progress import StderrProgress, format_duration
from headtohead.versus.command_runner import CommandJob, read_metric
from headtohead.versus.config import VersusConfig

MAX_SEED_COLUMNS = 8


class CommandProgressDisplay:
    """A live table of the metric; without a terminal, a progress line is printed periodically."""

    def __init__(self, config: VersusConfig) -> None:
        self.config = config
        console = get_stderr_console()
        self.is_interactive = console.is_terminal
        self.rich_live = RichLive(console=console, refresh_per_second=4, transient=True)
        self.last_line_time = self.last_read_time = time.monotonic()
        self.current_values: dict[str, str] = {}

    def __enter__(self) -> CommandProgressDisplay:
        if self.is_interactive:
            self.rich_live.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.rich_live.stop()

    def update(self, jobs: Sequence[CommandJob]) -> None:
        """Show the current state of all runs."""
        now = time.monotonic()
        if self.is_interactive:
            if now - self.last_read_time > 1:
                self.last_read_time = now
                self.current_values = {job.location: self._read_value(job) for job in jobs if job.state == "running"}
            self.rich_live.update(self.render(jobs))
        elif now - self.last_line_time > StderrProgress.ELSEWHERE:
            self.last_line_time = now
            self.rich_live.console.print(self.describe(jobs), soft_wrap=True)

    def render(self, jobs: Sequence[CommandJob]) -> Group:
        """Return the table and the progress line."""
        last = list(range(self.config.seeds))[-MAX_SEED_COLUMNS:]
        columns = [Column("variant", self.config.metric.name), *make_numeric_columns(*(f"seed {i}" for i in last))]
        by_location = {job.location: job for job in jobs}
        rows = []
        for name in self.config.commands:
            seeds = self.config.list_seeds(name)
            rows.append([name, *(self._make_cell(by_location[f"{name}/seed-{seeds[index]}"]) for index in last)])
        table = make_table("runs", "", "", columns, rows)
        return Group(build_rich_table(table), f"[dim]{self.describe(jobs)}[/]")

    def describe(self, jobs: Sequence[CommandJob]) -> str:
        """Return how many runs have ended and the estimated time left."""
        ended = [job for job in jobs if job.state in ("finished", "failed")]
        left = [job for job in jobs if job.state in ("waiting", "running")]
        text = f"{len(jobs) - len(left)} of {len(jobs)} runs done"
        if ended and left:
            seconds = sum(job.end_time - job.start_time for job in ended) / len(ended)
            parallel = max(1, sum(job.state == "running" for job in jobs))
            text += f", about {format_duration(seconds * len(left) / parallel)} left"
        return text

    def _make_cell(self, job: CommandJob) -> Cell:
        """Return a job's value, status or progress as a table cell."""
        if job.run is not None and job.run.is_counted:
            return Cell(f"{job.run.value:.5g}", color="green")
        if job.run is not None:
            return Cell(job.run.status, color="red")
        if job.state == "running":
            return Cell(self.current_values.get(job.location, "runs"), color="cyan")
        return Cell("waits", color="dim")

    def _read_value(self, job: CommandJob) -> str:
        try:
            return f"{read_metric(self.config, job)[1]:.5g}"
        except (HeadToHeadError, OSError, ValueError):
            return "runs"
