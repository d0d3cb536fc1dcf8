"""The decoding comparison in the terminal: a bar with the time left on stderr, figures and tests on stdout."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from rich.markup import escape
from rich.padding import Padding
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from headtohead.decoding_comparison.tables import build_metrics_table
from headtohead.presentation.terminal import (
    VERDICT_TERMINAL_COLORS,
    get_stderr_console,
    get_stdout_console,
    print_table,
)
from headtohead.progress import ProgressUpdate, StderrProgress

DecodingResults = dict[str, Any]


class DecodingProgressBar:
    """What is being done, how far it is and how long it will take; a line now and then where there is no terminal."""

    def __init__(self) -> None:
        console = get_stderr_console()
        self.is_interactive = console.is_terminal
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:.0f} %"))
        self.progress = Progress(*columns, TimeRemainingColumn(), console=console, transient=True)
        self.task: TaskID | None = None
        self.phase = ""
        self.line = StderrProgress()

    def __enter__(self) -> DecodingProgressBar:
        if self.is_interactive:
            self.progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.progress.stop()

    def watch(self, description: str, completed: int, total: int) -> None:
        """A new phase begins a new bar, since its pace is another."""
        phase = description.partition(":")[0]
        if not self.is_interactive:
            self.line(ProgressUpdate(phase, completed, total))
            return
        if self.task is None or phase != self.phase:
            if self.task is not None:
                self.progress.remove_task(self.task)
            self.task, self.phase = self.progress.add_task(escape(description), total=None), phase
        self.progress.update(self.task, description=escape(description), completed=completed, total=total or None)


def print_comparison(results: DecodingResults, folder: str, report_path: str) -> None:
    """Figures of every strategy, what each does beside the baseline, the laws, and where things are."""
    console = get_stdout_console()
    from headtohead.decoding_comparison.page import build_lead_paragraph, build_strategy_cards, build_title

    console.print(f"\n[bold]{escape(build_title(results))}[/]")
    console.print(escape(build_lead_paragraph(results)))
    print_table(build_metrics_table(results))
    for card in build_strategy_cards(results):
        console.print(f"  [bold]{escape(card['strategy'])}[/] against {escape(results['baseline'])}")
        for line in card["lines"]:
            colour = VERDICT_TERMINAL_COLORS.get(line["outcome"], "cyan")
            console.print(Padding(f"[{colour}]{line['outcome']}:[/] {escape(line['summary'])}", (0, 0, 0, 4)))
    held = sum(one["passed"] for one in results["laws"])
    console.print(f"limits as laws: {held} of {len(results['laws'])} hold")
    for one in results["laws"]:
        if not one["passed"]:
            console.print(Padding(f"[red]{escape(one['law'])}:[/] {escape(one['found'])}", (0, 0, 0, 4)))
    for note in results["notes"]:
        console.print(f"[yellow]{escape(note)}[/]")
    console.print(f"folder: {escape(folder)}", soft_wrap=True)
    console.print(f"report: {escape(report_path)}", soft_wrap=True)
