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
from headtohead.progress import OnStderr, Pace, duration
from headtohead.report import findings_view

REDRAW = 4


def out() -> Console:
    return Console(highlight=False)


def err() -> Console:
    return Console(stderr=True, highlight=False)


def table(*columns: str, title: str | None = None) -> Table:
    """A plain table: the first column is names, the others are figures."""
    made = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold", pad_edge=False)
    for index, column in enumerate(columns):
        made.add_column(column, justify="left" if index == 0 else "right", overflow="fold")
    return made


def amount(number: float) -> str:
    """1.00 M, 863 k."""
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.0f}"


class Live:
    """A table that grows while trials run: variants down, seeds across, and below it the rate and the time left."""

    MOST_SEEDS = 8

    def __init__(self, experiment: experiment.Experiment) -> None:
        self.experiment = experiment
        self.began = time.monotonic()
        console = err()
        self.is_shown = console.is_terminal
        self.live = RichLive(console=console, refresh_per_second=REDRAW, transient=True)
        self.line = OnStderr()
        self.last_line = self.began

    def __enter__(self) -> Live:
        if self.is_shown:
            self.live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def stop(self) -> None:
        self.live.stop()

    def watch(self, jobs: Sequence[Any]) -> None:
        if self.is_shown:
            self.live.update(self.shown(jobs))
        elif time.monotonic() - self.last_line >= OnStderr.ELSEWHERE:
            self.last_line = time.monotonic()
            self.say(" · ".join(self.progress(jobs)))

    def say(self, text: str) -> None:
        """A line that stays, above the table."""
        self.live.console.print(escape(text), soft_wrap=not self.is_shown)

    def tell(self, pace: Pace) -> None:
        """Work that is done before any trial begins."""
        self.live.update(escape(str(pace))) if self.is_shown else self.line(pace)

    def shown(self, jobs: Sequence[Any]) -> Group:
        """The question, the table, and how far it is."""
        lines = [f"[dim]{escape(line)}[/]" for line in self.progress(jobs)]
        return Group(f"[bold]{escape(self.experiment.question)}[/]", self.table(jobs), *lines)

    def table(self, jobs: Sequence[Any]) -> Table:
        seeds = sorted({job.trial.seed for job in jobs})[-self.MOST_SEEDS :]
        made = table("", *(f"seed {seed}" for seed in seeds))
        by_place = {(job.trial.variant, job.trial.seed): job for job in jobs}
        for name in self.experiment.names:
            made.add_row(escape(name), *(cell(by_place.get((name, seed))) for seed in seeds))
        return made

    def progress(self, jobs: Sequence[Any]) -> list[str]:
        """How far it is and how long it will take; then what went wrong."""
        running = [job for job in jobs if job.state == "running"]
        over = sum(job.is_over for job in jobs)
        rate = sum(job.rate for job in running)
        words = [f"{over} of {len(jobs)} trials done"]
        if over < len(jobs):
            left = time_left(jobs)
            words.append(f"{rate:.1f} steps/s")
            words.append(f"about {duration(left)} left" if left is not None else "time left: measuring")
        failed = [job for job in jobs if job.state in ("failed", "lost")]
        return [" · ".join(words), *(f"{job.trial.variant}/{job.trial.seed}: {job.message}" for job in failed)]


def time_left(jobs: Sequence[Any]) -> float | None:
    """From the steps still to do and the rate of those that run; one that is starting or scoring will be as fast."""
    running = [job for job in jobs if job.state == "running"]
    rates = [job.rate for job in running if job.rate > 0]
    if not rates:
        return None
    per_trial = max(job.steps for job in running)
    to_do = sum((job.steps or per_trial) - job.step for job in running)
    to_do += per_trial * sum(job.state == "waiting" for job in jobs)
    return float(to_do / (statistics.fmean(rates) * len(running)))


def cell(job: Any) -> str:
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


def show_plan(experiment: experiment.Experiment, plans: Sequence[Any], seeds: int, workers: int) -> None:
    made = table(
        "variant",
        "parameters",
        "FLOPs/token",
        "memory",
        "steps",
        "one trial",
        title=escape(experiment.question),
    )
    for one in plans:
        memory = f"{amount(one.training_bytes)}B"
        made.add_row(
            escape(one.variant),
            f"{one.parameters:,}",
            amount(one.flops_per_token),
            memory,
            f"{one.steps:,}",
            duration(one.seconds),
        )
    console = out()
    console.print(made)
    total = seeds * sum(one.seconds for one in plans) / min(workers, seeds * len(plans))
    trials = f"{len(plans)} variants x {seeds} seeds = {len(plans) * seeds} trials"
    console.print(f"{trials} on {workers} workers: about {duration(total)}, estimated from a few real steps.")


