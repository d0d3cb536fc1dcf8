"""Print the results of a distillation: tables, ROUGE-1 verdicts, claims and example summaries."""

from __future__ import annotations

import math
from typing import Any

from rich.markup import escape

from headtohead.distillation import tables
from headtohead.experiment.schemas import Findings
from headtohead.presentation.renderers.terminal import (
    VERDICT_TERMINAL_COLORS,
    get_stdout_console,
    print_indented,
    print_table,
)
from headtohead.replication.terminal import print_claims

MAX_DOCUMENT_CHARACTERS = 400
"""maximum length of a displayed document"""


def print_distillation(findings: Findings) -> None:
    """Print the distillation results in the terminal; print nothing if the experiment has no teacher."""
    for table in tables.build_distillation_tables(findings):
        if table.name in ("teacher", "distilled", "distilled_costs"):
            print_table(table)
    if findings.summarization is None:
        return
    get_stdout_console().print("[bold]Verdicts by ROUGE-1[/]")
    for pair in findings.summarization.pairs:
        if pair.metric == "rouge-1":
            color = VERDICT_TERMINAL_COLORS.get(pair.outcome, "cyan")
            system_pair = (
                f"{tables.format_system_title(pair.system)} against {tables.format_system_title(pair.reference)}"
            )
            effect = f" ({tables.format_rouge_difference(pair.effect)})" if math.isfinite(pair.effect) else ""
            print_indented(f"{escape(system_pair)}: [bold {color}]{pair.outcome}[/]{effect}")
    print_claims(findings.summarization.claims)
    for example in tables.list_example_summaries(findings):
        _print_example_summaries(example)


def _print_example_summaries(example: dict[str, Any]) -> None:
    """Print a document in the terminal with its reference summaries and every system's summary."""
    document = example["document"]
    excerpt = document[:MAX_DOCUMENT_CHARACTERS] + (" ..." if len(document) > MAX_DOCUMENT_CHARACTERS else "")
    get_stdout_console().print(f"\n[dim]{escape(excerpt)}[/]")
    for reference in example["human"]:
        print_indented(f"[bold]human:[/] {escape(reference)}")
    for summary in example["generated"]:
        print_indented(f"[bold]{escape(summary['system'])}:[/] {escape(summary['text']) or '(empty)'}")
