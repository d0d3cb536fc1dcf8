"""Live progress of an experiment or a hyperparameter search, on stderr or in a notebook."""

from __future__ import annotations

import html
import statistics
import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from rich.console import Group
from rich.live import Live as RichLive
from rich.markup import escape

from headtohead.config import experiment
from headtohead.execution.worker_pool import MAX_SILENT_SECONDS
from headtohead.experiment.seed_average import average_over_seeds
from headtohead.presentation import number_format
from headtohead.presentation.renderers.terminal import build_rich_table, get_stderr_console
from headtohead.presentation.table import Cell, Column, Table, make_numeric_columns, make_table, make_text_columns
from headtohead.progress import ProgressUpdate, StderrProgress, format_duration

REFRESHES_PER_SECOND = 4
SILENT_SECONDS = 60.0
"""a running trial that has reported nothing for this long is named"""
MIN_STEPS_PER_SECOND = 0.2
"""slower trials show seconds per step instead of steps per second"""


class TrialProgressDisplay:
    """A live table of trials, with a row per variant and a column per seed, above the speed and the time left."""

    MAX_SEED_COLUMNS = 8

    def __init__(self, experiment: experiment.Experiment) -> None:
        """Prepare the live display of an experiment's trials."""
        self.experiment = experiment
        self.start_time = time.monotonic()
        console = get_stderr_console()
        self.is_interactive = console.is_terminal
        self.rich_live = RichLive(console=console, refresh_per_second=REFRESHES_PER_SECOND, transient=True)
        self.line_reporter = StderrProgress()
        self.last_line_time = self.start_time

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

    def update(self, jobs: Sequence[Any]) -> None:
        """Redraw the table; without a terminal, print a progress line periodically."""
        if self.is_interactive:
            self.rich_live.update(self.render(jobs))
        elif time.monotonic() - self.last_line_time >= StderrProgress.LOG_INTERVAL_SECONDS or (
            # For longer work, the first estimate is printed at once.
            self.last_line_time == self.start_time
            and (estimate_time_left(jobs) or 0.0) > StderrProgress.LOG_INTERVAL_SECONDS
        ):
            self.last_line_time = time.monotonic()
            self.print_line(" · ".join(self.format_progress(jobs)))

    def print_line(self, text: str) -> None:
        """Print a permanent line above the table."""
        self.rich_live.console.print(escape(text), soft_wrap=not self.is_interactive)

    def show_progress(self, progress: ProgressUpdate) -> None:
        """Show the progress of work that precedes the first trial."""
        self.rich_live.update(escape(str(progress))) if self.is_interactive else self.line_reporter(progress)

    def render(self, jobs: Sequence[Any]) -> Group:
        """Return the whole display: question, table and progress lines."""
        lines = [f"[dim]{escape(line)}[/]" for line in self.format_progress(jobs)]
        return Group(f"[bold]{escape(self.experiment.question)}[/]", build_rich_table(self.build_table(jobs)), *lines)

    def build_table(self, jobs: Sequence[Any]) -> Table:
        """Return the live table of trials, with the last `MAX_SEED_COLUMNS` seeds as columns."""
        seeds = sorted({job.trial.seed for job in jobs})[-self.MAX_SEED_COLUMNS :]
        columns = [Column("variant", ""), *make_numeric_columns(*(f"seed {seed}" for seed in seeds))]
        job_by_variant_and_seed = {(job.trial.variant, job.trial.seed): job for job in jobs}
        rows = [
            [name, *(make_job_cell(job_by_variant_and_seed.get((name, seed))) for seed in seeds)]
            for name in self.experiment.names
        ]
        return make_table("trials", "", "", columns, rows)

    def format_progress(self, jobs: Sequence[Any]) -> list[str]:
        """Return a line with completed trials, speed and time left, then a line per failed or silent trial."""
        running_jobs = [job for job in jobs if job.state == "running"]
        num_over = sum(job.is_over for job in jobs)
        phrases = [f"{num_over} of {len(jobs)} trials done"]
        if num_over < len(jobs):
            seconds_left = estimate_time_left(jobs)
            phrases.append(format_training_speed(sum(job.steps_per_second for job in running_jobs)))
            phrases += [f"about {format_duration(seconds_left)} left"] if seconds_left is not None else []
        messages = [(job, job.message) for job in jobs if job.state in ("failed", "lost")]
        limit = format_duration(MAX_SILENT_SECONDS)
        messages += [
            (job, f"no progress for {format_duration(job.silent_seconds)}; ended after {limit}")
            for job in running_jobs
            if job.silent_seconds > SILENT_SECONDS
        ]
        return [" · ".join(phrases), *(f"{job.trial.variant}/{job.trial.seed}: {text}" for job, text in messages)]