def show_recipes(found: Sequence[dict[str, Any]]) -> None:
    made = table("recipe", "question")
    made.columns[1].justify = "left"
    for one in found:
        made.add_row(escape(one["name"]), escape(one["question"]))
    console = out()
    console.print(made)
    console.print("h2h run NAME trains one; h2h recipes --show NAME > mine.toml starts your own.")
    larger = ", ".join(one["name"] for one in found if one["full"])
    console.print(
        f"--quick shows in a minute or two what its report looks like; --full is for a larger machine ({larger})."
    )


def show_parts(rows: Sequence[dict[str, str]]) -> None:
    made = table("slot", "part", "options")
    made.columns[1].justify = made.columns[2].justify = "left"
    last = ""
    for row in rows:
        about = (
            f"{row['options']}\n[dim]{escape(row['about'])}[/]" if row["options"] else f"[dim]{escape(row['about'])}[/]"
        )
        made.add_row(row["slot"] if row["slot"] != last else "", escape(row["part"]), about)
        last = row["slot"]
    out().print(made)


def show_predictions(answers: Sequence[dict[str, Any]]) -> None:
    made = table("text", "class", "confidence")
    for one in answers:
        made.add_row(escape(one["text"]), escape(one["class"]), f"{one['confidence']:.1%}")
    console = out()
    console.print(made)
    for one in answers:
        if one["cut"]:
            console.print(f"[yellow]cut at the model's context:[/] {escape(one['text'])}")
        if one["unknown"]:
            console.print(f"[dim]{one['unknown']} unknown words in: {escape(one['text'])}[/]")


def show_scores(answers: Sequence[dict[str, Any]]) -> None:
    console = out()
    for one in answers:
        made = table("token", "loss", "probability", title=escape(one["text"]))
        for row in one["tokens"]:
            known = "" if row["known"] else " [yellow](unknown)[/]"
            made.add_row(escape(row["token"]) + known, f"{row['loss']:.3f}", f"{2.718281828459045 ** -row['loss']:.2%}")
        console.print(made)
        blocks = f", read in {one['blocks']} blocks of the model's context" if one["blocks"] > 1 else ""
        console.print(
            f"loss {one['loss']:.4f}, perplexity {one['perplexity']:,.2f}, {len(one['tokens'])} tokens{blocks}\n"
        )


def show_examination(found: dict[str, Any]) -> None:
    made = table("what", "found")
    made.columns[1].justify = "left"
    for finding in found["findings"]:
        advice = f"\n[yellow]{escape(finding['advice'])}[/]" if finding["advice"] else ""
        made.add_row(escape(finding["name"]), escape(str(finding["found"])) + advice)
    out().print(made)


def show_findings(findings: Sequence[Any]) -> None:
    made = table("part", "in", "check", "found")
    for column in made.columns[1:]:
        column.justify = "left"
    for one in findings:
        word = "[green]passed[/]" if one.passed else f"[red]failed[/] {escape(one.found)}"
        made.add_row(escape(one.part), escape(one.setting), escape(one.check), word)
    console = out()
    console.print(made)
    failed = sum(not one.passed for one in findings)
    console.print(f"{len(findings) - failed} checks passed, {failed} failed")


VERDICT_COLOURS = {"helped": "green", "hurt": "red", "not comparable": "magenta", "cannot tell": "yellow"}


def show_outcome(outcome: Any, report: str | None) -> None:
    """Verdicts in words, the result table, what went wrong, and where things are."""
    console = out()
    found = outcome.findings
    if found is not None:
        console.print()
        console.print(f"[bold]{escape(outcome.runs.experiment.question)}[/]")
        if found.get("distilled"):
            console.print("by perplexity of people’s summaries, on which only the baseline was trained:")
        show_verdicts(found["verdicts"])
        console.print(result_table(found))
        metric = found["metric"]
        console.print(f"[dim]{metric} with the chosen weights: mean over seeds ± standard deviation of one seed[/]")
        for one in found.get("comparisons") or []:
            console.print(f"[bold]{escape(one['title'])}[/] (against {escape(one['baseline'])})")
            show_verdicts(one["verdicts"])
        show_claims(found.get("claims") or [])
        show_audits(found)
        if outcome.runs.experiment.quick:
            console.print("[yellow]a quick look: fewer seeds and steps than the file asks for, so no answer[/]")
    for job in outcome.failures:
        console.print(f"[red]{job.state}[/]: {escape(job.trial.variant)}, seed {job.trial.seed}: {escape(job.message)}")
    console.print(f"runs:   {escape(str(outcome.runs.folder))}", soft_wrap=True)
    if report:
        console.print(f"report: {escape(report)}", soft_wrap=True)


def show_verdicts(verdicts: Sequence[dict[str, Any]]) -> None:
    console = out()
    for row in verdicts:
        colour = VERDICT_COLOURS.get(row["word"], "cyan")
        console.print(f"  [bold {colour}]{escape(row['variant'])}: {row['word']}[/]")
        console.print(Padding(escape(row["sentence"]), (0, 0, 0, 4)))


