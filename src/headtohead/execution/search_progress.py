"""Live progress of a hyperparameter search on stderr."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table

from headtohead.config import experiment
from headtohead.execution.progress_display import TrialProgressDisplay, estimate_durations, format_job_cell
from headtohead.experiment.seed_average import average_over_seeds
from headtohead.presentation import number_format
from headtohead.presentation.terminal import make_rich_table
from headtohead.progress import format_duration


class SearchProgressDisplay(TrialProgressDisplay):
    """Display of a search: running trials, the best point so far and the time left; afterwards the final comparison."""

    def __init__(self, experiment: experiment.Experiment) -> None:
        super().__init__(experiment)
        self.full_experiment = experiment

    def table(self, jobs: Sequence[Any]) -> Table:
        """Return the running trials of the search, or the table of the final comparison."""
        if not any(job.trial.is_search for job in jobs):
            new_names = [
                name
                for name in dict.fromkeys(job.trial.variant for job in jobs)
                if name not in self.full_experiment.names
            ]
            variants = {**self.full_experiment.variants, **{name: {} for name in new_names}}
            self.experiment = self.full_experiment.model_copy(update={"variants": variants})
            return super().table(jobs)
        table = make_rich_table("point", "seed", "now")
        for job in jobs:
            if job.state == "running":
                table.add_row(escape(job.trial.variant), str(job.trial.seed), format_job_cell(job))
        return table

    def progress(self, jobs: Sequence[Any]) -> list[str]:
        """Return a line with completed trials and time left, then a line with the best point."""
        if self.full_experiment.search is None or not any(job.trial.is_search for job in jobs):
            return super().progress(jobs)
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
        if minutes := self.full_experiment.search.budget.minutes if self.full_experiment.search.budget else None:
            phrases.append(f"{minutes:g} min are allowed")
        best_line = self._describe_best(finished_jobs)
        return [" · ".join(phrases), *([best_line] if best_line else [])]

    def _describe_best(self, finished_jobs: Sequence[Any]) -> str:
        """Return a line with the best validation mean among the finished trials."""
        metric = self.full_experiment.primary.metric
        scores_by_point: dict[str, list[float]] = {}
        for job in finished_jobs:
            scores_by_point.setdefault(job.trial.variant, []).append(job.result["scores"]["validation"][metric])
        means = {name: average_over_seeds(metric, values) for name, values in scores_by_point.items()}
        if not means:
            return ""
        select = min if metric in number_format.LOWER_IS_BETTER_METRICS else max
        best = select(means, key=lambda name: means[name])
        return f"best so far: {best}, {metric} {number_format.format_score(metric, means[best])} on validation data"