class SearchProgressDisplay(TrialProgressDisplay):
    """The live display of a search: running trials, the best point so far, the time left, then the comparison."""

    def __init__(self, experiment: experiment.Experiment) -> None:
        super().__init__(experiment)
        self.full_experiment = experiment

    def build_table(self, jobs: Sequence[Any]) -> Table:
        """Return the live table of the search's running trials, or of all trials of the final comparison."""
        if not any(job.trial.is_search for job in jobs):
            new_names = [
                name
                for name in dict.fromkeys(job.trial.variant for job in jobs)
                if name not in self.full_experiment.names
            ]
            variants = {**self.full_experiment.variants, **{name: {} for name in new_names}}
            self.experiment = self.full_experiment.model_copy(update={"variants": variants})
            return super().build_table(jobs)
        columns = make_text_columns("point") + make_numeric_columns("seed", "now")
        rows = [[job.trial.variant, job.trial.seed, make_job_cell(job)] for job in jobs if job.state == "running"]
        return make_table("running", "", "", columns, rows)

    def format_progress(self, jobs: Sequence[Any]) -> list[str]:
        """Return a line with completed trials and time left, then a line with the best point so far."""
        if self.full_experiment.search is None or not any(job.trial.is_search for job in jobs):
            return super().format_progress(jobs)
        finished_jobs = [job for job in jobs if job.state == "finished"]
        planned_trials = self.full_experiment.search.compute_planned_counts()[1]
        phrases = [
            f"search: {len(finished_jobs)}{f' of {planned_trials}' if planned_trials else ''} trials done in this run"
        ]
        durations = list(estimate_durations(jobs).values())
        if planned_trials and durations:
            seconds_per_trial = statistics.fmean(durations)
            num_running = max(1, sum(job.state == "running" for job in jobs))
            seconds_left = seconds_per_trial * max(0, planned_trials - len(finished_jobs)) / num_running
            phrases.append(f"at most {format_duration(seconds_left)} left")
        if (search := self.full_experiment.search).max_seconds is not None:
            phrases.append(f"{search.budget} are allowed")
        best_line = self._describe_best_point(finished_jobs)
        return [" · ".join(phrases), *([best_line] if best_line else [])]

    def _describe_best_point(self, finished_jobs: Sequence[Any]) -> str:
        """Return a line with the point of the best mean validation score so far, or an empty string."""
        metric = self.full_experiment.primary.metric
        scores_by_point: dict[str, list[float]] = {}
        for job in finished_jobs:
            scores_by_point.setdefault(job.trial.variant, []).append(job.result["scores"]["validation"][metric])
        means = {name: average_over_seeds(metric, values) for name, values in scores_by_point.items()}
        if not means:
            return ""
        select = min if metric in number_format.LOWER_IS_BETTER_METRICS else max
        best_point = select(means, key=lambda name: means[name])
        best_score = number_format.format_score(metric, means[best_point])
        return f"best so far: {best_point}, {metric} {best_score} on validation data"


def build_progress_display(experiment: experiment.Experiment) -> TrialProgressDisplay:
    """Return the display for an experiment, or for its search if it has one."""
    return SearchProgressDisplay(experiment) if experiment.search else TrialProgressDisplay(experiment)


class NotebookProgressDisplay:
    """A progress bar with speed and time left in a notebook cell's output."""

    SECONDS_PER_UPDATE = 0.5

    def __init__(self, experiment: experiment.Experiment) -> None:
        self.text_display = TrialProgressDisplay(experiment)
        self.last_update_time = 0.0
        self.display_handle: Any = None

    def __enter__(self) -> NotebookProgressDisplay:
        from IPython.display import HTML, display

        self.display_handle = display(HTML(render_progress_bar(0.0, "starting")), display_id=True)  # type: ignore[no-untyped-call]
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        pass

    def update(self, jobs: Sequence[Any]) -> None:
        """Redraw the bar, at most twice a second; the last state is always drawn."""
        if time.monotonic() - self.last_update_time >= self.SECONDS_PER_UPDATE or all(job.is_over for job in jobs):
            fraction = sum(estimate_fraction_done(job) for job in jobs) / max(1, len(jobs))
            self._draw(fraction, " · ".join(self.text_display.format_progress(jobs)))

    def show_progress(self, progress: ProgressUpdate) -> None:
        """Show the progress of work that precedes the first trial."""
        if time.monotonic() - self.last_update_time >= self.SECONDS_PER_UPDATE:
            self._draw(0.0, str(progress))

    def print_line(self, text: str) -> None:
        """Print a permanent line."""
        self.text_display.print_line(text)

    def _draw(self, fraction: float, text: str) -> None:
        from IPython.display import HTML

        self.last_update_time = time.monotonic()
        self.display_handle.update(HTML(render_progress_bar(fraction, text)))  # type: ignore[no-untyped-call]


