"""`h2h versus`: compare training scripts."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from headtohead.cli.app import JsonOption, app, echo, print_json, show_warnings
from headtohead.errors import RequestError

EXIT_CODES = {"hurt": 3, "cannot-tell": 4}


@app.command()
def versus(
    commands: Annotated[
        list[str],
        typer.Argument(
            metavar="BASELINE VARIANT...|FILE|-- COMMAND",
            help="Commands with {seed}, a comparison file (.toml), or with --revisions one command.",
        ),
    ],
    metric: Annotated[str | None, typer.Option(help="Metric that the scripts report, e.g. val_loss.")] = None,
    goal: Annotated[str | None, typer.Option(help="lower or higher. [default: by the name of the metric]")] = None,
    source: Annotated[
        str | None, typer.Option(help="File or folder with the metric, e.g. {out}/log.jsonl. [default: the output]")
    ] = None,
    pattern: Annotated[str | None, typer.Option(help="Regular expression for the value in the output.")] = None,
    reduction: Annotated[str | None, typer.Option(help="last, best or mean (of the last values).")] = None,
    best_by: Annotated[str | None, typer.Option(help="With best: metric whose best value selects the step.")] = None,
    examples: Annotated[str | None, typer.Option(help="File with scores per example, e.g. {out}/scores.csv.")] = None,
    revisions: Annotated[
        tuple[str, str] | None, typer.Option(help="Git revisions of baseline and variant; . is the working tree.")
    ] = None,
    noise: Annotated[
        bool, typer.Option("--noise", help="Compare one command with itself: how large is noise?")
    ] = False,
    seeds: Annotated[int | None, typer.Option(min=1, help="Seeds per variant. [default: 5]")] = None,
    equivalence_margin: Annotated[
        float | None, typer.Option(help="Smaller changes are no practical difference.")
    ] = None,
    shell: Annotated[bool, typer.Option("--shell", help="Run the commands with /bin/sh.")] = False,
    timeout: Annotated[float | None, typer.Option(help="Seconds after which a run is ended.")] = None,
    retries: Annotated[int | None, typer.Option(help="How often a failed run is repeated.")] = None,
    repeat: Annotated[
        bool, typer.Option(help="Run the baseline's first seed twice, to see whether equal seeds give equal values.")
    ] = True,
    workers: Annotated[int, typer.Option(min=1, help="Parallel runs.")] = 1,
    devices: Annotated[str | None, typer.Option(help="GPUs, one per worker, e.g. 0,1,2,3.")] = None,
    out: Annotated[Path | None, typer.Option(help="Output folder. [default: runs/versus]")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue, or add seeds.")] = False,
    fail_if: Annotated[
        str | None, typer.Option(help="hurt (exit code 3), cannot-tell (4), or both with a comma.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare training scripts: run both over seeds and judge."""
    from headtohead.report import terminal, write
    from headtohead.versus import config, findings
    from headtohead.versus.comparison import run_comparison
    from headtohead.versus.progress_display import CommandProgressDisplay
    from headtohead.versus.versions import collect_script_versions

    allowed = _parse_fail_if(fail_if)
    is_file = len(commands) == 1 and commands[0].endswith(".toml")
    values: dict[str, Any] = config.read_comparison_file(Path(commands[0])) if is_file else {}
    if not is_file:
        values |= _build_sides(commands, revisions, noise=noise)
    reading = {
        "name": metric,
        "goal": goal,
        "source": source,
        "pattern": pattern,
        "reduction": reduction,
        "best_by": best_by,
        "examples": examples,
    }
    given = {key: value for key, value in reading.items() if value is not None}
    if given:
        named = values.get("metric", {})
        values["metric"] = ({"name": named} if isinstance(named, str) else dict(named)) | given
    if not values.get("metric"):
        raise RequestError("--metric is needed: the name of the number that the scripts report, such as val_loss")
    options = {"seeds": seeds, "equivalence_margin": equivalence_margin, "timeout": timeout, "retries": retries}
    values |= {key: value for key, value in options.items() if value is not None}
    if shell:
        values["shell"] = True
    if not repeat:
        values["repeat"] = False
    comparison_config = config.build_comparison(values, commands[0] if is_file else "h2h versus")
    folder = out or Path("runs") / (Path(commands[0]).stem if is_file else "noise" if noise else "versus")
    with CommandProgressDisplay(comparison_config) as display:
        try:
            comparison = run_comparison(
                folder,
                comparison_config,
                directory=Path.cwd(),
                versions=collect_script_versions(),
                num_workers=workers,
                devices=devices.split(",") if devices else (),
                resume=resume,
                on_update=display.update,
            )
        except KeyboardInterrupt:
            echo(f"interrupted: continue with --resume ({folder})", err=True)
            raise typer.Exit(130) from None
    result = findings.write_findings(comparison, sys.argv)
    with show_warnings():
        page = str(write(folder, ["html"])[0])
    if as_json:
        print_json({**result.to_json(), "report": page})
    else:
        terminal.print_versus(result, page)
    if not result.verdicts or all(verdict.outcome == "not comparable" for verdict in result.verdicts):
        raise typer.Exit(1)
    outcomes = {verdict.outcome.replace(" ", "-") for verdict in result.verdicts}
    for name in allowed:
        if name in outcomes:
            raise typer.Exit(EXIT_CODES[name])


def _build_sides(commands: list[str], revisions: tuple[str, str] | None, *, noise: bool) -> dict[str, Any]:
    """Return baseline and variants from the arguments of the command line."""
    if noise:
        if len(commands) != 1:
            raise RequestError(f"--noise compares one command with itself, got {len(commands)}")
        return {"baseline": commands[0], "variants": {"repeated": commands[0]}, "is_noise": True}
    if revisions is not None:
        command = commands[0] if len(commands) == 1 else commands
        name = re.sub(r"[^\w.+-]", "-", revisions[1]).strip(".-") or "changes"
        variant = name if name != "baseline" else "variant"
        return {
            "baseline": {"command": command, "revision": revisions[0]},
            "variants": {variant: {"command": command, "revision": revisions[1]}},
            "question": f"Does {revisions[1]} improve on {revisions[0]}?",
        }
    if len(commands) < 2:
        raise RequestError("a comparison needs a baseline and at least one variant, or --revisions, or --noise")
    names = ["variant"] if len(commands) == 2 else [f"variant-{index}" for index in range(1, len(commands))]
    return {"baseline": commands[0], "variants": dict(zip(names, commands[1:], strict=True))}


def _parse_fail_if(text: str | None) -> list[str]:
    names = [name.strip() for name in text.split(",")] if text else []
    if unknown := [name for name in names if name not in EXIT_CODES]:
        raise RequestError(f"--fail-if {unknown[0]!r}; allowed: {', '.join(EXIT_CODES)}")
    return names


@app.command()
def mcp(
    runs: Annotated[Path, typer.Option(help="Folder in which comparisons run.")] = Path("runs"),
) -> None:
    """Serve comparisons over the Model Context Protocol.

    Other programs list, plan, run, watch and judge comparisons over stdin and stdout.
    """
    from headtohead.versus.mcp_server import build_server

    build_server(runs).run("stdio")
