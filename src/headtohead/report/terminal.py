"""Print the findings of an experiment or of a comparison of training scripts on stdout, readable at 80 columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.markup import escape

from headtohead.config.experiment import Experiment
from headtohead.experiment import findings_view
from headtohead.experiment.schemas import FailureRecord, Findings, ResultWarning
from headtohead.presentation.command_line import build_command_with_more_seeds, wrap_command
from headtohead.presentation.renderers.terminal import (
    VERDICT_TERMINAL_COLORS,
    get_stdout_console,
    print_indented,
    print_table,
)
from headtohead.replication.terminal import print_claims
from headtohead.report.sweep_sentences import describe_sweep
from headtohead.search.phrasing import describe_tuning
from headtohead.verdict.record import Verdict


def print_experiment_outcome(outcome: Any, report_path: str | None, command: Sequence[str] = ()) -> None:
    """Print in the terminal the findings of an experiment, its failed trials, and the paths of runs and report."""
    console = get_stdout_console()
    if outcome.findings is not None:
        _print_experiment_findings(outcome.findings, outcome.runs.experiment, command)
    for job in outcome.failed_jobs:
        console.print(f"[red]{job.state}[/]: {escape(job.trial.variant)}, seed {job.trial.seed}: {escape(job.message)}")
    console.print(f"runs:   {escape(str(outcome.runs.folder))}", soft_wrap=True)
    if report_path:
        console.print(f"report: {escape(report_path)}", soft_wrap=True)


def _print_experiment_findings(findings: Findings, experiment: Experiment, command: Sequence[str]) -> None:
    """Print in the terminal the question, warnings, verdicts, scores, claims and a summary of the audits."""
    from headtohead.report.sections.scores import build_scores_table  # imports altair, which is slow

    console = get_stdout_console()
    console.print(f"\n[bold]{escape(experiment.question)}[/]")
    if findings.summarization:
        console.print("by perplexity of the human-written summaries, on which only the baseline was trained:")
    print_warnings(findings.warnings)
    if findings.sweep is not None:
        _print_sweep_findings(findings)
        return
    print_verdicts(findings.verdicts)
    _print_command_with_more_seeds(findings.verdicts, command)
    for sentence in describe_tuning(findings.tuning, findings_view.get_metric(findings)) if findings.tuning else ():
        print_indented(escape(sentence))
    print_table(build_scores_table(findings))
    for comparison in findings.comparisons:
        console.print(f"[bold]{escape(comparison.title)}[/] (baseline: {escape(comparison.baseline)})")
        print_verdicts(comparison.verdicts)
    print_claims(findings.claims)
    print_audit_summary(findings)
    if experiment.quick:
        console.print(f"[yellow]Quick look, not judged:[/] {escape('; '.join(experiment.left_out))}.")


def _print_sweep_findings(findings: Findings) -> None:
    """Print in the terminal the summary of a sweep for each variant, and the verdicts of its cells."""
    from headtohead.report.sections.sweep import build_sweep_cells_table  # imports altair, which is slow

    assert findings.sweep is not None
    console = get_stdout_console()
    for variant, sentences in describe_sweep(findings.sweep, findings_view.get_metric(findings)).items():
        console.print(f"[bold]{escape(variant)}[/]")
        for sentence in sentences:
            print_indented(escape(sentence))
    print_table(build_sweep_cells_table(findings))
    for cell in findings.sweep.cells:
        if cell.message:
            console.print(f"[yellow]no result[/]: {escape(cell.name)}: {escape(cell.message)}")


def print_script_comparison(findings: Findings, report_path: str, command: Sequence[str]) -> None:
    """Print in the terminal the findings of a comparison of training scripts: verdicts, scores, noise, failures."""
    from headtohead.report.context import ReportContext
    from headtohead.report.sections.scores import build_scores_table  # imports altair, which is slow
    from headtohead.report.sections.training_scripts import build_script_fairness_table, build_script_noise_table

    console, context = get_stdout_console(), ReportContext(findings)
    console.print(f"\n[bold]{escape(findings_view.get_question(findings))}[/]")
    print_warnings(findings.warnings)
    print_verdicts(findings.verdicts)
    _print_command_with_more_seeds(findings.verdicts, command)
    print_table(build_scores_table(findings))
    if findings.versus is not None and findings.versus.noise is not None:
        print_table(build_script_noise_table(context))
    if findings.versus is not None and findings.versus.observations:
        print_table(build_script_fairness_table(context))
    _print_script_failures(findings.failures)
    if not findings.verdicts:
        console.print("no verdict: no run of the baseline has a result")
    console.print(f"report: {escape(report_path)}", soft_wrap=True)


def _print_script_failures(failures: Sequence[FailureRecord]) -> None:
    """Print in the terminal the first failure of each training script, and the seeds of its other ones."""
    failures_by_variant: dict[str, list[FailureRecord]] = {}
    for failure in failures:
        failures_by_variant.setdefault(failure.variant, []).append(failure)
    for variant, (first, *other_failures) in failures_by_variant.items():
        other_seeds = (
            f" (also seed {', '.join(str(failure.seed) for failure in other_failures)})" if other_failures else ""
        )
        get_stdout_console().print(
            f"[red]no result[/]: {escape(variant)}, seed {first.seed}{other_seeds}: {escape(first.message)}"
        )


def print_warnings(warnings: Sequence[ResultWarning]) -> None:
    """Print each warning's kind, message and advice."""
    for warning in warnings:
        print_indented(f"[yellow]{warning.kind}:[/] {escape(f'{warning.message} {warning.advice}')}")


def print_verdicts(verdicts: Sequence[Verdict]) -> None:
    """Print each verdict's outcome and summary in the terminal."""
    for verdict in verdicts:
        color = VERDICT_TERMINAL_COLORS.get(verdict.outcome, "cyan")
        print_indented(f"[bold {color}]{escape(verdict.variant)}: {verdict.outcome}[/]")
        print_indented(escape(verdict.summary), 4)


def _print_command_with_more_seeds(verdicts: Sequence[Verdict], command: Sequence[str]) -> None:
    """Print the command that adds the seeds which would settle open verdicts, if there are any."""
    if command_with_more_seeds := build_command_with_more_seeds(verdicts, command):
        lines = wrap_command(command_with_more_seeds, get_stdout_console().width - len("  add seeds: "))
        get_stdout_console().print(f"  add seeds: {escape(lines)}", highlight=False, soft_wrap=True)


def print_audit_summary(findings: Findings) -> None:
    """Print in the terminal how many audits passed, and details of those that withhold a verdict.

    Audits of the data and of the models are counted separately, as in the report.
    """
    from headtohead.report.sections import audits  # imports altair, which is slow

    named_audits = []
    for subject, groups in (("data", audits.group_data_audits(findings)), ("models", findings.audits)):
        subject_audits = [(name, audit) for name, group in groups.items() for audit in group]
        if subject_audits:
            counts = audits.format_audit_counts(audit for _, audit in subject_audits)
            get_stdout_console().print(f"audits of the {subject}: {counts}")
        named_audits += subject_audits
    for name, audit in named_audits:
        if audits.get_audit_status_label(audit) == "failed":
            print_indented(f"[yellow]{escape(name)}, {escape(audit.name)}:[/] {escape(audit.observation)}", 4)
    notes = [audit.name for _, audit in named_audits if audits.get_audit_status_label(audit) == "note"]
    if notes:
        note_list = escape(", ".join(dict.fromkeys(notes)))
        print_indented(f"notes, which change no verdict (details in the report): {note_list}", 4)