def render_progress_bar(fraction: float, text: str) -> str:
    """Return a progress bar with a text label, as HTML."""
    bar = f'<progress value="{fraction:.3f}" max="1" style="width: 16em; vertical-align: middle"></progress>'
    return f'<div style="font-family: sans-serif; font-size: 13px">{bar} {html.escape(text)}</div>'


def estimate_fraction_done(job: Any) -> float:
    """Return the fraction of a job's training steps that is completed."""
    if job.is_over:
        return 1.0
    return job.step / job.total_steps if job.state == "running" and job.total_steps else 0.0


def open_progress_display(experiment: experiment.Experiment) -> TrialProgressDisplay | NotebookProgressDisplay:
    """Return the notebook display if the process is a notebook kernel, otherwise the terminal display."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    is_notebook = shell is not None and type(shell).__name__ == "ZMQInteractiveShell"
    return NotebookProgressDisplay(experiment) if is_notebook else TrialProgressDisplay(experiment)


def format_training_speed(steps_per_second: float) -> str:
    """Return the training speed of all running trials for the display; slow trials are shown in seconds per step."""
    if not steps_per_second:
        return "starting"
    if steps_per_second < MIN_STEPS_PER_SECOND:
        return f"{format_duration(1 / steps_per_second)} per step"
    return f"{steps_per_second:.{1 if steps_per_second < 10 else 0}f} steps/s"


def estimate_durations(jobs: Sequence[Any]) -> dict[int, float]:
    """Return the durations in seconds that the display needs, by id(job): of finished and of running jobs."""
    durations = {id(job): job.end_time - job.start_time for job in jobs if job.state == "finished"}
    return durations | {
        id(job): job.report_time - job.start_time + job.seconds_left
        for job in jobs
        if job.state == "running" and job.seconds_left is not None
    }


def estimate_time_left(jobs: Sequence[Any]) -> float | None:
    """Return the estimated seconds until all jobs are over for the display, or None before a worker has reported.

    Running jobs use their worker's estimate. Waiting jobs are assumed to take as long as started ones, in proportion
    to the FLOPs of their models.
    """
    durations = estimate_durations(jobs)
    if not durations:
        return None
    flops = {id(job): job.model_cost.flops_per_token if job.model_cost is not None else None for job in jobs}
    weights = {key: value or 1 for key, value in flops.items()} if all(flops.values()) else dict.fromkeys(flops, 1)
    seconds_per_weight = sum(durations.values()) / sum(weights[key] for key in durations)
    current_time = time.monotonic()
    running_seconds: list[float] = []
    waiting_seconds: list[float] = []
    for job in jobs:
        seconds = durations.get(id(job), seconds_per_weight * weights[id(job)])
        if job.state == "running":
            running_seconds.append(max(0.0, job.start_time + seconds - current_time))
        elif job.state == "waiting":
            waiting_seconds.append(seconds)
    num_running = max(1, len(running_seconds))
    return max(0.0, *running_seconds, (sum(running_seconds) + sum(waiting_seconds)) / num_running)


def make_job_cell(job: Any) -> Cell:
    """Return a job's state as a cell of the live table, with its progress and loss while it runs."""
    if job is None:
        return Cell("")
    if job.state == "running":
        progress = f"{100 * job.step / job.total_steps:3.0f} %" if job.total_steps else "starts"
        return Cell(progress + (f" {job.loss:.2f}" if job.loss is not None else ""), color="cyan")
    if job.state == "finished":
        return Cell(f"done {job.end_time - job.start_time:.0f} s", color="green")
    colors = {"waiting": "dim", "kept": "green", "failed": "red", "lost": "red"}
    return Cell({"waiting": "waits", "kept": "done"}.get(job.state, job.state), color=colors[job.state])
