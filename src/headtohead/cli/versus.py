"""`h2h versus` and `h2h mcp`: compare training scripts, from the command line or for other programs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headtohead.cli.app import JsonOption, app, echo, print_json, show_warnings
from headtohead.errors import RequestError

if TYPE_CHECKING:
    from headtohead.versus.command_runner import RunProcess

EXIT_CODES = {"hurt": 3, "cannot-tell": 4}
"""exit code of each outcome that `--fail-if` allows"""


@app.command()
def versus(
    commands: Annotated[
        list[str],
        typer.Argument(
            metavar="COMMAND",
            help="Command lines in quotes, the baseline first: 'python train.py --seed {seed}'. {seed}, {out} and "
            "{variant} are replaced by the seed, the output folder of the run, and the variant's name. Alternatively, "
            "a comparison file (.toml); or, with --noise or --revisions, a single command.",
        ),
    ],
    metric: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the metric as the scripts report it, e.g. val_loss.")
    ] = None,
    metric_file: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="File (.json, .jsonl, .csv) or folder (TensorBoard, W&B, trackio) in which each run writes the "
            "metric, e.g. {out}/log.jsonl. [default: the printed output]",
        ),
    ] = None,
    metric_pattern: Annotated[
        str | None,
        typer.Option(
            metavar="REGEX",
            help="Regular expression that finds the metric in the printed output. Its only capturing group must match "
            "the value.",
        ),
    ] = None,
    direction: Annotated[
        str | None,
        typer.Option(
            metavar="minimize|maximize",
            help="Whether lower or higher values of the metric are better. [default: inferred from its name]",
        ),
    ] = None,
    aggregate: Annotated[
        str | None,
        typer.Option(
            metavar="last|best|mean",
            help="What is compared if a run reports the metric several times: the last value, the best one, or the "
            "mean of the last five. [default: last]",
        ),
    ] = None,
    metric_for_best_step: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="With --aggregate best: use the value from the step at which this second metric is best.",
        ),
    ] = None,
    example_scores: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="File in which each run writes one score per test example, e.g. {out}/scores.csv. The verdict then "
            "generalizes to new examples.",
        ),
    ] = None,
    revisions: Annotated[
        tuple[str, str] | None,
        typer.Option(
            metavar="BASELINE VARIANT",
            help="Compare two git revisions by running the same command in both; its words may follow a --. A dot "
            "stands for the working tree.",
        ),
    ] = None,
    noise: Annotated[
        bool,
        typer.Option("--noise", help="Compare a single command with itself, on different seeds, to measure its noise."),
    ] = False,
    env: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE", help="Set an environment variable of all commands, e.g. SEED={seed}; repeatable."
        ),
    ] = None,
    unseeded: Annotated[
        bool,
        typer.Option(
            "--unseeded",
            help="Allow commands without {seed}. Runs of baseline and variant are then not paired.",
        ),
    ] = False,
    link: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="PATH",
            help="With --revisions: make a file or folder that git does not track, such as data, available in the "
            "working directory of both revisions; repeatable.",
        ),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Number of seeds for each command. [default: 5]")
    ] = None,
    equivalence_margin: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            help="Largest change of the metric that makes no practical difference; relative for perplexities. "
            "[default: 0]",
        ),
    ] = None,
    shell: Annotated[
        bool, typer.Option("--shell", help="Run the commands with /bin/sh, for pipes and the like.")
    ] = False,
    timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Stop runs that take longer; they count as failed.")
    ] = None,
    retries: Annotated[
        int | None, typer.Option(metavar="N", help="How often to restart a run that fails. [default: 0]")
    ] = None,
    check_determinism: Annotated[
        bool, typer.Option(help="Run the baseline's first seed twice, to see whether equal seeds give equal results.")
    ] = True,
    workers: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Number of runs at the same time. [default: 1, or all of the cluster]"),
    ] = None,
    devices: Annotated[
        str | None, typer.Option(metavar="IDS", help="GPUs to use, one per worker, e.g. 0,1,2,3. [default: all]")
    ] = None,
    backend: Annotated[
        str | None,
        typer.Option(
            metavar="ray[:ADDRESS]",
            help="Run the commands on a Ray cluster whose machines share the working directory and --out.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Output folder. [default: runs/versus, runs/versus-2, ...]")
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Continue an interrupted comparison, or add seeds to a finished one (--seeds is the total).",
        ),
    ] = False,
    fail_if: Annotated[
        str | None,
        typer.Option(
            metavar="OUTCOMES",
            help="Fail if a verdict has one of these outcomes, comma-separated: hurt (exit code 3), cannot-tell (4).",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare training scripts by a metric, over several seeds.

    The first command is the baseline; the others are variants. The verdict says whether a variant is better or worse.
    Scripts can use any framework. They have to accept a seed, and to print the metric or write it to a file.
    """
    from headtohead.report import terminal, write
    from headtohead.versus import config
    from headtohead.versus.comparison_folder import choose_comparison_folder
    from headtohead.versus.findings.compute import write_findings
    from headtohead.versus.progress_display import CommandProgressDisplay
    from headtohead.versus.run_comparison import run_comparison

    failing_outcomes = _parse_fail_if_option(fail_if)
    is_file = len(commands) == 1 and commands[0].endswith(".toml")
    settings: dict[str, Any] = config.read_comparison_file(Path(commands[0])) if is_file else {}
    if is_file and (revisions or noise or env):
        raise RequestError("--revisions, --noise and --env describe commands; a comparison file has keys for them")
    if not is_file:
        settings |= config.build_command_settings(commands, revisions, _parse_env_option(env or []), noise=noise)
    metric_options = {
        "name": metric,
        "file": metric_file,
        "pattern": metric_pattern,
        "direction": direction,
        "aggregate": aggregate,
        "metric_for_best_step": metric_for_best_step,
        "example_scores": example_scores,
    }
    if given_options := {key: value for key, value in metric_options.items() if value is not None}:
        metric_settings = settings.get("metric", {})
        settings["metric"] = (
            {"name": metric_settings} if isinstance(metric_settings, str) else dict(metric_settings)
        ) | given_options
    if not settings.get("metric"):
        raise RequestError("--metric is needed: the name of the number that the scripts report, such as val_loss")
    options = {
        "seeds": seeds,
        "equivalence_margin": equivalence_margin,
        "timeout": timeout,
        "retries": retries,
        "shell": shell or None,
        "unseeded": unseeded or None,
        "check_determinism": None if check_determinism else False,
        "links": [str(path) for path in link] if link else None,
    }
    settings |= {key: value for key, value in options.items() if value is not None}
    comparison_config = config.build_comparison_config(settings, commands[0] if is_file else "h2h versus")
    default_folder = Path("runs") / (Path(commands[0]).stem if is_file else "noise" if noise else "versus")
    run_process, max_workers = _select_process_runner(backend, has_devices=devices is not None)
    folder = out or choose_comparison_folder(default_folder, comparison_config, Path.cwd())
    with CommandProgressDisplay(comparison_config) as display:
        try:
            comparison = run_comparison(
                folder,
                comparison_config,
                directory=Path.cwd(),
                num_workers=workers or max_workers,
                devices=devices.split(",") if devices else (),
                resume=resume,
                run_process=run_process,
                on_update=display.update,
            )
        except KeyboardInterrupt:
            echo(f"interrupted: continue with --resume ({folder})", err=True)
            raise typer.Exit(130) from None
    findings = write_findings(comparison, sys.argv)
    with show_warnings():
        report_path = str(write(folder, ["html"])[0])
    if as_json:
        print_json({**findings.to_json(), "report": report_path})
    else:
        terminal.print_script_comparison(findings, report_path, sys.argv)
    if not findings.verdicts or all(verdict.outcome == "not comparable" for verdict in findings.verdicts):
        raise typer.Exit(1)
    outcomes = {verdict.outcome.replace(" ", "-") for verdict in findings.verdicts}
    for outcome in failing_outcomes:
        if outcome in outcomes:
            raise typer.Exit(EXIT_CODES[outcome])


