"""`h2h report`: write the report of an experiment from its run folders."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headtohead.cli.app import JsonOption, app, echo, print_json


@app.command()
def report(
    runs: Annotated[Path, typer.Argument(metavar="RUNS", help="Experiment folder: runs/NAME.")],
    formats: Annotated[
        list[str] | None,
        typer.Option("--format", help="html, md, pdf, csv, latex, chart-svg, chart-pdf or chart-png; repeatable."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Output folder. [default: RUNS]")] = None,
    full: Annotated[bool, typer.Option("--full", help="Write every section in full to md and pdf.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write the report of an experiment from its run folders, in any format."""
    from headtohead.experiment import run_folder
    from headtohead.findings import compute
    from headtohead.report import write

    experiment_runs = run_folder.open_runs(runs)
    compute.write_findings(experiment_runs, interim_analyses=compute.list_interim_analyses(experiment_runs))
    written = write(runs, formats or ["html"], out, is_full=full)
    print_json([str(path) for path in written]) if as_json else echo("\n".join(map(str, written)))
