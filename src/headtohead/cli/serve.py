"""The verb that opens the web app: serve."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headtohead.cli.app import app
from headtohead.errors import MissingExtraError


@app.command()
def serve(
    runs: Annotated[Path, typer.Argument(metavar="RUNS", help="The folder with experiments.")] = Path("runs"),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Where to listen; 0 takes any that is free.")] = 8000,
    host: Annotated[
        str, typer.Option(help="Another address than this machine's own; then a token is needed.")
    ] = "127.0.0.1",
    token_file: Annotated[
        Path | None, typer.Option(help="A file with the token. [default: a new one where one is needed]")
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODEL", help="A pretrained model for the playground: a folder, a GGUF file or hub:owner/name."
        ),
    ] = None,
    no_open: Annotated[bool, typer.Option("--no-open", help="Do not open a browser.")] = False,
) -> None:
    """Open the web app: watch experiments while they train, start them, read their verdicts."""
    try:
        from headtohead.web import server
    except ModuleNotFoundError as error:
        if error.name not in ("fastapi", "uvicorn", "starlette"):
            raise
        raise MissingExtraError(str(error.name), "serve", "h2h serve") from None

    def ready(address: str) -> None:
        typer.echo(f"Head to Head: {address}\nCtrl-C ends it; trainings that were started go on.")
        if not no_open:
            import webbrowser

            webbrowser.open(address)

    server.serve(runs, host=host, port=port, token_file=token_file, pretrained_models=model or (), on_ready=ready)
