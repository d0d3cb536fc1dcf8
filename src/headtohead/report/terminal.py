"""What a person sees in the terminal: live progress on stderr, results on stdout, readable at 80 columns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from rich import box
from rich.console import Console, Group
from rich.live import Live as RichLive
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from headtohead.config import experiment
from headtohead.presentation import number_format
from headtohead.progress import ProgressUpdate, StderrProgress, format_duration
from headtohead.report import findings_view

REFRESHES_PER_SECOND = 4


def get_stdout_console() -> Console:
    return Console(highlight=False)


def get_stderr_console() -> Console:
    return Console(stderr=True, highlight=False)


def make_rich_table(*columns: str, title: str | None = None) -> Table:
    """A plain table: the first column is names, the others are figures."""
    made = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold", pad_edge=False)
    for index, column in enumerate(columns):
        made.add_column(column, justify="left" if index == 0 else "right", overflow="fold")
    return made


def format_si_number(number: float) -> str:
    """1.00 M, 863 k."""
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.0f}"


class TrialProgressDisplay:
    """A table that grows while trials run: variants down, seeds across, and below it the rate and the time left."""

    MAX_SEED_COLUMNS = 8

    def __init__(self, experiment: experiment.Experiment) -> None:
        self.experiment = experiment
        self.began = time.monotonic()
        console = get_stderr_console()
        self.is_interactive = console.is_terminal
        self.rich_live = RichLive(console=console, refresh_per_second=REFRESHES_PER_SECOND, transient=True)
        self.line = StderrProgress()
        self.last_line_time = self.began

    def __enter__(self) -> TrialProgressDisplay:
        if self.is_interactive:
            self.rich_live.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        self.rich_live.stop()

    def watch(self, jobs: Sequence[Any]) -> None:
        if self.is_interactive:
            self.rich_live.update(self.shown(jobs))
        elif time.monotonic() - self.last_line_time >= StderrProgress.ELSEWHERE:
            self.last_line_time = time.monotonic()
            self.say(" · ".join(self.progress(jobs)))

    def say(self, text: str) -> None:
        """A line that stays, above the table."""
        self.rich_live.console.print(escape(text), soft_wrap=not self.is_interactive)

    def tell(self, progress: ProgressUpdate) -> None:
        """Work that is done before any trial begins."""
        self.rich_live.update(escape(str(progress))) if self.is_interactive else self.line(progress)

    def shown(self, jobs: Sequence[Any]) -> Group:
        """The question, the table, and how far it is."""
        lines = [f"[dim]{escape(line)}[/]" for line in self.progress(jobs)]
        return Group(f"[bold]{escape(self.experiment.question)}[/]", self.table(jobs), *lines)

    def table(self, jobs: Sequence[Any]) -> Table:
        seeds = sorted({job.trial.seed for job in jobs})[-self.MAX_SEED_COLUMNS :]
        made = make_rich_table("", *(f"seed {seed}" for seed in seeds))
        by_place = {(job.trial.variant, job.trial.seed): job for job in jobs}
        for name in self.experiment.names:
            made.add_row(escape(name), *(format_job_cell(by_place.get((name, seed))) for seed in seeds))
        return made

    def progress(self, jobs: Sequence[Any]) -> list[str]:
        """How far it is and how long it will take; then what went wrong."""
        running = [job for job in jobs if job.state == "running"]
        over = sum(job.is_over for job in jobs)
        rate = sum(job.rate for job in running)
        words = [f"{over} of {len(jobs)} trials done"]
        if over < len(jobs):
            left = estimate_time_left(jobs)
            words.append(f"{rate:.1f} steps/s")
            words.append(f"about {format_duration(left)} left" if left is not None else "time left: measuring")
        failed = [job for job in jobs if job.state in ("failed", "lost")]
        return [" · ".join(words), *(f"{job.trial.variant}/{job.trial.seed}: {job.message}" for job in failed)]


def estimate_time_left(jobs: Sequence[Any]) -> float | None:
    """From the steps still to do and the rate of those that run; one that is starting or scoring will be as fast."""
    running = [job for job in jobs if job.state == "running"]
    rates = [job.rate for job in running if job.rate > 0]
    if not rates:
        return None
    per_trial = max(job.steps for job in running)
    to_do = sum((job.steps or per_trial) - job.step for job in running)
    to_do += per_trial * sum(job.state == "waiting" for job in jobs)
    return float(to_do / (statistics.fmean(rates) * len(running)))


def format_job_cell(job: Any) -> str:
    if job is None:
        return ""
    if job.state == "running":
        share = f"{100 * job.step / job.steps:3.0f} %" if job.steps else "starts"
        return f"[cyan]{share}[/]" + (f" {job.loss:.2f}" if job.loss is not None else "")
    if job.state == "finished":
        return f"[green]done[/] {job.ended - job.began:.0f} s"
    return {
        "waiting": "[dim]waits[/]",
        "kept": "[green]done[/]",
        "failed": "[red]failed[/]",
        "lost": "[red]lost[/]",
    }[job.state]


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
    made = make_rich_table("part", "in", "check", "found")
    for column in made.columns[1:]:
        column.justify = "left"
    for one in check_results:
        word = "[green]passed[/]" if one.passed else f"[red]failed[/] {escape(one.found)}"
        made.add_row(escape(one.part), escape(one.setting), escape(one.check), word)
    console = get_stdout_console()
    console.print(made)
    failed = sum(not one.passed for one in check_results)
    console.print(f"{len(check_results) - failed} checks passed, {failed} failed")


VERDICT_TERMINAL_COLORS = {"helped": "green", "hurt": "red", "not comparable": "magenta", "cannot tell": "yellow"}


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


def print_claims(claims: Sequence[dict[str, Any]]) -> None:
    """What others concluded, and what is to be said about it."""
    console = get_stdout_console()
    for one in claims:
        said = escape(f"report {one['source']} says that {one['says']}:") + f" [bold]{one['answer']}[/]"
        console.print(Padding(said, (0, 0, 0, 2)))


def print_audit_summary(findings: dict[str, Any]) -> None:
    """What did not pass, in words; the rest is in the report."""
    console = get_stdout_console()
    places = [("data", findings["data_audits"]), *findings["audits"].items()]
    failed = [(name, row) for name, rows in places for row in rows if row["passed"] is False]
    passed = sum(row["passed"] is True for _, rows in places for row in rows)
    console.print(f"audits: {passed} passed, {len(failed)} found something")
    for name, row in failed:
        console.print(
            Padding(f"[yellow]{escape(name)}, {escape(row['name'])}:[/] {escape(row['found'])}", (0, 0, 0, 4))
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
        {k: audit[k] for k in ("name", "passed", "found")} for audit in findings["audits"].get(verdict["variant"], [])
    ]
    return {**{renamed.get(k, k): v for k, v in verdict.items()}, "audits": audits}


def print_audits(audits: Sequence[dict[str, Any]]) -> None:
    """Each audit: what was tried, what was found, what it means."""
    console = get_stdout_console()
    marks = {True: "[green]passed[/]", False: "[red]failed[/]", None: "[dim]does not apply[/]"}
    for row in sorted(audits, key=lambda row: (row["passed"] is not False, row["passed"] is None)):
        console.print(f"[bold]{escape(row['name'])}[/]: {marks[row['passed']]}")
        for words in (row["tried"], row["found"], *([row["meaning"]] if row["passed"] is not None else [])):
            console.print(Padding(escape(words), (0, 0, 0, 4)))


class StatusLine:
    """One line on stderr that says what is being done; nothing when stderr is not a terminal."""

    def __init__(self) -> None:
        self.console = get_stderr_console()
        self.status = self.console.status("")

    def __enter__(self) -> StatusLine:
        if self.console.is_terminal:
            self.status.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.status.stop()

    def tell(self, text: str) -> None:
        self.status.update(escape(text))


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