def show_claims(claims: Sequence[dict[str, Any]]) -> None:
    """What others concluded, and what is to be said about it."""
    console = out()
    for one in claims:
        said = escape(f"report {one['source']} says that {one['says']}:") + f" [bold]{one['answer']}[/]"
        console.print(Padding(said, (0, 0, 0, 2)))


def show_audits(found: dict[str, Any]) -> None:
    """What did not pass, in words; the rest is in the report."""
    console = out()
    places = [("data", found["data_audits"]), *found["audits"].items()]
    failed = [(name, row) for name, rows in places for row in rows if row["passed"] is False]
    passed = sum(row["passed"] is True for _, rows in places for row in rows)
    console.print(f"audits: {passed} passed, {len(failed)} found something")
    for name, row in failed:
        console.print(
            Padding(f"[yellow]{escape(name)}, {escape(row['name'])}:[/] {escape(row['found'])}", (0, 0, 0, 4))
        )


def result_table(found: dict[str, Any]) -> Table:
    """Variants and splits, whichever way round needs fewer columns; below or beside them the words not known."""
    results = found["results"]
    splits, variants = list(next(iter(results.values()))), list(results)
    cells = {
        (variant, split): _mean_and_spread([value for _, value in results[variant].get(split, [])], found["metric"])
        for variant in variants
        for split in splits
    }
    if unknown := findings_view.unknown_words(found):
        variants.append("unknown words")
        cells |= {("unknown words", split): number_format.share(unknown.get(split)) for split in splits}
    across, down = (splits, variants) if len(splits) <= len(variants) else (variants, splits)
    made = table("", *map(escape, across))
    made.columns[0].no_wrap = True
    for name in down:
        made.add_row(escape(name), *(cells.get((name, other)) or cells[other, name] for other in across))
    return made


def _mean_and_spread(values: Sequence[float], metric: str) -> str:
    if not values:
        return "none"
    scale, digits, unit = (100, 1, "%") if metric == "accuracy" else (1, 1, "")
    mean = f"{scale * statistics.fmean(values):.{digits}f}{unit}"
    return mean + (f"±{scale * statistics.stdev(values):.{digits}f}" if len(values) > 1 else "")


def as_json(outcome: Any, report: str | None) -> dict[str, Any]:
    """One object: the experiment, a row for each variant, and where the report is."""
    found = outcome.findings
    return {
        "experiment": outcome.runs.experiment.name,
        "question": outcome.runs.experiment.question,
        "variants": [_variant_row(row, found) for row in found["verdicts"]] if found else [],
        "results": found["results"] if found else {},
        "search": found.get("search") if found else None,
        "failures": [
            {"variant": job.trial.variant, "seed": job.trial.seed, "state": job.state, "message": job.message}
            for job in outcome.failures
        ],
        "runs": str(outcome.runs.folder),
        "report": report,
    }


def _variant_row(row: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    renamed = {"variant": "name", "word": "verdict", "effect": "difference"}
    audits = [{k: audit[k] for k in ("name", "passed", "found")} for audit in found["audits"].get(row["variant"], [])]
    return {**{renamed.get(k, k): v for k, v in row.items()}, "audits": audits}


def show_audit_rows(rows: Sequence[dict[str, Any]]) -> None:
    """Each audit: what was tried, what was found, what it means."""
    console = out()
    marks = {True: "[green]passed[/]", False: "[red]failed[/]", None: "[dim]does not apply[/]"}
    for row in sorted(rows, key=lambda row: (row["passed"] is not False, row["passed"] is None)):
        console.print(f"[bold]{escape(row['name'])}[/]: {marks[row['passed']]}")
        for words in (row["tried"], row["found"], *([row["meaning"]] if row["passed"] is not None else [])):
            console.print(Padding(escape(words), (0, 0, 0, 4)))


class Status:
    """One line on stderr that says what is being done; nothing when stderr is not a terminal."""

    def __init__(self) -> None:
        self.console = err()
        self.status = self.console.status("")

    def __enter__(self) -> Status:
        if self.console.is_terminal:
            self.status.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.status.stop()

    def tell(self, text: str) -> None:
        self.status.update(escape(text))


def show_checks(checks: Sequence[Any]) -> None:
    made = table("where", "what", "found")
    made.columns[1].justify = made.columns[2].justify = "left"
    for one in checks:
        colour = "green" if one.passed else "red"
        made.add_row(escape(one.place), escape(one.what), f"[{colour}]{escape(one.found)}[/]")
    console = out()
    console.print(made)
    failed = sum(not one.passed for one in checks)
    console.print(f"{len(checks) - failed} checks passed, {failed} failed")
