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
from headtohead.versus.config import VersusConfig
from headtohead.versus.jobs import CommandJob
from headtohead.versus.outputs.run_record import read_run_metric

MAX_SEED_COLUMNS = 8


class CommandProgressDisplay:
    """Shows a live table of the metric while a comparison runs; without a terminal, prints a line periodically."""

    def __init__(self, config: VersusConfig) -> None:
        """Prepare the table of a comparison's runs."""
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
        """Show the current state of all runs: `on_update` of `run_comparison`."""
        now = time.monotonic()
        if self.is_interactive:
            if now - self.last_read_time > 1:
                self.last_read_time = now
                self.current_values = {
                    job.run_name: self._format_latest_value(job) for job in jobs if job.state == "running"
                }
            self.rich_live.update(self.render_table(jobs))
        elif now - self.last_line_time > StderrProgress.LOG_INTERVAL_SECONDS:
            self.last_line_time = now
            self.rich_live.console.print(self.format_progress_line(jobs), soft_wrap=True)

    def render_table(self, jobs: Sequence[CommandJob]) -> Group:
        """Return the table of variants and seeds, with the progress line below it."""
        shown_indices = list(range(self.config.seeds))[-MAX_SEED_COLUMNS:]
        seed_columns = make_numeric_columns(*(f"seed {index}" for index in shown_indices))
        columns = [Column("variant", self.config.metric.name), *seed_columns]
        jobs_by_name = {job.run_name: job for job in jobs}
        rows = []
        for name in self.config.commands:
            seeds = self.config.list_seeds(name)
            cells = (self._make_job_cell(jobs_by_name[f"{name}/seed-{seeds[index]}"]) for index in shown_indices)
            rows.append([name, *cells])
        table = make_table("runs", "", "", columns, rows)
        return Group(build_rich_table(table), f"[dim]{self.format_progress_line(jobs)}[/]")

    def format_progress_line(self, jobs: Sequence[CommandJob]) -> str:
        """Return the number of completed runs and the estimated time left, as text."""
        completed_jobs = [job for job in jobs if job.state in ("finished", "failed")]
        remaining_jobs = [job for job in jobs if job.state in ("waiting", "running")]
        line = f"{sum(job.run is not None for job in jobs)} of {len(jobs)} runs done"
        if completed_jobs and remaining_jobs:
            seconds_per_run = sum(job.end_time - job.start_time for job in completed_jobs) / len(completed_jobs)
            num_running = max(1, sum(job.state == "running" for job in jobs))
            line += f", about {format_duration(seconds_per_run * len(remaining_jobs) / num_running)} left"
        return line

    def _make_job_cell(self, job: CommandJob) -> Cell:
        """Return the table cell of a run: its value, how it failed, or its latest value while it runs."""
        if job.run is not None and job.run.has_finite_value:
            return Cell(f"{job.run.value:.5g}", color="green")
        if job.run is not None:
            return Cell(job.run.status, color="red")
        if job.state == "running":
            return Cell(self.current_values.get(job.run_name, "runs"), color="cyan")
        return Cell("waits" if job.state == "waiting" else job.state, color="dim")

    def _format_latest_value(self, job: CommandJob) -> str:
        """Return the metric's value so far as text, or "runs" if the command has not reported any."""
        try:
            return f"{read_run_metric(self.config, job)[1]:.5g}"
        except (HeadToHeadError, OSError, ValueError):
            return "runs"
