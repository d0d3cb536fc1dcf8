"""Print head metrics and checks in the terminal."""

from __future__ import annotations

from pathlib import Path

from rich.markup import escape

from headtohead.attention_analysis.figure import AttentionFigure
from headtohead.attention_analysis.head_tables import build_head_metrics_table
from headtohead.presentation.renderers.terminal import get_stdout_console, print_table

MAX_PRINTED_HEADS = 48
"""with more heads, only their means per layer are printed"""
CHECK_MARKS = {True: "[green]✓[/]", False: "[red]✕[/]", None: "[dim]–[/]"}


def print_analysis(figure: AttentionFigure, figure_path: Path | None) -> None:
    """Print an attention analysis in the terminal: notes, then each model's metrics and checks."""
    console = get_stdout_console()
    console.print(f"[bold]{escape(figure.title)}[/]")
    for note in figure.notes:
        console.print(f"[yellow]{escape(note)}[/]")
    for name, heads in figure.metrics_by_panel.items():
        title = name if len(figure.metrics_by_panel) > 1 else ""
        print_table(build_head_metrics_table(title, heads, by_layer=len(heads) > MAX_PRINTED_HEADS))
        if induction_heads := [f"{head.layer}.{head.head}" for head in heads if head.copies]:
            console.print(f"induction heads: {', '.join(induction_heads)}")
        for check in figure.checks_by_panel[name]:
            console.print(f"{CHECK_MARKS[check.passed]} {escape(check.name)}: {escape(check.observation)}")
    if figure_path is not None:
        console.print(f"picture: {escape(str(figure_path))}", soft_wrap=True)
