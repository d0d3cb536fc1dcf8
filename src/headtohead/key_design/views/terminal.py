"""Design by hand in the terminal, at 80 columns: the outcome, the figures, the keys, and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from headtohead.key_design.views.facts import Row, facts, figure, heading, keys_table, outcome
from headtohead.report.terminal import out, table

COLOURS = {"exact": "green", "exact in the limit": "green", "not exact": "yellow"}
MOST_SQUARE = 8
"""so many columns of a matrix of weights can be read at 80"""


def show(row: Row) -> None:
    """An answer, or the tour."""
    console = out()
    if row["kind"] == "tour":
        _show_tour(console, row)
        return
    _show_answer(console, row, heading(row), None)


def _show_answer(console: Console, row: Row, title: str, theirs: dict[str, Any] | None) -> None:
    console.print(f"[bold {COLOURS[outcome(row)]}]{escape(title)}[/]", soft_wrap=False)
    console.print(Padding(escape(row["reason"]), (0, 0, 0, 2)))
    _notes(console, [(f"[dim]{name}[/]", said) for name, said in facts(row).items()])
    made = keys_table(row, theirs)
    shown = table(*(column.title for column in made.columns))
    for column, about in zip(shown.columns, made.columns, strict=True):
        column.justify = "right" if about.is_figure else "left"
        column.no_wrap = about.name != "numbers"
    for line in made.rows:
        shown.add_row(*(escape(cell.text) for cell in line))
    console.print(shown)
    if row["kind"] == "identity" and len(row["weights"]) <= MOST_SQUARE:
        _show_square(console, row)


def _show_square(console: Console, row: Row) -> None:
    square = table("weights", *(f"key {at}" for at in range(len(row["weights"]))))
    for at, line in enumerate(row["weights"]):
        square.add_row(f"row {at}", *(figure(weight) if weight >= 5e-5 else "0" for weight in line))
    console.print(square)


def _show_tour(console: Console, row: Row) -> None:
    console.print("[bold]The questions of report C, part 1[/]")
    console.print(Padding(escape(row["reason"]), (0, 0, 1, 2)))
    for at, step in enumerate(row["steps"]):
        title = f"{at + 1}. {step['asks']}: {outcome(step['ours'])}"
        _show_answer(console, step["ours"], title, step["theirs"])
        notes = [("[yellow]falls short[/]", line) for line in step["short"]]
        if step["theirs"]:
            said = f"{step['theirs']['said']} Precision {figure(step['theirs']['precision'])}."
            notes.insert(0, ("[cyan]the report[/]", said))
        _notes(console, notes)
        console.print()


def _notes(console: Console, notes: Sequence[tuple[str, str]]) -> None:
    """A word on the left, what it says on the right."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for name, said in notes:
        grid.add_row(name, escape(said))
    console.print(Padding(grid, (0, 0, 0, 2)))
