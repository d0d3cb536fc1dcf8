"""A search in the terminal: what it is doing now, what it would do, and what it found, readable at 80 columns."""

from __future__ import annotations

from typing import Any

from rich.markup import escape
from rich.padding import Padding

from headtohead.config import experiment
from headtohead.experiment.schemas import Findings
from headtohead.presentation.terminal import get_stdout_console, print_table
from headtohead.progress import format_duration
from headtohead.search import phrasing
from headtohead.search.tables import build_search_points_table

MAX_SHOWN_POINTS = 10
"""cells in the table at the end"""


def print_search(findings: Findings) -> None:
    """The best cells, who won, and how much of it was luck."""
    if findings.search is None:
        return
    console = get_stdout_console()
    console.print()
    print_table(build_search_points_table(findings), max_rows=MAX_SHOWN_POINTS)
    for sentence in phrasing.describe_search(findings):
        console.print(Padding(escape(sentence), (0, 0, 0, 2)))


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
