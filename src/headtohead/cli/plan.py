"""`h2h plan`: what an experiment costs, before it is run."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from headtohead.cli.app import JsonOption, PluginsOption, app, print_json

if TYPE_CHECKING:
    from headtohead.config.experiment import Experiment


@app.command()
def plan(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE|FILE", help="Recipe name or experiment file.")],
    data: Annotated[str | None, typer.Option(help="Use another corpus: sotu, folder, file, hub:owner/name.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Seeds per variant, or auto.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a setting, e.g. model.layers=2; repeatable."),
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Parallel trials. [default: one per core]")] = None,
    full: Annotated[bool, typer.Option("--full", help="Apply the file's [full] table.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Plan the quick look.")] = False,
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="VARIANT", help="Plan only this variant; repeatable.")
    ] = None,
    as_json: JsonOption = False,
    plugins: PluginsOption = None,
) -> None:
    """Print sizes, memory, trials and estimated time of an experiment. A few real steps are run, nothing is saved."""
    from headtohead.experiment import loading
    from headtohead.report import terminal
    from headtohead.runner.plan import plan_experiment
    from headtohead.search import terminal as search_terminal

    changes = [*(settings or []), *([f"seeds={seeds}"] if seeds is not None else [])]
    experiment = loading.load_experiment(
        recipe,
        changes,
        plugins=plugins or (),
        data_source=data,
        use_full_setting=full,
        use_quick_setting=quick,
        only=only or (),
    )
    _rerun_in_safe_environment(experiment)
    result = plan_experiment(experiment, workers)
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
