"""Print the results of a decoding comparison in the terminal."""

from __future__ import annotations

from rich.markup import escape

from headtohead.decoding_comparison.phrasing import build_report_lead, build_report_title, build_verdict_cards
from headtohead.decoding_comparison.results import DecodingResults
from headtohead.decoding_comparison.tables import build_metrics_table
from headtohead.presentation.renderers.terminal import (
    VERDICT_TERMINAL_COLORS,
    get_stdout_console,
    print_indented,
    print_table,
)


def print_decoding_comparison(results: DecodingResults, folder: str, report_path: str) -> None:
    """Print a decoding comparison in the terminal: estimates, verdicts, limit checks, notes and output paths."""
    console = get_stdout_console()
    console.print(f"\n[bold]{escape(build_report_title(results))}[/]")
    console.print(escape(build_report_lead(results)))
    print_table(build_metrics_table(results))
    for strategy, cards in build_verdict_cards(results).items():
        console.print(f"  [bold]{escape(strategy)}[/] compared with {escape(results.baseline)}")
        for card in cards:
            color = VERDICT_TERMINAL_COLORS.get(card.outcome, "cyan")
            print_indented(f"[{color}]{card.outcome}:[/] {escape(card.summary)}", 4)
    failed_checks = [check for check in results.limit_checks if not check.passed]
    num_checks = len(results.limit_checks)
    console.print(f"limit checks: {num_checks - len(failed_checks)} of {num_checks} passed")
    for check in failed_checks:
        print_indented(f"[red]{escape(check.invariant)}:[/] {escape(check.observation)}", 4)
    for note in results.notes:
        console.print(f"[yellow]{escape(note)}[/]")
    console.print(f"folder: {escape(folder)}", soft_wrap=True)
    console.print(f"report: {escape(report_path)}", soft_wrap=True)
