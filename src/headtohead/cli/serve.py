"""`h2h serve`: the web app."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headtohead.cli.app import app
from headtohead.errors import MissingExtraError


@app.command()
def serve(
    runs: Annotated[Path, typer.Argument(metavar="RUNS", help="Folder that contains the experiments.")] = Path("runs"),
    port: Annotated[
        int, typer.Option(metavar="N", min=0, max=65535, help="Port to listen on; 0 chooses a free one.")
    ] = 8000,
    host: Annotated[
        str,
        typer.Option(metavar="ADDRESS", help="Address to listen on. Addresses other than localhost require a token."),
    ] = "127.0.0.1",
    token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File with the access token. [default: generate a token if one is required]"),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODEL",
            help="Pretrained model for the pages Attention and Playground: folder, GGUF file or hub:owner/name; "
            "repeatable.",
        ),
    ] = None,
    no_open: Annotated[bool, typer.Option("--no-open", help="Do not open a browser.")] = False,
) -> None:
    """Start the web app.

    It shows, starts and stops experiments, draws attention maps and generates text.
    """
    try:
        from headtohead.web import server
    except ModuleNotFoundError as error:
        if error.name not in ("fastapi", "uvicorn", "starlette"):
            raise
        raise MissingExtraError(str(error.name), "serve", "h2h serve") from None

    def announce(address: str) -> None:
        """Print the address of the server and open it in a browser."""
        typer.echo(f"Head to Head: {address}\nPress Ctrl-C to stop; experiments that are running continue.")
        if not no_open:
            import webbrowser

            webbrowser.open(address)

    server.serve(runs, host=host, port=port, token_file=token_file, pretrained_models=model or (), on_ready=announce)
