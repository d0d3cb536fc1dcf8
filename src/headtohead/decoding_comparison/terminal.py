"""Show a decoding comparison in the terminal: progress on stderr, results on stdout."""

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
    """A progress bar with the current phase and the remaining time.

    Prints a line at intervals if stderr is not a terminal.
    """

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

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.progress.stop()

    def watch(self, description: str, completed: int, total: int) -> None:
        """Show the progress of a phase. `description` is "phase" or "phase: detail".

        Each phase starts a new bar, because phases run at different speeds.
        """
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
    """Print estimates, verdicts against the baseline, limit checks, notes and output paths."""
    console = get_stdout_console()
    from headtohead.decoding_comparison.page import build_lead_paragraph, build_strategy_cards, build_title

    console.print(f"\n[bold]{escape(build_title(results))}[/]")
    console.print(escape(build_lead_paragraph(results)))
    print_table(build_metrics_table(results))
    for card in build_strategy_cards(results):
        console.print(f"  [bold]{escape(card['strategy'])}[/] against {escape(results['baseline'])}")
        for line in card["lines"]:
            color = VERDICT_TERMINAL_COLORS.get(line["outcome"], "cyan")
            console.print(Padding(f"[{color}]{line['outcome']}:[/] {escape(line['summary'])}", (0, 0, 0, 4)))
    num_passed = sum(check["passed"] for check in results["laws"])
    console.print(f"limits as laws: {num_passed} of {len(results['laws'])} hold")
    for check in results["laws"]:
        if not check["passed"]:
            console.print(Padding(f"[red]{escape(check['law'])}:[/] {escape(check['found'])}", (0, 0, 0, 4)))
    for note in results["notes"]:
        console.print(f"[yellow]{escape(note)}[/]")
    console.print(f"folder: {escape(folder)}", soft_wrap=True)
    console.print(f"report: {escape(report_path)}", soft_wrap=True)
