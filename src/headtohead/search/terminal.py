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
from headtohead.progress import duration
from headtohead.report import findings_view
from headtohead.report.findings_view import Findings
from headtohead.report.terminal import Live, cell, out, table
from headtohead.search import phrasing

SHOWN = 10
"""cells in the table at the end"""


class SearchLive(Live):
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
        made = table("cell", "seed", "now")
        for job in jobs:
            if job.state == "running":
                made.add_row(escape(job.trial.variant), str(job.trial.seed), cell(job))
        return made

    def progress(self, jobs: Sequence[Any]) -> list[str]:
        if self.of.search is None or not any(job.trial.choosing for job in jobs):
            return super().progress(jobs)
        done = [job for job in jobs if job.state == "finished"]
        planned = self.of.search.planned()[1]
        words = [f"search: {len(done)}{f' of {planned}' if planned else ''} trials done in this go"]
        if planned and done:
            each = statistics.fmean(job.ended - job.began for job in done)
            busy = max(1, sum(job.state == "running" for job in jobs))
            words.append(f"at most {duration(each * max(0, planned - len(done)) / busy)} left")
        if minutes := self.of.search.budget.minutes if self.of.search.budget else None:
            words.append(f"{minutes:g} min are allowed")
        best = self._best(done)
        return [" · ".join(words), *([best] if best else [])]

    def _best(self, done: Sequence[Any]) -> str:
        metric = self.of.primary.metric
        by_cell: dict[str, list[float]] = {}
        for job in done:
            by_cell.setdefault(job.trial.variant, []).append(job.result["scores"]["validation"][metric])
        means = {name: findings_view.mean(metric, values) for name, values in by_cell.items()}
        if not means:
            return ""
        pick = min if metric in number_format.LOWER_IS_BETTER else max
        name = pick(means, key=lambda one: means[one])
        return f"best so far: {name}, {metric} {number_format.value(metric, means[name])} on validation data"


def show_search(findings: Findings) -> None:
    """The best cells, who won, and how much of it was luck."""
    search = phrasing.found(findings)
    if search is None:
        return
    metric = findings_view.metric(findings)
    names = phrasing.short_names(list(search["space"]))
    made = table("cell", *map(escape, names.values()), "validation", "seeds", "")
    made.columns[-1].justify = "left"
    ordered = phrasing.ranked(search, metric)
    for one in ordered[:SHOWN]:
        settings = [escape(number_format.plain(one["settings"][setting])) for setting in names]
        ended = "winner" if one["cell"] == search["winner"] else _ended(one["status"])
        figure = number_format.value(metric, one["mean"])
        made.add_row(one["name"], *settings, figure, str(len(one["values"])), ended)
    console = out()
    console.print()
    console.print(made)
    if len(ordered) > SHOWN:
        console.print(f"[dim]and {len(ordered) - SHOWN} more cells, in the report[/]")
    for sentence in phrasing.sentences(findings):
        console.print(Padding(escape(sentence), (0, 0, 0, 2)))


def _ended(status: str) -> str:
    return {"finished": "", "pruned": "given up", "failed": "[red]failed[/]"}.get(status, status)


def show_search_plan(experiment: experiment.Experiment, plan: Any, workers: int) -> None:
    """How many cells and trials, and roughly how long, before the comparison."""
    assert experiment.search is not None
    console, search = out(), experiment.search
    if plan.cells is None:
        console.print(
            f"Search first: {search.method}, for {plan.minutes:g} minutes, about {duration(plan.seconds)} a trial."
        )
        return
    of = f" (of {plan.of:,} in the grid)" if plan.of else ""
    size = f"{plan.cells:,} cells{of} x {search.seeds} seeds = {plan.trials:,} trials"
    time = plan.seconds * plan.trials / min(workers, plan.trials)
    limit = f", and no longer than {plan.minutes:g} min" if plan.minutes else ""
    fewer = " or less, as cells are given up" if search.prune else ""
    console.print(f"Search first: {search.method}, {size}: about {duration(time)}{fewer}{limit}.")
    console.print("Then the winner with fresh seeds beside the baseline, at about the cost of one more variant.")
