"""The typer application, options shared by commands, and error handling.

Results go to stdout, progress and errors to stderr. Exit codes: 0 success, 1 the work failed, 2 the request was wrong.
Commands import heavy modules inside their functions so that `h2h --help` starts quickly.
"""

from __future__ import annotations

import gc
import io
import json
import os
import sys
import traceback
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from headtohead.control_characters import escape_control_characters
from headtohead.errors import WINDOWS_MESSAGE, HeadToHeadError, RequestError

COMMANDS_BY_MODULE = {
    "run": ("run", "plan"),
    "versus": ("versus", "mcp"),
    "results": ("report", "judge", "verify"),
    "recipes": ("recipes", "schema"),
    "audit_and_trust": ("audit", "trust"),
    "inference": ("predict", "score"),
    "exchange": ("import", "export", "push"),
    "doctor": ("doctor",),
    "attention": ("attention",),
    "design": ("design",),
    "generate": ("generate",),
    "decode": ("decode",),
    "parts": ("parts",),
    "serve": ("serve",),
}
"""the commands that each module of this package defines, in the order of `h2h --help`"""


class LazyCommands(Mapping[str, Any]):
    """All commands by name. Getting one command imports its module only, because importing all takes longer."""

    def __init__(self) -> None:
        self.modules = {command: module for module, commands in COMMANDS_BY_MODULE.items() for command in commands}
        self.commands: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self.commands:
            self._import_modules([self.modules[name]])
        return self.commands[name]

    def __iter__(self) -> Iterator[str]:
        if len(self.commands) < len(self.modules):
            self._import_modules(COMMANDS_BY_MODULE)
        return iter(self.modules)

    def __len__(self) -> int:
        return len(self.modules)

    def _import_modules(self, modules: Iterable[str]) -> None:
        """Import modules and build the commands that all imported modules have registered."""
        for module in modules:
            import_module(f"headtohead.cli.{module}")
        group: Any = typer.main.get_group(app)
        self.commands = group.registered_commands


class CommandGroup(TyperGroup):
    """The group of all commands of `h2h`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.registered_commands = self.commands
        """the commands of the modules that are imported"""
        self.commands = LazyCommands()  # type: ignore[assignment]  # no command is added


app = typer.Typer(
    cls=CommandGroup,
    help="You changed one thing in a transformer. Did it help, really?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
PluginsOption = Annotated[
    list[str] | None,
    typer.Option("--plugin", metavar="FILE", help="Python file that defines custom parts; repeatable."),
]
FormatsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--format",
        metavar="FORMAT",
        help="Format of the report: html, md, pdf, tex, csv, chart-svg, chart-pdf or chart-png; repeatable.",
    ),
]


def _print_version_and_exit(is_requested: bool) -> None:
    """Print the version for `h2h --version` and exit."""
    if is_requested:
        from importlib import metadata

        typer.echo(f"h2h {metadata.version('headtohead')}")
        raise typer.Exit


@app.callback()
def _set_global_options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version_and_exit, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Define the options of `h2h` itself."""


def echo(text: str, *, err: bool = False) -> None:
    """Print a line with control characters escaped, on stdout or stderr."""
    typer.echo(escape_control_characters(text), err=err)


def print_json(value: Any) -> None:
    """Print a value as indented JSON on stdout."""
    echo(json.dumps(value, indent=2, allow_nan=False))


@contextmanager
def show_warnings() -> Iterator[None]:
    """Print each warning that a command raises as a note on stderr."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = lambda message, *_, **__: print_note_to_stderr(str(message))
        yield


def print_note_to_stderr(message: str) -> None:
    """Print a warning of a command as "h2h: note: ..." on stderr."""
    from rich.text import Text

    from headtohead.presentation.renderers.terminal import get_stderr_console

    sys.stdout.flush()
    get_stderr_console().print(Text(f"h2h: note: {message}", style="yellow"), soft_wrap=True)


def main() -> None:
    """Run the typer application `app` as the program `h2h`.

    Turn the package's errors into one message on stderr and an exit code.
    """
    if sys.platform == "win32":
        echo(f"h2h: error: {WINDOWS_MESSAGE}", err=True)
        sys.exit(2)
    if sys.argv[1:2] != ["versus"]:  # whose commands inherit the environment of the user, unchanged
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        # With small models, two threads on a busy machine are many times slower than one. Users can override this.
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    gc.set_threshold(100_000)  # importing modules creates many objects, and no garbage
    sys.excepthook = lambda *error: echo("".join(traceback.format_exception(*error)), err=True)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # the encoding of the terminal may lack characters of names and texts
            stream.reconfigure(errors="backslashreplace")
    try:
        app()
    except HeadToHeadError as error:
        kind = "error" if isinstance(error, RequestError) else "failed"
        echo(f"h2h: {kind}: {error}", err=True)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.exit(0)  # the reader closed the pipe, as in `h2h recipes | head`
    except (OSError, MemoryError) as error:  # missing file, permission denied, out of memory
        file_prefix = f"{error.filename}: " if isinstance(error, OSError) and error.filename else ""
        reason = error.strerror if isinstance(error, OSError) else f"not enough memory ({error})"
        echo(f"h2h: failed: {file_prefix}{reason or error}", err=True)
        sys.exit(1)
    except Exception as error:
        if "torch" not in sys.modules:
            raise
        from headtohead.audit.user_code import find_user_line

        if not (user_line := find_user_line(error)):
            raise
        echo(f"h2h: failed: {user_line}: {type(error).__name__}: {error}", err=True)
        sys.exit(1)
    finally:
        gc.freeze()  # skip the final garbage collection, which takes half a second once torch is imported
