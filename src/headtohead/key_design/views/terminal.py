"""Design by hand in the terminal, at 80 columns: the outcome, the figures, the keys, and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from headtohead.key_design.views.facts import (
    ResultDict,
    build_keys_table,
    build_summary,
    format_heading,
    format_outcome,
    format_weight,
)
from headtohead.presentation.terminal import get_stdout_console, make_rich_table

OUTCOME_COLORS = {"exact": "green", "exact in the limit": "green", "not exact": "yellow"}
MAX_MATRIX_COLUMNS = 8
"""so many columns of a matrix of weights can be read at 80"""


def print_result(result: ResultDict) -> None:
    """An answer, or the tour."""
    console = get_stdout_console()
    if result["kind"] == "tour":
        _print_walkthrough(console, result)
        return
    _print_design(console, result, format_heading(result), None)


def _print_design(console: Console, result: ResultDict, title: str, published: dict[str, Any] | None) -> None:
    console.print(f"[bold {OUTCOME_COLORS[format_outcome(result)]}]{escape(title)}[/]", soft_wrap=False)
    console.print(Padding(escape(result["reason"]), (0, 0, 0, 2)))
    _print_notes(console, [(f"[dim]{name}[/]", said) for name, said in build_summary(result).items()])
    made = build_keys_table(result, published)
    shown = make_rich_table(*(column.title for column in made.columns))
    for column, about in zip(shown.columns, made.columns, strict=True):
        column.justify = "right" if about.is_numeric else "left"
        column.no_wrap = about.name != "numbers"
    for line in made.rows:
        shown.add_row(*(escape(cell.text) for cell in line))
    console.print(shown)
    if result["kind"] == "identity" and len(result["weights"]) <= MAX_MATRIX_COLUMNS:
        _print_weight_matrix(console, result)


def _print_weight_matrix(console: Console, result: ResultDict) -> None:
    square = make_rich_table("weights", *(f"key {at}" for at in range(len(result["weights"]))))
    for at, line in enumerate(result["weights"]):
        square.add_row(f"row {at}", *(format_weight(weight) if weight >= 5e-5 else "0" for weight in line))
    console.print(square)


def _print_walkthrough(console: Console, walkthrough: ResultDict) -> None:
    console.print("[bold]The questions of report C, part 1[/]")
    console.print(Padding(escape(walkthrough["reason"]), (0, 0, 1, 2)))
    for at, step in enumerate(walkthrough["steps"]):
        title = f"{at + 1}. {step['asks']}: {format_outcome(step['ours'])}"
        _print_design(console, step["ours"], title, step["theirs"])
        notes = [("[yellow]falls short[/]", line) for line in step["short"]]
        if step["theirs"]:
            said = f"{step['theirs']['said']} Precision {format_weight(step['theirs']['precision'])}."
            notes.insert(0, ("[cyan]the report[/]", said))
        _print_notes(console, notes)
        console.print()


def _print_notes(console: Console, notes: Sequence[tuple[str, str]]) -> None:
    """A word on the left, what it says on the right."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for name, said in notes:
        grid.add_row(name, escape(said))
    console.print(Padding(grid, (0, 0, 0, 2)))
