"""A distillation in the terminal: the table, the verdicts on ROUGE-1, claims, and documents side by side."""

from __future__ import annotations

import math
from typing import Any

from rich.markup import escape
from rich.padding import Padding

from headtohead.distillation import tables
from headtohead.experiment.schemas import Findings, SystemPairVerdict
from headtohead.presentation.terminal import VERDICT_TERMINAL_COLORS, get_stdout_console, print_table
from headtohead.replication.terminal import print_claims

MAX_DOCUMENT_CHARACTERS = 400
"""characters of a document that are shown"""


def print_distillation(findings: Findings) -> None:
    """Nothing where nobody was taught."""
    made = {one.name: one for one in tables.build_tables(findings) if one.rows}
    if not made:
        return
    for name in ("teacher", "distilled", "distilled_costs"):
        if name in made:
            print_table(made[name])
    if findings.summarization is None:
        return
    console = get_stdout_console()
    console.print("[bold]each pair, by ROUGE-1[/]")
    for row in findings.summarization.pairs:
        if row.measure == "rouge-1":
            _print_pairwise_verdict(row)
    print_claims(findings.summarization.claims)
    for one in tables.list_sample_summaries(findings):
        _print_sample_summaries(one)


def _print_pairwise_verdict(row: SystemPairVerdict) -> None:
    colour = VERDICT_TERMINAL_COLORS.get(row.outcome, "cyan")
    pair = f"{tables.format_system_title(row.system)} against {tables.format_system_title(row.against)}"
    effect = "" if not math.isfinite(row.effect) else f" ({row.effect:+.4f})"
    get_stdout_console().print(Padding(f"{escape(pair)}: [bold {colour}]{row.outcome}[/]{effect}", (0, 0, 0, 2)))


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
