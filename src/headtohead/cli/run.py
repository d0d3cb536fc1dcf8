"""`h2h run` and `h2h plan`: run an experiment, or print its sizes and estimated time first."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headtohead.cli.app import FormatsOption, JsonOption, PluginsOption, app, echo, print_json, show_warnings

if TYPE_CHECKING:
    from headtohead.config.experiment import Experiment
    from headtohead.experiment.schemas import Findings
    from headtohead.runner.run_experiment import ExperimentOutcome
    from headtohead.trials.inspect_batch import BatchSummary
    from headtohead.verdict.record import Verdict

RecipeArgument = Annotated[
    str,
    typer.Argument(
        metavar="RECIPE|FILE", help="Name of a recipe (h2h recipes lists them), or experiment file (.toml)."
    ),
]
DataOption = Annotated[
    str | None,
    typer.Option(
        metavar="CORPUS",
        help="Use this corpus instead of the one in the file: a text file, a folder, hub:owner/name, or sotu (State of "
        "the Union addresses).",
    ),
]
SeedsOption = Annotated[
    str | None,
    typer.Option(metavar="N|auto", help="Number of seeds per variant; auto adds seeds until the verdicts are settled."),
]
SettingsOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a setting of the file, e.g. model.layers=2; repeatable."),
]
WorkersOption = Annotated[
    int | None,
    typer.Option(
        metavar="N", min=1, help="Number of trials to run in parallel. [default: as many as the machine can hold]"
    ),
]
FullOption = Annotated[
    bool,
    typer.Option(
        "--full", help="Apply the settings in the file's [full] table, such as larger models for a larger machine."
    ),
]
QuickOption = Annotated[
    bool,
    typer.Option(
        "--quick", help="Take a quick look in about two minutes, with fewer seeds, steps and rows. There is no verdict."
    ),
]
OnlyOption = Annotated[
    list[str] | None,
    typer.Option("--only", metavar="VARIANT", help="Compare only this variant with the baseline; repeatable."),
]


@app.command()
def run(
    recipe: RecipeArgument,
    data: DataOption = None,
    seeds: SeedsOption = None,
    settings: SettingsOption = None,
    out: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Output folder. [default: runs/NAME]")] = None,
    workers: WorkersOption = None,
    device: Annotated[str, typer.Option(metavar="DEVICE", help="Device to train on: auto, cpu, cuda or mps.")] = "auto",
    backend: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Run the trials on a Ray cluster: ray, ray:HOST:PORT or ray://HOST:PORT."),
    ] = None,
    log: Annotated[
        list[str] | None,
        typer.Option("--log", metavar="TRACKER", help="Also log metrics to tensorboard, wandb or trackio; repeatable."),
    ] = None,
    full: FullOption = False,
    quick: QuickOption = False,
    only: OnlyOption = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue an interrupted experiment, or add seeds (--seeds is the total).")
    ] = False,
    reshard: Annotated[
        bool,
        typer.Option("--reshard", help="Continue under torchrun with a different number of processes than before."),
    ] = False,
    show_batch: Annotated[
        bool, typer.Option("--show-batch", help="Print the tensors of the first training batch, and do not train.")
    ] = False,
    formats: FormatsOption = None,
    as_json: JsonOption = False,
    plugins: PluginsOption = None,
) -> None:
    """Train the baseline and every variant, and judge the variants.

    Each variant is trained once per seed; such a training run is called a trial. The report is written to the output
    folder.
    """
    from headtohead.execution.worker_process import start_first_worker

    with ExitStack() as stack:
        is_first_worker_needed = backend is None and not (resume or reshard or show_batch)
        first_workers = stack.enter_context(start_first_worker(is_needed=is_first_worker_needed))
        from headtohead.execution import progress_display, torchrun
        from headtohead.execution.trackers.group import TrackerGroup
        from headtohead.presentation.output_files import check_output_formats
        from headtohead.runner.run_experiment import DEFAULT_RUNS_FOLDER, run_experiment

        rank, processes, _ = torchrun.read_ranks(os.environ)
        if rank:  # under torchrun, rank 0 runs the experiment and the other ranks follow it
            if not show_batch:
                torchrun.run_follower(os.environ)
            return
        check_output_formats(formats or ["html"])
        experiment = _load_experiment(recipe, data, seeds, settings, full, quick, only, plugins)
        if show_batch:
            from headtohead.runner.budgets import resolve_budgets
            from headtohead.trials.inspect_batch import summarize_first_batch

            batch = summarize_first_batch(resolve_budgets(experiment, {})[0])
            print_json(batch.to_dict()) if as_json else _print_batch(batch)
            return
        folder = out or DEFAULT_RUNS_FOLDER / experiment.name
        if reshard:
            torchrun.reshard_unfinished_runs(folder, processes)
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
                first_workers=first_workers,
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
        print_json(build_outcome_json(outcome, page))
    else:
        # Imported here because they import altair, which would delay the trials.
        from headtohead.distillation import terminal as distillation_terminal
        from headtohead.experiment.schemas import Findings
        from headtohead.report import terminal
        from headtohead.search import terminal as search_terminal

        search_terminal.print_search(outcome.findings or Findings())
        distillation_terminal.print_distillation(outcome.findings or Findings())
        terminal.print_experiment_outcome(outcome, page, sys.argv)
    if outcome.failed_jobs:
        raise typer.Exit(2 if all(job.is_request_error for job in outcome.failed_jobs) else 1)


def _print_batch(batch: BatchSummary) -> None:
    """Print the first batch of an experiment before it runs: its tensors and one decoded example."""
    from rich.markup import escape

    from headtohead.presentation.renderers.terminal import get_stdout_console, print_indented, print_text_table

    rows = [
        (tensor.name, tensor.dtype, " x ".join(map(str, tensor.shape)), tensor.description) for tensor in batch.tensors
    ]
    title = f"First batch (task {batch.task}, seed {batch.seed})"
    print_text_table(("tensor", "dtype", "shape", "description"), rows, title)
    for note in batch.notes:
        print_indented(escape(note))
    for heading, text in (("tokens", " ".join(batch.tokens)), ("text", batch.text), ("target", batch.label_text)):
        get_stdout_console().print(f"[bold]{heading}[/]")
        print_indented(escape(text))


def build_outcome_json(outcome: ExperimentOutcome, report_path: str | None) -> dict[str, Any]:
    """Return what `h2h run --json` prints: the experiment, variants, scores, failures and paths."""
    findings = outcome.findings
    return {
        "experiment": outcome.runs.experiment.name,
        "question": outcome.runs.experiment.question,
        "warnings": [warning.to_json() for warning in findings.warnings] if findings else [],
        "variants": [_build_variant_json(verdict, findings) for verdict in findings.verdicts] if findings else [],
        "quick": outcome.runs.experiment.quick,
        "left_out": list(outcome.runs.experiment.left_out),
        "data_audits": [audit.to_dict() for audit in findings.data_audits] if findings else [],
        "variant_data_audits": {
            name: [audit.to_dict() for audit in checks] for name, checks in findings.variant_data_audits.items()
        }
        if findings
        else {},
        "scores": findings.scores if findings else {},
        "sweep": findings.sweep.to_json() if findings and findings.sweep else None,
        "tuning": findings.tuning.to_json() if findings and findings.tuning else None,
        "search": findings.search.to_json() if findings and findings.search else None,
        "failures": [
            {"variant": job.trial.variant, "seed": job.trial.seed, "state": job.state, "message": job.message}
            for job in outcome.failed_jobs
        ],
        "runs": str(outcome.runs.folder),
        "report": report_path,
    }


def _build_variant_json(verdict: Verdict, findings: Findings) -> dict[str, Any]:
    """Return a verdict and its audits with the keys of `h2h run --json`."""
    json_keys = {"variant": "name", "outcome": "verdict", "effect": "difference"}
    audits = [
        {"name": audit.name, "passed": audit.passed, "observation": audit.observation}
        for audit in findings.audits.get(verdict.variant, [])
    ]
    return {**{json_keys.get(key, key): value for key, value in verdict.to_dict().items()}, "audits": audits}


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
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder of an earlier experiment, to estimate the noise from. [default: runs/NAME if it exists]",
        ),
    ] = None,
    within: Annotated[
        str | None,
        typer.Option(metavar="TIME", help='Choose the number of seeds that fits into this time, e.g. "2 hours".'),
    ] = None,
    as_json: JsonOption = False,
    plugins: PluginsOption = None,
) -> None:
    """Estimate the cost and the detectable effects of an experiment.

    To measure the cost, a few training steps of each variant are run. Nothing is saved.
    """
    from headtohead.report import plan_terminal
    from headtohead.runner.plan import plan_experiment
    from headtohead.runner.time_budget import fit_to_time, parse_time_budget
    from headtohead.search import terminal as search_terminal

    experiment = _load_experiment(recipe, data, seeds, settings, full, quick, only, plugins)
    seconds = None if within is None else parse_time_budget(within)
    _rerun_in_safe_environment(experiment)
    result = plan_experiment(experiment, workers, pilot=pilot)
    fit = None if seconds is None else fit_to_time(result, experiment.max_seeds, seconds)
    if as_json:
        print_json({**result.to_dict(), **({} if fit is None else {"within": fit.to_dict()})})
        return
    plan_terminal.print_plan(experiment, result)
    if result.search:
        search_terminal.print_search_plan(experiment, result.search, result.workers)
    if fit is not None:
        options = [f"--set={setting}" for setting in settings or ()] + [f"--only={name}" for name in only or ()]
        options += [f"--data={data}"] * bool(data) + ["--full"] * full + [f"--workers={workers}"] * bool(workers)
        command = shlex.join(["h2h", "run", recipe, f"--seeds={fit.seeds}", *options])
        plan_terminal.print_time_fit(experiment, result, fit, command)


def _rerun_in_safe_environment(experiment: Experiment) -> None:
    """Rerun this command in a subprocess if the experiment needs environment variables that must be set at start.

    `build_environment` returns them; Muon, for example, crashes without them on some CPUs.
    """
    from headtohead.config.trial_settings import build_trial
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
