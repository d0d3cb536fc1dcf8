"""`h2h run`: train every variant beside the baseline and report the verdicts."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from headtohead.cli.app import JsonOption, PluginsOption, app, echo, print_json


@app.command()
def run(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE|FILE", help="Recipe name or experiment file.")],
    data: Annotated[str | None, typer.Option(help="Use another corpus: sotu, folder, file, hub:owner/name.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Seeds per variant, or auto.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a setting, e.g. model.layers=2; repeatable."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Output folder. [default: runs/NAME]")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Parallel trials. [default: one per core]")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    backend: Annotated[
        str | None, typer.Option(help="Run on a cluster: ray, ray:HOST:PORT or ray://HOST:PORT.")
    ] = None,
    log: Annotated[
        list[str] | None, typer.Option("--log", help="Also log to tensorboard, wandb or trackio; repeatable.")
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Apply the file's [full] table: larger models for a larger machine.")
    ] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Quick look in two minutes: fewer seeds, steps and rows; no verdict.")
    ] = False,
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="VARIANT", help="Train only this variant; repeatable.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue an interrupted experiment in the same folder.")
    ] = False,
    reshard: Annotated[
        bool, typer.Option("--reshard", help="Like --resume, with a different number of torchrun processes.")
    ] = False,
    show_batch: Annotated[
        bool, typer.Option("--show-batch", help="Print the tensors of the first batch; do not train.")
    ] = False,
    as_json: JsonOption = False,
    plugins: PluginsOption = None,
) -> None:
    """Train every variant beside the baseline and report whether it helped."""
    from headtohead.distillation import terminal as distillation_terminal
    from headtohead.execution import progress_display, search_progress, torchrun, trackers
    from headtohead.experiment import loading
    from headtohead.experiment.schemas import Findings
    from headtohead.report import terminal
    from headtohead.runner import run_experiment, run_search
    from headtohead.search import terminal as search_terminal

    rank, processes, _ = torchrun.read_ranks(os.environ)
    if rank:  # under torchrun, rank 0 runs the experiment and the other ranks follow it
        if not show_batch:
            torchrun.run_follower(os.environ)
        return
    changes = list(settings or [])
    if seeds is not None:
        changes.append(f"seeds={seeds}")
    experiment = loading.load_experiment(
        recipe,
        changes,
        plugins=plugins or (),
        data_source=data,
        use_full_setting=full,
        use_quick_setting=quick,
        only=only or (),
    )
    if show_batch:
        from headtohead.report import terminal
        from headtohead.trials.inspect_batch import summarize_first_batch

        batch = summarize_first_batch(experiment)
        print_json(batch.to_dict()) if as_json else terminal.print_batch(batch)
        return
    folder = out or run_experiment.DEFAULT_RUNS_FOLDER / experiment.name
    if reshard:
        torchrun.reshard_runs(folder, processes)
    with ExitStack() as stack:
        live = stack.enter_context(
            (search_progress.SearchProgressDisplay if experiment.search else progress_display.TrialProgressDisplay)(
                experiment
            )
        )
        if processes > 1:
            torchrun.check_torchrun_options(backend, workers)
            worker_pool = stack.enter_context(torchrun.open_leader(os.environ)).pool
        logs = stack.enter_context(trackers.TrackerGroup(folder, log or (), live.say))
        try:
            outcome = run_search.run_with_search(
                experiment,
                folder,
                num_workers=workers,
                device=device,
                backend=worker_pool if processes > 1 else backend,
                resume=resume or reshard,
                on_update=logs.wrap_callback(live.watch),
                on_progress=live.tell,
                command=sys.argv,
            )
        except KeyboardInterrupt:
            live.stop()
            echo(f"interrupted: continue with --resume ({folder})", err=True)
            raise typer.Exit(130) from None
    page = None
    if outcome.findings is not None:
        from headtohead.report import write

        page = str(write(folder, ["html"])[0])
    if as_json:
        print_json(terminal.outcome_to_json(outcome, page))
    else:
        search_terminal.print_search(outcome.findings or Findings())
        distillation_terminal.print_distillation(outcome.findings or Findings())
        terminal.print_outcome(outcome, page)
    if outcome.failed_jobs:
        raise typer.Exit(2 if all(job.is_request_error for job in outcome.failed_jobs) else 1)
