"""Print head metrics and checks in the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.markup import escape

from headtohead.attention_analysis.page import MEASURE_COLUMNS, format_measure, select_columns
from headtohead.presentation.terminal import get_stdout_console, make_rich_table

MAX_ROWS = 48
CHECK_MARKS = {True: "[green]✓[/]", False: "[red]✕[/]", None: "[dim]–[/]"}
COLUMN_TITLES = {
    "entropy": "entropy\nbits",
    "distance": "distance\ntokens",
    "first": "first\n%",
    "itself": "itself\n%",
    "previous": "previous\n%",
    "padding": "padding\n%",
    "induction": "induction\n%",
    "control": "control\n%",
    "rise": "ablated\nnats",
}


def print_analysis(analysis: dict[str, Any], figure_path: Path | None) -> None:
    """Print the `to_dict` of an attention analysis."""
    console = get_stdout_console()
    console.print(f"[bold]{escape(analysis['title'])}[/]")
    for note in analysis["notes"]:
        console.print(f"[yellow]{escape(note)}[/]")
    for panel in analysis["panels"]:
        _print_panel(panel, is_only_panel=len(analysis["panels"]) == 1)
    if figure_path is not None:
        console.print(f"picture: {escape(str(figure_path))}", soft_wrap=True)


def _print_panel(panel: dict[str, Any], *, is_only_panel: bool) -> None:
    console, rows = get_stdout_console(), panel["measures"]
    shown_rows = rows if len(rows) <= MAX_ROWS else _average_by_layer(rows)
    names = select_columns(rows)
    row_title = "head" if shown_rows is rows else "layer"
    rich_table = make_rich_table(
        row_title, *(COLUMN_TITLES[name] for name in names), title=None if is_only_panel else escape(panel["name"])
    )
    for row in shown_rows:
        name = f"{row['layer']}.{row['head']}" if shown_rows is rows else str(row["layer"])
        rich_table.add_row(name, *(format_measure(measure, row.get(measure)) for measure in names))
    console.print(rich_table)
    if shown_rows is not rows:
        console.print(f"[dim]means over the heads of each layer; --json prints all {len(rows)}[/]")
    copying = [f"{row['layer']}.{row['head']}" for row in rows if row.get("copies")]
    if copying:
        console.print(f"induction heads: {', '.join(copying)}")
    for check in panel["checks"]:
        console.print(f"{CHECK_MARKS[check['passed']]} {escape(check['name'])}: {escape(check['found'])}")


def _average_by_layer(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    means = []
    for layer in dict.fromkeys(row["layer"] for row in rows):
        heads = [row for row in rows if row["layer"] == layer]
        values = {name: [row[name] for row in heads if row.get(name) is not None] for name in MEASURE_COLUMNS}
        means.append(
            {"layer": layer, **{name: sum(numbers) / len(numbers) for name, numbers in values.items() if numbers}}
        )
    return means
