"""Live progress of a hyperparameter search on stderr."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table

from headtohead.config import experiment
from headtohead.execution.progress_display import TrialProgressDisplay, format_job_cell
from headtohead.experiment.seed_average import average_over_seeds
from headtohead.presentation import number_format
from headtohead.presentation.terminal import make_rich_table
from headtohead.progress import format_duration


class SearchProgressDisplay(TrialProgressDisplay):
    """While a search runs: the trials under way, the best point so far, and the time left; then the comparison."""

    def __init__(self, experiment: experiment.Experiment) -> None:
        super().__init__(experiment)
        self.of = experiment

    def table(self, jobs: Sequence[Any]) -> Table:
        if not any(job.trial.choosing for job in jobs):
            names = [name for name in dict.fromkeys(job.trial.variant for job in jobs) if name not in self.of.names]
            variants = {**self.of.variants, **{name: {} for name in names}}
            self.experiment = self.of.model_copy(update={"variants": variants})
            return super().table(jobs)
        made = make_rich_table("point", "seed", "now")
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
            each = statistics.fmean(job.end_time - job.start_time for job in done)
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
        means = {name: average_over_seeds(metric, values) for name, values in by_cell.items()}
        if not means:
            return ""
        pick = min if metric in number_format.LOWER_IS_BETTER_METRICS else max
        name = pick(means, key=lambda one: means[one])
        return f"best so far: {name}, {metric} {number_format.format_score(metric, means[name])} on validation data"
