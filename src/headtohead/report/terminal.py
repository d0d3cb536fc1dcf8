"""What a person sees in the terminal: live progress on stderr, results on stdout, readable at 80 columns."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from headtohead.config import experiment
from headtohead.experiment import findings_view
from headtohead.presentation import number_format
from headtohead.presentation.terminal import (
    VERDICT_TERMINAL_COLORS,
    format_si_number,
    get_stdout_console,
    make_rich_table,
)
from headtohead.progress import format_duration
from headtohead.replication.terminal import print_claims


def print_plan(
    experiment: experiment.Experiment, variant_plans: Sequence[Any], num_seeds: int, num_workers: int
) -> None:
    made = make_rich_table(
        "variant",
        "parameters",
        "FLOPs/token",
        "memory",
        "steps",
        "one trial",
        title=escape(experiment.question),
    )
    for one in variant_plans:
        memory = f"{format_si_number(one.training_bytes)}B"
        made.add_row(
            escape(one.variant),
            f"{one.parameters:,}",
            format_si_number(one.flops_per_token),
            memory,
            f"{one.steps:,}",
            format_duration(one.seconds),
        )
    console = get_stdout_console()
    console.print(made)
    total = num_seeds * sum(one.seconds for one in variant_plans) / min(num_workers, num_seeds * len(variant_plans))
    trials = f"{len(variant_plans)} variants x {num_seeds} seeds = {len(variant_plans) * num_seeds} trials"
    console.print(
        f"{trials} on {num_workers} workers: about {format_duration(total)}, estimated from a few real steps."
    )


def print_recipes(recipes: Sequence[dict[str, Any]]) -> None:
    made = make_rich_table("recipe", "question")
    made.columns[1].justify = "left"
    for one in recipes:
        made.add_row(escape(one["name"]), escape(one["question"]))
    console = get_stdout_console()
    console.print(made)
    console.print("h2h run NAME trains one; h2h recipes --show NAME > mine.toml starts your own.")
    larger = ", ".join(one["name"] for one in recipes if one["full"])
    console.print(
        f"--quick shows in a minute or two what its report looks like; --full is for a larger machine ({larger})."
    )


def print_parts(rows: Sequence[dict[str, str]]) -> None:
    made = make_rich_table("slot", "part", "options")
    made.columns[1].justify = made.columns[2].justify = "left"
    last = ""
    for row in rows:
        about = (
            f"{row['options']}\n[dim]{escape(row['about'])}[/]" if row["options"] else f"[dim]{escape(row['about'])}[/]"
        )
        made.add_row(row["slot"] if row["slot"] != last else "", escape(row["part"]), about)
        last = row["slot"]
    get_stdout_console().print(made)


def print_predictions(predictions: Sequence[dict[str, Any]]) -> None:
    made = make_rich_table("text", "class", "confidence")
    for one in predictions:
        made.add_row(escape(one["text"]), escape(one["class"]), f"{one['confidence']:.1%}")
    console = get_stdout_console()
    console.print(made)
    for one in predictions:
        if one["cut"]:
            console.print(f"[yellow]cut at the model's context:[/] {escape(one['text'])}")
        if one["unknown"]:
            console.print(f"[dim]{one['unknown']} unknown words in: {escape(one['text'])}[/]")


def print_token_scores(scored_texts: Sequence[dict[str, Any]]) -> None:
    console = get_stdout_console()
    for one in scored_texts:
        made = make_rich_table("token", "loss", "probability", title=escape(one["text"]))
        for row in one["tokens"]:
            known = "" if row["known"] else " [yellow](unknown)[/]"
            made.add_row(escape(row["token"]) + known, f"{row['loss']:.3f}", f"{2.718281828459045 ** -row['loss']:.2%}")
        console.print(made)
        blocks = f", read in {one['blocks']} blocks of the model's context" if one["blocks"] > 1 else ""
        console.print(
            f"loss {one['loss']:.4f}, perplexity {one['perplexity']:,.2f}, {len(one['tokens'])} tokens{blocks}\n"
        )


def print_device_report(device_report: dict[str, Any]) -> None:
    made = make_rich_table("what", "found")
    made.columns[1].justify = "left"
    for finding in device_report["findings"]:
        advice = f"\n[yellow]{escape(finding['advice'])}[/]" if finding["advice"] else ""
        made.add_row(escape(finding["name"]), escape(str(finding["found"])) + advice)
    get_stdout_console().print(made)


def print_conformance_results(check_results: Sequence[Any]) -> None:
    table = make_rich_table("part", "model", "check", "result")
    for column in table.columns[1:]:
        column.justify = "left"
    for result in check_results:
        status = "[green]passed[/]" if result.passed else f"[red]failed[/] {escape(result.observation)}"
        table.add_row(escape(result.part), escape(result.setup), escape(result.name), status)
    console = get_stdout_console()
    console.print(table)
    num_failed = sum(not result.passed for result in check_results)
    console.print(f"{len(check_results) - num_failed} checks passed, {num_failed} failed")


def print_outcome(outcome: Any, report_path: str | None) -> None:
    """Verdicts in words, the result table, what went wrong, and where things are."""
    console = get_stdout_console()
    found = outcome.findings
    if found is not None:
        console.print()
        console.print(f"[bold]{escape(outcome.runs.experiment.question)}[/]")
        if found.get("distilled"):
            console.print("by perplexity of people’s summaries, on which only the baseline was trained:")
        print_verdicts(found["verdicts"])
        console.print(build_result_table(found))
        metric = found["metric"]
        console.print(f"[dim]{metric} with the chosen weights: mean over seeds ± standard deviation of one seed[/]")
        for one in found.get("comparisons") or []:
            console.print(f"[bold]{escape(one['title'])}[/] (against {escape(one['baseline'])})")
            print_verdicts(one["verdicts"])
        print_claims(found.get("claims") or [])
        print_audit_summary(found)
        if outcome.runs.experiment.quick:
            console.print("[yellow]a quick look: fewer seeds and steps than the file asks for, so no answer[/]")
    for job in outcome.failed_jobs:
        console.print(f"[red]{job.state}[/]: {escape(job.trial.variant)}, seed {job.trial.seed}: {escape(job.message)}")
    console.print(f"runs:   {escape(str(outcome.runs.folder))}", soft_wrap=True)
    if report_path:
        console.print(f"report: {escape(report_path)}", soft_wrap=True)


def print_verdicts(verdicts: Sequence[dict[str, Any]]) -> None:
    console = get_stdout_console()
    for row in verdicts:
        colour = VERDICT_TERMINAL_COLORS.get(row["word"], "cyan")
        console.print(f"  [bold {colour}]{escape(row['variant'])}: {row['word']}[/]")
        console.print(Padding(escape(row["sentence"]), (0, 0, 0, 4)))


def print_audit_summary(findings: dict[str, Any]) -> None:
    """What did not pass, in words; the rest is in the report."""
    console = get_stdout_console()
    places = [("data", findings["data_audits"]), *findings["audits"].items()]
    failed = [(name, row) for name, rows in places for row in rows if row["passed"] is False]
    passed = sum(row["passed"] is True for _, rows in places for row in rows)
    console.print(f"audits: {passed} passed, {len(failed)} warnings")
    for name, row in failed:
        console.print(
            Padding(f"[yellow]{escape(name)}, {escape(row['name'])}:[/] {escape(row['observation'])}", (0, 0, 0, 4))
        )


def build_result_table(findings: dict[str, Any]) -> Table:
    """Variants and splits, whichever way round needs fewer columns; below or beside them the words not known."""
    results = findings["results"]
    splits, variants = list(next(iter(results.values()))), list(results)
    cells = {
        (variant, split): _format_mean_and_std(
            [value for _, value in results[variant].get(split, [])], findings["metric"]
        )
        for variant in variants
        for split in splits
    }
    if unknown := findings_view.get_unknown_token_rates(findings):
        variants.append("unknown words")
        cells |= {("unknown words", split): number_format.format_percentage(unknown.get(split)) for split in splits}
    across, down = (splits, variants) if len(splits) <= len(variants) else (variants, splits)
    made = make_rich_table("", *map(escape, across))
    made.columns[0].no_wrap = True
    for name in down:
        made.add_row(escape(name), *(cells.get((name, other)) or cells[other, name] for other in across))
    return made


def _format_mean_and_std(values: Sequence[float], metric: str) -> str:
    if not values:
        return "none"
    scale, digits, unit = (100, 1, "%") if metric == "accuracy" else (1, 1, "")
    mean = f"{scale * statistics.fmean(values):.{digits}f}{unit}"
    return mean + (f"±{scale * statistics.stdev(values):.{digits}f}" if len(values) > 1 else "")


def outcome_to_json(outcome: Any, report_path: str | None) -> dict[str, Any]:
    """One object: the experiment, a row for each variant, and where the report is."""
    found = outcome.findings
    return {
        "experiment": outcome.runs.experiment.name,
        "question": outcome.runs.experiment.question,
        "variants": [_make_variant_row(row, found) for row in found["verdicts"]] if found else [],
        "results": found["results"] if found else {},
        "search": found.get("search") if found else None,
        "failures": [
            {"variant": job.trial.variant, "seed": job.trial.seed, "state": job.state, "message": job.message}
            for job in outcome.failed_jobs
        ],
        "runs": str(outcome.runs.folder),
        "report": report_path,
    }


def _make_variant_row(verdict: dict[str, Any], findings: dict[str, Any]) -> dict[str, Any]:
    renamed = {"variant": "name", "word": "verdict", "effect": "difference"}
    audits = [
        {k: audit[k] for k in ("name", "passed", "observation")}
        for audit in findings["audits"].get(verdict["variant"], [])
    ]
    return {**{renamed.get(k, k): v for k, v in verdict.items()}, "audits": audits}


def print_audits(audits: Sequence[dict[str, Any]]) -> None:
    """Print the procedure, observation and interpretation of each audit."""
    console = get_stdout_console()
    marks = {True: "[green]passed[/]", False: "[red]failed[/]", None: "[dim]does not apply[/]"}
    for row in sorted(audits, key=lambda row: (row["passed"] is not False, row["passed"] is None)):
        console.print(f"[bold]{escape(row['name'])}[/]: {marks[row['passed']]}")
        for words in (
            row["procedure"],
            row["observation"],
            *([row["interpretation"]] if row["passed"] is not None else []),
        ):
            console.print(Padding(escape(words), (0, 0, 0, 4)))


def print_verification_checks(checks: Sequence[Any]) -> None:
    made = make_rich_table("where", "what", "found")
    made.columns[1].justify = made.columns[2].justify = "left"
    for one in checks:
        colour = "green" if one.passed else "red"
        made.add_row(escape(one.place), escape(one.what), f"[{colour}]{escape(one.found)}[/]")
    console = get_stdout_console()
    console.print(made)
    failed = sum(not one.passed for one in checks)
    console.print(f"{len(checks) - failed} checks passed, {failed} failed")
