"""Attention in the terminal: a table of what each head does, the checks in words, and where the pictures are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.markup import escape

from headtohead.attention_analysis.page import COLUMNS, figure, shown_columns
from headtohead.report.terminal import out, table

MOST_ROWS = 48
MARKS = {True: "[green]✓[/]", False: "[red]✕[/]", None: "[dim]–[/]"}
SHORT = {
    "entropy": "width\nbits",
    "distance": "distance\ntokens",
    "first": "first\n%",
    "itself": "itself\n%",
    "previous": "before\n%",
    "padding": "padding\n%",
    "induction": "copies\n%",
    "control": "by place\n%",
    "rise": "rise\nnats",
}


def show(found: dict[str, Any], written: Path | None) -> None:
    """What `headtohead.attention` found, as its `as_row` says it."""
    console = out()
    console.print(f"[bold]{escape(found['title'])}[/]")
    for note in found["notes"]:
        console.print(f"[yellow]{escape(note)}[/]")
    for panel in found["panels"]:
        _show_panel(panel, alone=len(found["panels"]) == 1)
    if written is not None:
        console.print(f"picture: {escape(str(written))}", soft_wrap=True)


def _show_panel(panel: dict[str, Any], *, alone: bool) -> None:
    console, rows = out(), panel["measures"]
    shown = rows if len(rows) <= MOST_ROWS else _by_layer(rows)
    names = shown_columns(rows)
    first = "head" if shown is rows else "layer"
    made = table(first, *(SHORT[name] for name in names), title=None if alone else escape(panel["name"]))
    for row in shown:
        name = f"{row['layer']}.{row['head']}" if shown is rows else str(row["layer"])
        made.add_row(name, *(figure(one, row.get(one)) for one in names))
    console.print(made)
    if shown is not rows:
        console.print(f"[dim]means of each layer's heads; --json gives all {len(rows)}[/]")
    copying = [f"{row['layer']}.{row['head']}" for row in rows if row.get("copies")]
    if copying:
        console.print(f"copies what came after the same token before: {', '.join(copying)}")
    for check in panel["checks"]:
        console.print(f"{MARKS[check['passed']]} {escape(check['name'])}: {escape(check['found'])}")


def _by_layer(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    means = []
    for layer in dict.fromkeys(row["layer"] for row in rows):
        heads = [row for row in rows if row["layer"] == layer]
        known = {name: [row[name] for row in heads if row.get(name) is not None] for name in COLUMNS}
        means.append({"layer": layer, **{name: sum(v) / len(v) for name, v in known.items() if v}})
    return means