def _select_process_runner(backend: str | None, *, has_devices: bool) -> tuple[RunProcess, int]:
    """Return the function that runs the commands, and the default of --workers."""
    if backend is None:
        from headtohead.versus.command_runner import run_local_process

        return run_local_process, 1
    from headtohead.execution.ray.command_runner import build_ray_process_runner

    if backend.partition(":")[0] != "ray":
        raise RequestError(f"--backend: unknown backend {backend!r} (allowed: ray)")
    if has_devices:
        raise RequestError("--devices cannot be used with --backend ray, which assigns the GPUs")
    return build_ray_process_runner(backend)


def _parse_env_option(assignments: list[str]) -> dict[str, str]:
    """Return the environment variables in the values of --env, NAME=VALUE."""
    env = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not name or not equals:
            raise RequestError(f"--env {assignment!r} is not NAME=VALUE, such as SEED={{seed}}")
        env[name] = value
    return env


def _parse_fail_if_option(text: str | None) -> list[str]:
    """Return the outcomes in the value of --fail-if, which is comma-separated."""
    outcomes = [outcome.strip() for outcome in text.split(",")] if text else []
    if unknown_outcomes := [outcome for outcome in outcomes if outcome not in EXIT_CODES]:
        raise RequestError(f"--fail-if {unknown_outcomes[0]!r}; allowed: {', '.join(EXIT_CODES)}")
    return outcomes


@app.command()
def mcp(
    runs: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder in which comparisons are saved.")] = Path("runs"),
) -> None:
    """Serve comparisons over the Model Context Protocol.

    Over stdin and stdout, programs such as coding agents plan, run, watch and judge comparisons of training scripts.
    """
    from headtohead.versus.mcp_server import build_server

    build_server(runs).run("stdio")
