"""Verbs for design by hand: queries and keys that make attention do what is wanted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headtohead.cli.app import Json, app, show_json
from headtohead.errors import RequestError

if TYPE_CHECKING:
    from headtohead.key_design.solutions import Shown

design_app = typer.Typer(
    help="Find queries and keys by hand: select a value, average some, put given weights on them.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(design_app, name="design")

Keys = Annotated[
    str, typer.Argument(metavar="KEYS", help='A .csv or .json file with a key in each row, or "0.5 1; 1 0; -1 2".')
]
Values = Annotated[
    str | None, typer.Option(help="The values, a row for each key: a file or text. Shows the output too.")
]
Precision = Annotated[float | None, typer.Option(help="What the query should reach, between 0 and 1. [default: 0.999]")]
Tolerance = Annotated[
    float | None, typer.Option(help="Nearer than this, relative to their size, keys touch. [default: 1e-9]")
]
Out = Annotated[Path | None, typer.Option(help="Also draw it: a .html, .svg, .pdf or .png file.")]

# Keys may begin with a minus, which is no option.
NUMBERS = {"ignore_unknown_options": True}


@design_app.command(context_settings=NUMBERS)
def select(
    keys: Keys,
    key: Annotated[int, typer.Argument(help="Which key, counted from 0.")],
    values: Values = None,
    precision: Precision = None,
    tolerance: Tolerance = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """A query that puts the weight on one key, or a proof that there is none and the best instead."""

    def find(design: Any, rows: Any, options: dict[str, Any]) -> Shown:
        found: Shown = design.select(rows, key, **options)
        return found

    _answer(find, keys, values, precision, tolerance, out, as_json)


@design_app.command(context_settings=NUMBERS)
def average(
    keys: Keys,
    chosen: Annotated[str, typer.Argument(metavar="[WHICH]", help="Keys counted from 0, as 0,1; or all.")] = "all",
    values: Values = None,
    precision: Precision = None,
    tolerance: Tolerance = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """A query with equal weights on some keys and none on the others."""

    def find(design: Any, rows: Any, options: dict[str, Any]) -> Shown:
        found: Shown = design.average(rows, None if chosen == "all" else _places(chosen), **options)
        return found

    _answer(find, keys, values, precision, tolerance, out, as_json)


@design_app.command(context_settings=NUMBERS)
def weights(
    keys: Keys,
    target: Annotated[str, typer.Argument(metavar="TARGET", help='The weights: "0.5 0.3 0.2", or a file.')],
    values: Values = None,
    precision: Precision = None,
    tolerance: Tolerance = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """A query that yields given weights, one for each key."""

    def find(design: Any, rows: Any, options: dict[str, Any]) -> Shown:
        found: Shown = design.weights(rows, _numbers(design, target, "target"), **options)
        return found

    _answer(find, keys, values, precision, tolerance, out, as_json)


@design_app.command(context_settings=NUMBERS)
def identity(
    keys: Keys,
    values: Values = None,
    precision: Precision = None,
    tolerance: Tolerance = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """A query matrix of which row i selects key i."""

    def find(design: Any, rows: Any, options: dict[str, Any]) -> Shown:
        found: Shown = design.identity(rows, **options)
        return found

    _answer(find, keys, values, precision, tolerance, out, as_json)


@design_app.command("replace-key", context_settings=NUMBERS)
def replace_key(
    keys: Keys,
    key: Annotated[int, typer.Argument(help="Which key to replace, counted from 0.")],
    query: Annotated[str, typer.Option(help='The query that stays: "0.5 1", or a file.')],
    select: Annotated[bool, typer.Option("--select", help="The query is to select the new key.")] = False,
    average: Annotated[
        str | None, typer.Option(metavar="WHICH", help="The query is to average these keys, as 0,1,2; or all.")
    ] = None,
    weights: Annotated[str | None, typer.Option(help="The query is to yield these weights.")] = None,
    length: Annotated[float | None, typer.Option(help="The new key is to have this length.")] = None,
    values: Values = None,
    precision: Precision = None,
    tolerance: Tolerance = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """A new key in the place of one, with which a given query averages, selects, or yields given weights."""

    def find(design: Any, rows: Any, options: dict[str, Any]) -> Shown:
        asked = [
            word for word, given in (("--select", select), ("--average", average), ("--weights", weights)) if given
        ]
        if len(asked) != 1:
            given = f"{' and '.join(asked)} given" if asked else "none given"
            raise RequestError(f"replace-key: say one of --select, --average and --weights; {given}")
        chosen = None
        if average is not None:
            chosen = list(range(len(rows))) if average == "all" else _places(average)
        found: Shown = design.replace_key(
            rows,
            _numbers(design, query, "query"),
            key,
            select=select,
            average=chosen,
            weights=None if weights is None else _numbers(design, weights, "weights"),
            length=length,
            **options,
        )
        return found

    _answer(find, keys, values, precision, tolerance, out, as_json)


@design_app.command()
def tour(precision: Precision = None, out: Out = None, as_json: Json = False) -> None:
    """Walk through the questions of a published report, with its answers, ours, and where ours fall short."""
    from headtohead.key_design.guided_tour import tour as walk

    _check(out)
    _show(walk(precision=precision), out, as_json)


def _answer(
    find: Callable[[Any, Any, dict[str, Any]], Shown],
    keys: str,
    values: str | None,
    precision: float | None,
    tolerance: float | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Read, find, show."""
    from headtohead import key_design

    _check(out)
    options: dict[str, Any] = {"precision": precision, "tolerance": tolerance}
    options = {name: given for name, given in options.items() if given is not None}
    if values is not None:
        options["values"] = key_design.read(values, "values")
    _show(find(key_design, key_design.read(keys), options), out, as_json)


def _check(out: Path | None) -> None:
    if out is not None:
        from headtohead.key_design.views.page import check

        check(out)


def _show(found: Shown, out: Path | None, as_json: bool) -> None:
    row = found.as_row()
    if as_json:
        show_json(row)
    else:
        from headtohead.key_design.views.terminal import show

        show(row)
    if out is not None:
        from headtohead.key_design.views.page import save

        save(row, out)
        if not as_json:
            typer.echo(f"picture: {out}")


def _places(text: str) -> list[int]:
    """0,1 or 0 1."""
    words = text.replace(",", " ").split()
    try:
        return [int(word) for word in words]
    except ValueError:
        raise RequestError(f"average: keys counted from 0 are wanted, as 0,1, or all; {text!r} given") from None


def _numbers(design: Any, text: str, name: str) -> Any:
    """One row."""
    rows = design.read(text, name)
    if len(rows) != 1:
        raise RequestError(f"{name}: one row of numbers is wanted; {len(rows)} given")
    return rows[0]
