"""Print command results on stdout, readable at 80 columns."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

from rich.markup import escape

from headtohead.audit.result import CheckResult
from headtohead.config.experiment import Experiment
from headtohead.config.recipe_catalog import RecipeSummary
from headtohead.experiment import findings_view
from headtohead.experiment.schemas import ClassPrediction, Findings, TextScore
from headtohead.presentation import number_format
from headtohead.presentation.renderers.terminal import (
    VERDICT_TERMINAL_COLORS,
    get_stdout_console,
    print_indented,
    print_table,
)
from headtohead.presentation.table import Table, make_numeric_columns, make_table, make_text_columns
from headtohead.progress import format_duration
from headtohead.replication.terminal import print_claims
from headtohead.verdict.record import Verdict

AUDIT_MARKS = {True: "[green]passed[/]", False: "[red]failed[/]", None: "[dim]does not apply[/]"}


def print_plan(experiment: Experiment, plan: Any) -> None:
    """Print the size and estimated cost of each variant and of the whole experiment."""
    columns = make_text_columns("variant")
    columns += make_numeric_columns("parameters", "FLOPs/token", "memory", "steps", "one trial")
    rows = [
        [
            variant.variant,
            number_format.format_count(variant.parameters),
            number_format.format_si_number(variant.flops_per_token),
            number_format.format_bytes(variant.training_bytes),
            number_format.format_count(variant.steps),
            format_duration(variant.seconds),
        ]
        for variant in plan.plan
    ]
    print_table(make_table("plan", experiment.question, "", columns, rows))
    before = plan.preparation_seconds
    preparation = f", of which {format_duration(before)} precede the trials" if before else ""
    get_stdout_console().print(
        f"{len(rows)} variants x {experiment.max_seeds} seeds = {plan.trials} trials on {plan.workers} workers: about "
        f"{format_duration(plan.seconds)}{preparation}, estimated from a few real steps. Memory of all workers: "
        f"{number_format.format_bytes(plan.memory_bytes)}."
    )
    _print_detectable_effects(experiment.primary.metric, plan.detectable)


def _print_detectable_effects(metric: str, detectable: Sequence[Any]) -> None:
    """Print the smallest effect that each number of seeds can detect."""
    if not detectable:
        return
    columns = make_text_columns("variant")
    columns += make_numeric_columns(*(f"{seeds} seeds" for seeds in detectable[0].effects))
    rows = [
        [
            row.variant,
            *(
                number_format.format_margin(metric, float(f"{effect:.2g}")) if effect < 1 else "too few seeds"
                for effect in row.effects.values()
            ),
        ]
        for row in detectable
    ]
    print_table(make_table("detectable", "Effects that are detected with a probability of 80 %", "", columns, rows))
    documents = detectable[0].documents
    scope = f"for new text, with {documents} test documents" if documents > 1 else "on this test set, not for new text"
    get_stdout_console().print(f"Noise: {detectable[0].noise_source}. The effects hold {scope}.")


def print_recipes(recipes: Sequence[RecipeSummary]) -> None:
    """Print the recipes grouped by question, with what they vary, their corpus and their duration."""
    for topic, group in itertools.groupby(recipes, key=lambda recipe: recipe.topic):
        rows = [
            (f"{recipe.name}\n{max(1, round(recipe.seconds / 60))} min, {recipe.corpus}", recipe.varies)
            for recipe in group
        ]
        _print_text_table(("recipe, duration, corpus", "what is varied"), rows, topic)
    full_recipes = ", ".join(recipe.name for recipe in recipes if recipe.full)
    console = get_stdout_console()
    console.print(
        "h2h run NAME trains a recipe; --data trains it on your own text. h2h recipes --show NAME > mine.toml copies "
        "it to start your own. Durations are for the cores of this machine at the speed of a small server; h2h plan "
        "NAME measures them here."
    )
    console.print(
        f"--quick takes a look in two minutes, without verdicts; --full is for a larger machine ({full_recipes})."
    )


def print_parts(parts: Sequence[dict[str, str]]) -> None:
    """Print each part's options and description, grouped by slot."""
    rows, last_slot = [], ""
    for part in parts:
        description = "\n".join(line for line in (part["options"], part["about"]) if line)
        rows.append((part["slot"] if part["slot"] != last_slot else "", part["part"], description))
        last_slot = part["slot"]
    _print_text_table(("slot", "part", "options and description"), rows)


