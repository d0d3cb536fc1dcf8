"""Verbs for design by hand: queries and keys that make attention do what is wanted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headtohead.cli.app import JsonOption, app, print_json
from headtohead.errors import RequestError

if TYPE_CHECKING:
    from headtohead.key_design.solutions import DesignResult

design_app = typer.Typer(
    help="Find queries and keys by hand: select a value, average some, put given weights on them.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(design_app, name="design")

KeysArgument = Annotated[
    str, typer.Argument(metavar="KEYS", help='A .csv or .json file with a key in each row, or "0.5 1; 1 0; -1 2".')
]
ValuesOption = Annotated[
    str | None, typer.Option(help="The values, a row for each key: a file or text. Shows the output too.")
]
PrecisionOption = Annotated[
    float | None, typer.Option(help="What the query should reach, between 0 and 1. [default: 0.999]")
]
ToleranceOption = Annotated[
    float | None, typer.Option(help="Nearer than this, relative to their size, keys touch. [default: 1e-9]")
]
OutOption = Annotated[Path | None, typer.Option(help="Also draw it: a .html, .svg, .pdf or .png file.")]

# Keys may begin with a minus, which is no option.
ALLOW_NEGATIVE_NUMBERS = {"ignore_unknown_options": True}


@design_app.command(context_settings=ALLOW_NEGATIVE_NUMBERS)
def select(
    keys: KeysArgument,
    key: Annotated[int, typer.Argument(help="Which key, counted from 0.")],
    values: ValuesOption = None,
    precision: PrecisionOption = None,
    tolerance: ToleranceOption = None,
    out: OutOption = None,
    as_json: JsonOption = False,
) -> None:
    """A query that puts the weight on one key, or a proof that there is none and the best instead."""

    def find(design: Any, rows: Any, options: dict[str, Any]) -> DesignResult:
        found: DesignResult = design.find_selecting_query(rows, key, **options)
        return found

    _solve_and_show(find, keys, values, precision, tolerance, out, as_json)


@design_app.command(context_settings=ALLOW_NEGATIVE_NUMBERS)
def average(
    keys: KeysArgument,
    chosen: Annotated[str, typer.Argument(metavar="[WHICH]", help="Keys counted from 0, as 0,1; or all.")] = "all",
    values: ValuesOption = None,
    precision: PrecisionOption = None,
    tolerance: ToleranceOption = None,
    out: OutOption = None,
    as_json: JsonOption = False,
) -> None:
    """A query with equal weights on some keys and none on the others."""

    def find(design: Any, rows: Any, options: dict[str, Any]) -> DesignResult:
        found: DesignResult = design.find_averaging_query(
            rows, None if chosen == "all" else _parse_key_indices(chosen), **options
        )
        return found

    _solve_and_show(find, keys, values, precision, tolerance, out, as_json)


@design_app.command(context_settings=ALLOW_NEGATIVE_NUMBERS)
def weights(
    keys: KeysArgument,
    target: Annotated[str, typer.Argument(metavar="TARGET", help='The weights: "0.5 0.3 0.2", or a file.')],
    values: ValuesOption = None,
    precision: PrecisionOption = None,
    tolerance: ToleranceOption = None,
    out: OutOption = None,
    as_json: JsonOption = False,
) -> None:
    """A query that yields given weights, one for each key."""

    def find(design: Any, rows: Any, options: dict[str, Any]) -> DesignResult:
        found: DesignResult = design.find_query_for_weights(rows, _read_vector(design, target, "target"), **options)
        return found

    _solve_and_show(find, keys, values, precision, tolerance, out, as_json)


@design_app.command(context_settings=ALLOW_NEGATIVE_NUMBERS)
def identity(
    keys: KeysArgument,
    values: ValuesOption = None,
    precision: PrecisionOption = None,
    tolerance: ToleranceOption = None,
    out: OutOption = None,
    as_json: JsonOption = False,
) -> None:
    """A query matrix of which row i selects key i."""

    def find(design: Any, rows: Any, options: dict[str, Any]) -> DesignResult:
        found: DesignResult = design.find_identity_queries(rows, **options)
        return found

    _solve_and_show(find, keys, values, precision, tolerance, out, as_json)


@design_app.command("replace-key", context_settings=ALLOW_NEGATIVE_NUMBERS)
def replace_key(
    keys: KeysArgument,
    key: Annotated[int, typer.Argument(help="Which key to replace, counted from 0.")],
    query: Annotated[str, typer.Option(help='The query that stays: "0.5 1", or a file.')],
    select: Annotated[bool, typer.Option("--select", help="The query is to select the new key.")] = False,
    average: Annotated[
        str | None, typer.Option(metavar="WHICH", help="The query is to average these keys, as 0,1,2; or all.")
    ] = None,
    weights: Annotated[str | None, typer.Option(help="The query is to yield these weights.")] = None,
    length: Annotated[float | None, typer.Option(help="The new key is to have this length.")] = None,
    values: ValuesOption = None,
    precision: PrecisionOption = None,
    tolerance: ToleranceOption = None,
    out: OutOption = None,
    as_json: JsonOption = False,
) -> None:
    """A new key in the place of one, with which a given query averages, selects, or yields given weights."""

    def find(design: Any, rows: Any, options: dict[str, Any]) -> DesignResult:
        asked = [
            word for word, given in (("--select", select), ("--average", average), ("--weights", weights)) if given
        ]
        if len(asked) != 1:
            given = f"{' and '.join(asked)} given" if asked else "none given"
            raise RequestError(f"replace-key: say one of --select, --average and --weights; {given}")
        chosen = None
        if average is not None:
            chosen = list(range(len(rows))) if average == "all" else _parse_key_indices(average)
        found: DesignResult = design.replace_key(
            rows,
            _read_vector(design, query, "query"),
            key,
            select=select,
            average=chosen,
            weights=None if weights is None else _read_vector(design, weights, "weights"),
            required_norm=length,
            **options,
        )
        return found

    _solve_and_show(find, keys, values, precision, tolerance, out, as_json)


@design_app.command()
def tour(precision: PrecisionOption = None, out: OutOption = None, as_json: JsonOption = False) -> None:
    """Walk through the questions of a published report, with its answers, ours, and where ours fall short."""
    from headtohead.key_design.guided_tour import build_walkthrough as walk

    _check_output_path(out)
    _show_solution(walk(precision=precision), out, as_json)


def _solve_and_show(
    solve: Callable[[Any, Any, dict[str, Any]], DesignResult],
    keys: str,
    values: str | None,
    precision: float | None,
    tolerance: float | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Read, find, show."""
    from headtohead import key_design

    _check_output_path(out)
    options: dict[str, Any] = {"precision": precision, "tolerance": tolerance}
    options = {name: given for name, given in options.items() if given is not None}
    if values is not None:
        options["values"] = key_design.read_matrix(values, "values")
    _show_solution(solve(key_design, key_design.read_matrix(keys), options), out, as_json)


def _check_output_path(out: Path | None) -> None:
    if out is not None:
        from headtohead.key_design.views.page import check_output_path

        check_output_path(out)


def _show_solution(solution: DesignResult, out: Path | None, as_json: bool) -> None:
    row = solution.to_dict()
    if as_json:
        print_json(row)
    else:
        from headtohead.key_design.views.terminal import print_result

        print_result(row)
    if out is not None:
        from headtohead.key_design.views.page import save_result

        save_result(row, out)
        if not as_json:
            typer.echo(f"picture: {out}")


def _parse_key_indices(text: str) -> list[int]:
    """0,1 or 0 1."""
    words = text.replace(",", " ").split()
    try:
        return [int(word) for word in words]
    except ValueError:
        raise RequestError(f"average: keys counted from 0 are wanted, as 0,1, or all; {text!r} given") from None


def _read_vector(design: Any, text: str, name: str) -> Any:
    """One row."""
    rows = design.read_matrix(text, name)
    if len(rows) != 1:
        raise RequestError(f"{name}: one row of numbers is wanted; {len(rows)} given")
    return rows[0]
