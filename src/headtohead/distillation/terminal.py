"""A distillation in the terminal: the table, the verdicts on ROUGE-1, claims, and documents side by side."""

from __future__ import annotations

from typing import Any

from rich.markup import escape
from rich.padding import Padding
from rich.table import Table as RichTable

from headtohead.distillation import tables
from headtohead.experiment.findings_view import Findings
from headtohead.presentation.table import Table
from headtohead.presentation.terminal import VERDICT_TERMINAL_COLORS, get_stdout_console, make_rich_table
from headtohead.replication.terminal import print_claims

UNLIMITED_WIDTH = 1000
MAX_DOCUMENT_CHARACTERS = 400
"""characters of a document that are shown"""


def print_distillation(findings: Findings) -> None:
    """Nothing where nobody was taught."""
    made = {one.name: one for one in tables.build_tables(findings) if one.rows}
    if not made:
        return
    for name in ("teacher", "distilled", "distilled_costs"):
        if name in made:
            _print_table(made[name])
    if "distilled" not in made:
        return
    console = get_stdout_console()
    console.print("[bold]each pair, by ROUGE-1[/]")
    for row in tables.get_summary_comparison(findings)["pairs"]:
        if row["measure"] == "rouge-1":
            _print_pairwise_verdict(row)
    print_claims(tables.get_summary_comparison(findings)["claims"])
    for one in tables.list_sample_summaries(findings):
        _print_sample_summaries(one)


def _print_table(table: Table) -> None:
    shown = make_rich_table(*(column.title for column in table.columns), title=table.title)
    for row in table.rows:
        shown.add_row(*(escape(cell.text) for cell in row))
    console = get_stdout_console()
    if console.measure(shown, options=console.options.update_width(UNLIMITED_WIDTH)).maximum > console.width:
        _shrink_numeric_columns(shown)
    console.print(shown)
    if table.caption:
        console.print(f"[dim]{escape(table.caption)}[/]")


def _shrink_numeric_columns(rich_table: RichTable) -> None:
    """Figures are as wide as their longest word, so that names have the rest and no word is broken."""
    rich_table.padding = (0, 1, 0, 0)
    for column in rich_table.columns[1:]:
        texts = [str(column.header), *(str(cell) for cell in column.cells)]
        column.max_width = max(len(word) for text in texts for word in text.split())


def _print_pairwise_verdict(row: dict[str, Any]) -> None:
    colour = VERDICT_TERMINAL_COLORS.get(row["word"], "cyan")
    pair = f"{tables.format_system_title(row['who'])} against {tables.format_system_title(row['against'])}"
    effect = "" if row["effect"] is None else f" ({row['effect']:+.4f})"
    get_stdout_console().print(Padding(f"{escape(pair)}: [bold {colour}]{row['word']}[/]{effect}", (0, 0, 0, 2)))


def _print_sample_summaries(sample: dict[str, Any]) -> None:
    console = get_stdout_console()
    text = (
        sample["document"]
        if len(sample["document"]) <= MAX_DOCUMENT_CHARACTERS
        else sample["document"][:MAX_DOCUMENT_CHARACTERS] + " ..."
    )
    console.print()
    console.print(f"[dim]{escape(text)}[/]")
    for said in sample["people"]:
        console.print(Padding(f"[bold]people:[/] {escape(said)}", (0, 0, 0, 2)))
    for row in sample["written"]:
        console.print(Padding(f"[bold]{escape(row['who'])}:[/] {escape(row['text']) or '(nothing)'}", (0, 0, 0, 2)))