def _print_text_table(titles: Sequence[str], rows: Iterable[Sequence[Any]], title: str = "") -> None:
    print_table(make_table("", title, "", make_text_columns(*titles), rows))


def print_predictions(predictions: Sequence[ClassPrediction]) -> None:
    """Print each text's predicted class and confidence."""
    columns = make_text_columns("text", "class") + make_numeric_columns("confidence")
    rows = [(row.text, row.label, number_format.format_percentage(row.confidence)) for row in predictions]
    print_table(make_table("predictions", "", "", columns, rows))
    console = get_stdout_console()
    for prediction in predictions:
        if prediction.truncated:
            console.print(f"[yellow]truncated at the model's context length:[/] {escape(prediction.text)}")
        if prediction.unknown_tokens:
            console.print(f"[dim]{prediction.unknown_tokens} unknown words in: {escape(prediction.text)}[/]")


def print_token_scores(scored_texts: Sequence[TextScore]) -> None:
    """Print every token's loss and probability, then each text's totals."""
    columns = make_text_columns("token") + make_numeric_columns("loss", "probability")
    for scored_text in scored_texts:
        rows = []
        for token in scored_text.tokens:
            name = token.token if token.known else f"{token.token} (unknown)"
            rows.append((name, number_format.format_fixed(token.loss, 3), f"{math.exp(-token.loss):.2%}"))
        print_table(make_table("tokens", scored_text.text, "", columns, rows))
        blocks = f", in {scored_text.blocks} blocks of the model's context length" if scored_text.blocks > 1 else ""
        totals = (
            f"loss {scored_text.loss:.4f}, perplexity {scored_text.perplexity:,.2f}, {len(scored_text.tokens)} tokens"
        )
        get_stdout_console().print(f"{totals}{blocks}\n")


def print_device_report(device_report: dict[str, Any]) -> None:
    """Print the result of each device check."""
    rows = [
        (check["name"], "\n".join(str(line) for line in (check["value"], check["advice"]) if line))
        for check in device_report["checks"]
    ]
    _print_text_table(("check", "result"), rows)


def print_conformance_results(check_results: Sequence[Any], *, verbose: bool = False) -> None:
    """Print one row per part, and each distinct failure once; with `verbose`, print one row per check instead."""
    if verbose:
        rows = [
            (result.part, result.setup, result.name, "passed" if result.passed else "failed", result.observation)
            for result in check_results
        ]
        _print_text_table(("part", "model", "check", "result", "detail"), rows)
    else:
        results_by_part: dict[str, list[Any]] = {}
        for result in check_results:
            results_by_part.setdefault(result.part, []).append(result)
        for part, results in results_by_part.items():
            failed = [result for result in results if not result.passed]
            outcome = f"{len(failed)} of {len(results)} checks failed" if failed else f"{len(results)} checks passed"
            get_stdout_console().print(f"{part}: {outcome}", markup=False, highlight=False, soft_wrap=True)
            for observation in dict.fromkeys(result.observation for result in failed):
                checks = dict.fromkeys(
                    f"{result.name} ({result.setup})" for result in failed if result.observation == observation
                )
                console_text = f"  {', '.join(checks)}\n    {observation}"
                get_stdout_console().print(console_text, markup=False, highlight=False, soft_wrap=True)
    _print_check_counts(check_results)


