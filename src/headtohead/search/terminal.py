"""Print the plan or the results of a search."""

from __future__ import annotations

from typing import Any

from rich.markup import escape
from rich.padding import Padding

from headtohead.config import experiment
from headtohead.experiment.schemas import Findings
from headtohead.presentation.renderers.terminal import get_stdout_console, print_table
from headtohead.progress import format_duration
from headtohead.search import phrasing
from headtohead.search.tables import build_search_points_table

MAX_PRINTED_POINTS = 10


def print_search(findings: Findings) -> None:
    """Print the result of a search in the terminal: best points, winner and selection bias."""
    if findings.search is None:
        return
    console = get_stdout_console()
    console.print()
    print_table(build_search_points_table(findings), max_rows=MAX_PRINTED_POINTS)
    for sentence in phrasing.describe_search(findings):
        console.print(Padding(escape(sentence), (0, 0, 0, 2)))


def print_search_plan(experiment: experiment.Experiment, plan: Any, num_workers: int) -> None:
    """Print the plan of a search in the terminal: number of points and trials, estimated duration."""
    assert experiment.search is not None
    console, search = get_stdout_console(), experiment.search
    if plan.points is None:
        trial_time = format_duration(plan.seconds)
        console.print(f"First a {search.method} search for {search.budget}, about {trial_time} per trial.")
        return
    grid_note = f" (of {plan.grid_size:,} in the grid)" if plan.grid_size else ""
    search_size = f"{plan.points:,} points{grid_note} x {search.seeds} seeds = {plan.trials:,} trials"
    seconds = plan.estimate_seconds(num_workers)
    pruning_note = " or less, because points are pruned" if search.prune else ""
    console.print(f"First a {search.method} search, {search_size}: about {format_duration(seconds)}{pruning_note}.")
    console.print("Then the winner is compared with the baseline on fresh seeds, which costs about one more variant.")
