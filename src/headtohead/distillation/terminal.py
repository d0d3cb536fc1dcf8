"""A distillation in the terminal: the table, the verdicts on ROUGE-1, claims, and documents side by side."""

from __future__ import annotations

from typing import Any

from rich.markup import escape
from rich.padding import Padding
from rich.table import Table as RichTable

from headtohead.distillation import tables
from headtohead.presentation.table import Table
from headtohead.report.findings_view import Findings
from headtohead.report.terminal import VERDICT_COLOURS, out, show_claims, table

UNLIMITED = 1000
SHORT = 400
"""characters of a document that are shown"""


def show_distillation(findings: Findings) -> None:
    """Nothing where nobody was taught."""
    made = {one.name: one for one in tables.tables(findings) if one.rows}
    if not made:
        return
    for name in ("teacher", "distilled", "distilled_costs"):
        if name in made:
            _show(made[name])
    if "distilled" not in made:
        return
    console = out()
    console.print("[bold]each pair, by ROUGE-1[/]")
    for row in tables.distilled(findings)["pairs"]:
        if row["measure"] == "rouge-1":
            _show_pair(row)
    show_claims(tables.distilled(findings)["claims"])
    for one in tables.side_by_side(findings):
        _show_document(one)


def _show(one: Table) -> None:
    shown = table(*(column.title for column in one.columns), title=one.title)
    for row in one.rows:
        shown.add_row(*(escape(cell.text) for cell in row))
    console = out()
    if console.measure(shown, options=console.options.update_width(UNLIMITED)).maximum > console.width:
        _narrow(shown)
    console.print(shown)
    if one.caption:
        console.print(f"[dim]{escape(one.caption)}[/]")


def _narrow(shown: RichTable) -> None:
    """Figures are as wide as their longest word, so that names have the rest and no word is broken."""
    shown.padding = (0, 1, 0, 0)
    for column in shown.columns[1:]:
        texts = [str(column.header), *(str(cell) for cell in column.cells)]
        column.max_width = max(len(word) for text in texts for word in text.split())


def _show_pair(row: dict[str, Any]) -> None:
    colour = VERDICT_COLOURS.get(row["word"], "cyan")
    pair = f"{tables.title(row['who'])} against {tables.title(row['against'])}"
    effect = "" if row["effect"] is None else f" ({row['effect']:+.4f})"
    out().print(Padding(f"{escape(pair)}: [bold {colour}]{row['word']}[/]{effect}", (0, 0, 0, 2)))


def _show_document(one: dict[str, Any]) -> None:
    console = out()
    text = one["document"] if len(one["document"]) <= SHORT else one["document"][:SHORT] + " ..."
    console.print()
    console.print(f"[dim]{escape(text)}[/]")
    for said in one["people"]:
        console.print(Padding(f"[bold]people:[/] {escape(said)}", (0, 0, 0, 2)))
    for row in one["written"]:
        console.print(Padding(f"[bold]{escape(row['who'])}:[/] {escape(row['text']) or '(nothing)'}", (0, 0, 0, 2)))
