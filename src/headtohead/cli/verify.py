"""`h2h verify`: recompute the figures of a report and detect edited files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headtohead.cli.app import JsonOption, app, print_json


@app.command()
def verify(
    runs: Annotated[Path, typer.Argument(metavar="RUNS", help="Experiment folder: runs/NAME.")],
    rescore: Annotated[bool, typer.Option("--rescore", help="Also re-evaluate the saved weights.")] = False,
    retrain: Annotated[int, typer.Option(min=0, metavar="N", help="Also retrain N trials and compare bit by bit.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Recompute every figure of a report and list the files that were edited."""
    from headtohead.presentation.terminal import StatusLine
    from headtohead.report import terminal, write
    from headtohead.runner.verify import verify_experiment

    with StatusLine() as status:
        checks = verify_experiment(
            runs, rescore=rescore, num_retrained=retrain, render_report=write, on_progress=status.update
        )
    print_json([check.to_dict() for check in checks]) if as_json else terminal.print_verification_checks(checks)
    if not all(check.passed for check in checks):
        raise typer.Exit(1)
