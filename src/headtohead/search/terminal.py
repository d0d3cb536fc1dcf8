"""A search in the terminal: what it is doing now, what it would do, and what it found, readable at 80 columns."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from headtohead.config import experiment
from headtohead.presentation import number_format
from headtohead.progress import format_duration
from headtohead.report import findings_view
from headtohead.report.findings_view import Findings
from headtohead.report.terminal import TrialProgressDisplay, format_job_cell, get_stdout_console, make_rich_table
from headtohead.search import phrasing

MAX_SHOWN_POINTS = 10
"""cells in the table at the end"""


class SearchProgressDisplay(TrialProgressDisplay):
    """While a search runs: the trials under way, the best cell so far, and the time left; then the comparison."""

    def __init__(self, experiment: experiment.Experiment) -> None:
        super().__init__(experiment)
        self.of = experiment

    def table(self, jobs: Sequence[Any]) -> Table:
        if not any(job.trial.choosing for job in jobs):
            names = [name for name in dict.fromkeys(job.trial.variant for job in jobs) if name not in self.of.names]
            variants = {**self.of.variants, **{name: {} for name in names}}
            self.experiment = self.of.model_copy(update={"variants": variants})
            return super().table(jobs)
        made = make_rich_table("cell", "seed", "now")
        for job in jobs:
            if job.state == "running":
                made.add_row(escape(job.trial.variant), str(job.trial.seed), format_job_cell(job))
        return made

    def progress(self, jobs: Sequence[Any]) -> list[str]:
        if self.of.search is None or not any(job.trial.choosing for job in jobs):
            return super().progress(jobs)
        done = [job for job in jobs if job.state == "finished"]
        planned = self.of.search.compute_planned_counts()[1]
        words = [f"search: {len(done)}{f' of {planned}' if planned else ''} trials done in this go"]
        if planned and done:
            each = statistics.fmean(job.ended - job.began for job in done)
            busy = max(1, sum(job.state == "running" for job in jobs))
            words.append(f"at most {format_duration(each * max(0, planned - len(done)) / busy)} left")
        if minutes := self.of.search.budget.minutes if self.of.search.budget else None:
            words.append(f"{minutes:g} min are allowed")
        best = self._best(done)
        return [" · ".join(words), *([best] if best else [])]

    def _best(self, finished_jobs: Sequence[Any]) -> str:
        metric = self.of.primary.metric
        by_cell: dict[str, list[float]] = {}
        for job in finished_jobs:
            by_cell.setdefault(job.trial.variant, []).append(job.result["scores"]["validation"][metric])
        means = {name: findings_view.average_over_seeds(metric, values) for name, values in by_cell.items()}
        if not means:
            return ""
        pick = min if metric in number_format.LOWER_IS_BETTER_METRICS else max
        name = pick(means, key=lambda one: means[one])
        return f"best so far: {name}, {metric} {number_format.format_score(metric, means[name])} on validation data"


def print_search(findings: Findings) -> None:
    """The best cells, who won, and how much of it was luck."""
    search = phrasing.get_search(findings)
    if search is None:
        return
    metric = findings_view.get_metric(findings)
    names = phrasing.shorten_setting_names(list(search["space"]))
    made = make_rich_table("cell", *map(escape, names.values()), "validation", "seeds", "")
    made.columns[-1].justify = "left"
    ordered = phrasing.rank_points(search, metric)
    for one in ordered[:MAX_SHOWN_POINTS]:
        settings = [escape(number_format.format_setting(one["settings"][setting])) for setting in names]
        ended = "winner" if one["cell"] == search["winner"] else _format_status(one["status"])
        figure = number_format.format_score(metric, one["mean"])
        made.add_row(one["name"], *settings, figure, str(len(one["values"])), ended)
    console = get_stdout_console()
    console.print()
    console.print(made)
    if len(ordered) > MAX_SHOWN_POINTS:
        console.print(f"[dim]and {len(ordered) - MAX_SHOWN_POINTS} more cells, in the report[/]")
    for sentence in phrasing.describe_search(findings):
        console.print(Padding(escape(sentence), (0, 0, 0, 2)))


def _format_status(status: str) -> str:
    return {"finished": "", "pruned": "given up", "failed": "[red]failed[/]"}.get(status, status)


def print_search_plan(experiment: experiment.Experiment, plan: Any, num_workers: int) -> None:
    """How many cells and trials, and roughly how long, before the comparison."""
    assert experiment.search is not None
    console, search = get_stdout_console(), experiment.search
    if plan.cells is None:
        console.print(
            f"Search first: {search.method}, for {plan.minutes:g} minutes, about {format_duration(plan.seconds)} a trial."  # noqa: E501
        )
        return
    of = f" (of {plan.of:,} in the grid)" if plan.of else ""
    size = f"{plan.cells:,} cells{of} x {search.seeds} seeds = {plan.trials:,} trials"
    time = plan.seconds * plan.trials / min(num_workers, plan.trials)
    limit = f", and no longer than {plan.minutes:g} min" if plan.minutes else ""
    fewer = " or less, as cells are given up" if search.prune else ""
    console.print(f"Search first: {search.method}, {size}: about {format_duration(time)}{fewer}{limit}.")
    console.print("Then the winner with fresh seeds beside the baseline, at about the cost of one more variant.")
