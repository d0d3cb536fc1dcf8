"""A search in the terminal: what it is doing now, what it would do, and what it found, readable at 80 columns."""

from __future__ import annotations

from typing import Any

from rich.markup import escape
from rich.padding import Padding

from headtohead.config import experiment
from headtohead.experiment import findings_view
from headtohead.experiment.findings_view import Findings
from headtohead.presentation import number_format
from headtohead.presentation.terminal import get_stdout_console, make_rich_table
from headtohead.progress import format_duration
from headtohead.search import phrasing

MAX_SHOWN_POINTS = 10
"""cells in the table at the end"""


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
