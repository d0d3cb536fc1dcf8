"""Print the results of a distillation: tables, ROUGE-1 verdicts, claims and sample summaries."""

from __future__ import annotations

import math
from typing import Any

from rich.markup import escape

from headtohead.distillation import tables
from headtohead.experiment.schemas import Findings, SystemPairVerdict
from headtohead.presentation.terminal import VERDICT_TERMINAL_COLORS, get_stdout_console, print_indented, print_table
from headtohead.replication.terminal import print_claims

MAX_DOCUMENT_CHARACTERS = 400
"""maximum length of a displayed document"""


def print_distillation(findings: Findings) -> None:
    """Print the distillation results; print nothing if the experiment has no teacher."""
    tables_by_name = {item.name: item for item in tables.build_tables(findings) if item.rows}
    if not tables_by_name:
        return
    for name in ("teacher", "distilled", "distilled_costs"):
        if name in tables_by_name:
            print_table(tables_by_name[name])
    if findings.summarization is None:
        return
    console = get_stdout_console()
    console.print("[bold]each pair, by ROUGE-1[/]")
    for pair in findings.summarization.pairs:
        if pair.metric == "rouge-1":
            _print_pairwise_verdict(pair)
    print_claims(findings.summarization.claims)
    for item in tables.list_sample_summaries(findings):
        _print_sample_summaries(item)


def _print_pairwise_verdict(verdict: SystemPairVerdict) -> None:
    """Print one verdict with its effect."""
    color = VERDICT_TERMINAL_COLORS.get(verdict.outcome, "cyan")
    pair = f"{tables.format_system_title(verdict.system)} against {tables.format_system_title(verdict.reference)}"
    effect = "" if not math.isfinite(verdict.effect) else f" ({verdict.effect:+.4f})"
    print_indented(f"{escape(pair)}: [bold {color}]{verdict.outcome}[/]{effect}")


def _print_sample_summaries(sample: dict[str, Any]) -> None:
    """Print a document with its reference summaries and the summary of every system."""
    document = sample["document"]
    excerpt = document[:MAX_DOCUMENT_CHARACTERS] + (" ..." if len(document) > MAX_DOCUMENT_CHARACTERS else "")
    get_stdout_console().print(f"\n[dim]{escape(excerpt)}[/]")
    for reference in sample["people"]:
        print_indented(f"[bold]people:[/] {escape(reference)}")
    for summary in sample["written"]:
        print_indented(f"[bold]{escape(summary['who'])}:[/] {escape(summary['text']) or '(nothing)'}")
