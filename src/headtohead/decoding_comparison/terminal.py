"""Show a decoding comparison in the terminal: progress on stderr, results on stdout."""

from __future__ import annotations

from types import TracebackType

from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from headtohead.decoding_comparison.page import build_lead_paragraph, build_title, build_verdicts
from headtohead.decoding_comparison.results import DecodingResults
from headtohead.decoding_comparison.tables import build_metrics_table
from headtohead.presentation.terminal import (
    VERDICT_TERMINAL_COLORS,
    get_stderr_console,
    get_stdout_console,
    print_indented,
    print_table,
)
from headtohead.progress import ProgressUpdate, StderrProgress


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
    console.print(f"\n[bold]{escape(build_title(results))}[/]")
    console.print(escape(build_lead_paragraph(results)))
    print_table(build_metrics_table(results))
    for strategy, cards in build_verdicts(results).items():
        console.print(f"  [bold]{escape(strategy)}[/] compared with {escape(results.baseline)}")
        for card in cards:
            color = VERDICT_TERMINAL_COLORS.get(card.outcome, "cyan")
            print_indented(f"[{color}]{card.outcome}:[/] {escape(card.summary)}", 4)
    failed = [check for check in results.limit_checks if not check.passed]
    num_checks = len(results.limit_checks)
    console.print(f"limit checks: {num_checks - len(failed)} of {num_checks} passed")
    for check in failed:
        print_indented(f"[red]{escape(check.invariant)}:[/] {escape(check.observation)}", 4)
    for note in results.notes:
        console.print(f"[yellow]{escape(note)}[/]")
    console.print(f"folder: {escape(folder)}", soft_wrap=True)
    console.print(f"report: {escape(report_path)}", soft_wrap=True)
