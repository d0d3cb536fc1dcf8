"""Print key-design solutions, formatted for 80 columns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rich.console import Console
from rich.markup import escape

from headtohead.key_design.views.summary import (
    ResultDict,
    build_keys_table,
    build_summary,
    build_weight_matrix_table,
    format_heading,
    format_outcome,
    format_weight,
)
from headtohead.presentation.renderers.terminal import get_stdout_console, print_indented, print_table

OUTCOME_COLORS = {"exact": "green", "exact in the limit": "green", "not exact": "yellow"}
MAX_MATRIX_COLUMNS = 8
"""largest weight matrix that fits 80 columns"""


def print_result(result: ResultDict) -> None:
    """Print a key-design solution or the walkthrough in the terminal."""
    console = get_stdout_console()
    if result["kind"] == "tour":
        _print_walkthrough(console, result)
        return
    _print_design(console, result, format_heading(result), None)


def _print_design(console: Console, result: ResultDict, title: str, published: dict[str, Any] | None) -> None:
    """Print one design's outcome, explanation and table in the terminal."""
    console.print(f"[bold {OUTCOME_COLORS[format_outcome(result)]}]{escape(title)}[/]", soft_wrap=False)
    print_indented(escape(result["reason"]))
    for label, formatted_value in build_summary(result).items():
        print_indented(f"[dim]{label}:[/] {escape(formatted_value)}")
    print_table(replace(build_keys_table(result, published), title="", caption=""))
    if result["kind"] == "identity" and len(result["weights"]) <= MAX_MATRIX_COLUMNS:
        print_table(build_weight_matrix_table(result))


def _print_walkthrough(console: Console, walkthrough: ResultDict) -> None:
    """Print every step of the walkthrough in the terminal, with the published answer and its limits."""
    console.print("[bold]Design questions of a course report[/]")
    print_indented(f"{escape(walkthrough['reason'])}\n")
    for index, step in enumerate(walkthrough["steps"]):
        title = f"{index + 1}. {step['question']}: {format_outcome(step['solution'])}"
        _print_design(console, step["solution"], title, step["published"])
        if published := step["published"]:
            published_text = f"{published['description']} Precision {format_weight(published['precision'])}."
            print_indented(f"[cyan]the report:[/] {escape(published_text)}")
        for limit in step["limits"]:
            print_indented(f"[yellow]limits:[/] {escape(limit)}")
        console.print()