def print_verification_checks(checks: Sequence[Any]) -> None:
    """Print the result of each verification check."""
    rows = [
        (check.location, check.description, "passed" if check.passed else "failed", check.observation)
        for check in checks
    ]
    _print_text_table(("file", "check", "result", "detail"), rows)
    _print_check_counts(checks)


def build_verification_table(verifications: Sequence[Any]) -> Table:
    """Return a table with one row per verified folder."""
    rows = [
        (row.folder, "failed" if row.num_failed else "passed", str(len(row.checks)), row.first_problem)
        for row in verifications
    ]
    return make_table("verification", "", "", make_text_columns("folder", "result", "checks", "problem"), rows)


def _print_check_counts(checks: Sequence[Any]) -> None:
    """Print how many checks passed and failed."""
    num_failed = sum(not check.passed for check in checks)
    get_stdout_console().print(f"{len(checks) - num_failed} checks passed, {num_failed} failed")


def print_batch(batch: Any) -> None:
    """Print a batch's tensors and one decoded example to the terminal."""
    rows = [(tensor.name, tensor.dtype, " x ".join(map(str, tensor.shape)), tensor.meaning) for tensor in batch.tensors]
    title = f"First batch (task {batch.task}, seed {batch.seed})"
    _print_text_table(("tensor", "dtype", "shape", "meaning"), rows, title)
    for note in batch.notes:
        print_indented(escape(note))
    for heading, text in (("tokens", " ".join(batch.tokens)), ("text", batch.text), ("target", batch.answer)):
        get_stdout_console().print(f"[bold]{heading}[/]")
        print_indented(escape(text))


def print_outcome(outcome: Any, report_path: str | None) -> None:
    """Print verdicts, scores, audits, failed trials, and the paths of the runs and the report."""
    console = get_stdout_console()
    if outcome.findings is not None:
        _print_findings(outcome.findings, outcome.runs.experiment)
    for job in outcome.failed_jobs:
        console.print(f"[red]{job.state}[/]: {escape(job.trial.variant)}, seed {job.trial.seed}: {escape(job.message)}")
    console.print(f"runs:   {escape(str(outcome.runs.folder))}", soft_wrap=True)
    if report_path:
        console.print(f"report: {escape(report_path)}", soft_wrap=True)


def _print_findings(findings: Findings, experiment: Experiment) -> None:
    """Print the question, warnings, verdicts, scores, claims and a summary of the audits."""
    from headtohead.report.sections.scores import build_scores_table  # imports altair, which is slow

    console = get_stdout_console()
    console.print(f"\n[bold]{escape(experiment.question)}[/]")
    if findings.summarization:
        console.print("by perplexity of the human-written summaries, on which only the baseline was trained:")
    for warning in findings.warnings:
        print_indented(f"[yellow]{warning.kind}:[/] {escape(f'{warning.message} {warning.advice}')}")
    print_verdicts(findings.verdicts)
    print_table(build_scores_table(findings))
    for comparison in findings.comparisons:
        console.print(f"[bold]{escape(comparison.title)}[/] (baseline: {escape(comparison.baseline)})")
        print_verdicts(comparison.verdicts)
    print_claims(findings.claims)
    print_audit_summary(findings)
    if experiment.quick:
        console.print(f"[yellow]Quick look, not judged:[/] {escape('; '.join(experiment.left_out))}.")


def print_versus(findings: Findings, report_path: str) -> None:
    """Print a command comparison: its verdicts, scores, failures, and what can be observed from outside."""
    from headtohead.report.context import ReportContext
    from headtohead.report.sections.scores import build_scores_table  # imports altair, which is slow
    from headtohead.report.sections.versus import build_noise_table, build_observations_table

    console, context = get_stdout_console(), ReportContext(findings)
    console.print(f"\n[bold]{escape(findings_view.get_question(findings))}[/]")
    print_verdicts(findings.verdicts)
    print_table(build_scores_table(findings))
    if findings.versus is not None and findings.versus.noise is not None:
        print_table(build_noise_table(context))
    print_table(build_observations_table(context))
    for failure in findings.failures:
        console.print(f"[red]no result[/]: {escape(failure.variant)}, seed {failure.seed}: {escape(failure.message)}")
    console.print(f"report: {escape(report_path)}", soft_wrap=True)


