"""The command line: verbs only. Each calls one function of a room and shows what it gives.

Results go to stdout, bars and errors to stderr. Exit codes: 0 fine, 1 the work failed, 2 the request was wrong.
Nothing heavy is imported before a verb needs it: `h2h --help` must answer at once.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from headtohead.errors import HeadToHeadError, RequestError

app = typer.Typer(
    help="You changed one thing in a transformer. Did it help, really?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]
UseOption = Annotated[list[str] | None, typer.Option("--use", help="A file with parts of your own; may be repeated.")]
ModelFolderArgument = Annotated[
    Path, typer.Argument(metavar="MODEL", help="A run folder: runs/EXPERIMENT/VARIANT/seed-0.")
]


def print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2, allow_nan=False))


def main() -> None:
    """The door: turns our errors into one plain message and an exit code."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # Small models: two threads on a busy machine run many times slower than one. Set it yourself to have more.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    try:
        app()
    except HeadToHeadError as error:
        kind = "error" if isinstance(error, RequestError) else "failed"
        typer.echo(f"h2h: {kind}: {error}", err=True)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.exit(0)  # the reader of a pipe has seen enough
    except (OSError, MemoryError) as error:  # the machine's own words: no such file, not allowed, no memory
        place = f"{error.filename}: " if isinstance(error, OSError) and error.filename else ""
        reason = error.strerror if isinstance(error, OSError) else f"not enough memory ({error})"
        typer.echo(f"h2h: failed: {place}{reason or error}", err=True)
        sys.exit(1)
    finally:
        gc.freeze()  # the process ends: to look through all that torch has made would take half a second
