"""Print key-design solutions in 80 columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from headtohead.key_design.views.facts import (
    ResultDict,
    build_keys_table,
    build_summary,
    build_weight_matrix,
    format_heading,
    format_outcome,
    format_weight,
)
from headtohead.presentation.terminal import get_stdout_console, print_table

OUTCOME_COLORS = {"exact": "green", "exact in the limit": "green", "not exact": "yellow"}
MAX_MATRIX_COLUMNS = 8
"""largest weight matrix that fits 80 columns"""


def print_result(result: ResultDict) -> None:
    """Print a solution or the walkthrough."""
    console = get_stdout_console()
    if result["kind"] == "tour":
        _print_walkthrough(console, result)
        return
    _print_design(console, result, format_heading(result), None)


def _print_design(console: Console, result: ResultDict, title: str, published: dict[str, Any] | None) -> None:
    console.print(f"[bold {OUTCOME_COLORS[format_outcome(result)]}]{escape(title)}[/]", soft_wrap=False)
    console.print(Padding(escape(result["reason"]), (0, 0, 0, 2)))
    _print_notes(console, [(f"[dim]{name}[/]", text) for name, text in build_summary(result).items()])
    print_table(replace(build_keys_table(result, published), title="", caption=""))
    if result["kind"] == "identity" and len(result["weights"]) <= MAX_MATRIX_COLUMNS:
        print_table(build_weight_matrix(result))


def _print_walkthrough(console: Console, walkthrough: ResultDict) -> None:
    console.print("[bold]Design questions of a course report[/]")
    console.print(Padding(escape(walkthrough["reason"]), (0, 0, 1, 2)))
    for index, step in enumerate(walkthrough["steps"]):
        title = f"{index + 1}. {step['question']}: {format_outcome(step['solution'])}"
        _print_design(console, step["solution"], title, step["published"])
        notes = [("[yellow]limits[/]", line) for line in step["limits"]]
        if step["published"]:
            text = f"{step['published']['description']} Precision {format_weight(step['published']['precision'])}."
            notes.insert(0, ("[cyan]the report[/]", text))
        _print_notes(console, notes)
        console.print()


def _print_notes(console: Console, notes: Sequence[tuple[str, str]]) -> None:
    """Print labelled notes in two columns."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for name, text in notes:
        grid.add_row(name, escape(text))
    console.print(Padding(grid, (0, 0, 0, 2)))