def print_verdicts(verdicts: Sequence[Verdict]) -> None:
    """Print each verdict's outcome and summary."""
    for verdict in verdicts:
        color = VERDICT_TERMINAL_COLORS.get(verdict.outcome, "cyan")
        print_indented(f"[bold {color}]{escape(verdict.variant)}: {verdict.outcome}[/]")
        print_indented(escape(verdict.summary), 4)


def print_audit_summary(findings: Findings) -> None:
    """Print how many audits passed, details of those that withhold a verdict, and the names of other failures."""
    from headtohead.report.sections.audits import count_statuses, get_audit_status  # imports altair, which is slow

    audits = [("data", audit) for audit in findings.data_audits]
    audits += [(f"data of {name}", audit) for name, checks in findings.variant_data_audits.items() for audit in checks]
    audits += [(name, audit) for name, variant_audits in findings.audits.items() for audit in variant_audits]
    get_stdout_console().print(f"audits: {count_statuses(audit for _, audit in audits)}")
    for name, audit in audits:
        if get_audit_status(audit) == "failed":
            print_indented(f"[yellow]{escape(name)}, {escape(audit.name)}:[/] {escape(audit.observation)}", 4)
    if notes := dict.fromkeys(audit.name for _, audit in audits if get_audit_status(audit) == "note"):
        print_indented(f"notes, which change no verdict (details in the report): {escape(', '.join(notes))}", 4)


def print_audits(audits: Sequence[CheckResult]) -> None:
    """Print every audit's procedure, observation and interpretation, failed ones first."""
    for audit in sorted(audits, key=lambda audit: (audit.passed is not False, audit.passed is None)):
        get_stdout_console().print(f"[bold]{escape(audit.name)}[/]: {AUDIT_MARKS[audit.passed]}")
        texts = [audit.procedure, audit.observation]
        for text in texts if audit.passed is None else [*texts, audit.interpretation]:
            print_indented(escape(text), 4)


def outcome_to_json(outcome: Any, report_path: str | None) -> dict[str, Any]:
    """Return the experiment, variants, scores, failures and paths as JSON values."""
    findings = outcome.findings
    return {
        "experiment": outcome.runs.experiment.name,
        "question": outcome.runs.experiment.question,
        "warnings": [warning.to_json() for warning in findings.warnings] if findings else [],
        "variants": [_make_variant_row(verdict, findings) for verdict in findings.verdicts] if findings else [],
        "quick": outcome.runs.experiment.quick,
        "left_out": list(outcome.runs.experiment.left_out),
        "data_audits": [audit.to_dict() for audit in findings.data_audits] if findings else [],
        "variant_data_audits": {
            name: [audit.to_dict() for audit in checks] for name, checks in findings.variant_data_audits.items()
        }
        if findings
        else {},
        "scores": findings.scores if findings else {},
        "search": findings.search.to_json() if findings and findings.search else None,
        "failures": [
            {"variant": job.trial.variant, "seed": job.trial.seed, "state": job.state, "message": job.message}
            for job in outcome.failed_jobs
        ],
        "runs": str(outcome.runs.folder),
        "report": report_path,
    }


def _make_variant_row(verdict: Verdict, findings: Findings) -> dict[str, Any]:
    """Return a verdict and its audits, keyed as in the JSON output."""
    json_keys = {"variant": "name", "outcome": "verdict", "effect": "difference"}
    audits = [
        {"name": audit.name, "passed": audit.passed, "observation": audit.observation}
        for audit in findings.audits.get(verdict.variant, [])
    ]
    return {**{json_keys.get(key, key): value for key, value in verdict.to_dict().items()}, "audits": audits}
