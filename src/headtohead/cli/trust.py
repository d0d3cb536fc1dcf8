"""`h2h trust`: allow the code in a run folder to be executed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headtohead.cli.app import JsonOption, app, echo, print_json


@app.command()
def trust(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder or experiment folder.")],
    as_json: JsonOption = False,
) -> None:
    """Allow the Python files in a run folder to be executed. Read them first."""
    from headtohead.experiment.trust import trust_run

    files = [str(file) for file in trust_run(run)]
    print_json(files) if as_json else echo("\n".join(f"trusted: {file}" for file in files))
