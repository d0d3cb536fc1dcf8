"""`h2h design`: find queries and keys that produce given attention weights."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headtohead.cli.app import JsonOption, app, echo, print_json
from headtohead.errors import RequestError

if TYPE_CHECKING:
    from headtohead.key_design.solutions import DesignResult

design_app = typer.Typer(
    help="Find queries and keys with given attention weights.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(design_app, name="design")

KeysArgument = Annotated[
    str, typer.Argument(metavar="KEYS", help='.csv or .json file with one key per row, or "0.5 1; 1 0; -1 2".')
]
ValuesOption = Annotated[
    str | None, typer.Option(help="Values, one row per key, as a file or text; also show the output.")
]
PrecisionOption = Annotated[
    float | None, typer.Option(help="Required attention weight, between 0 and 1. [default: 0.999]")
]
ToleranceOption = Annotated[
    float | None, typer.Option(help="Relative distance below which keys count as equal. [default: 1e-9]")
]
OutOption = Annotated[Path | None, typer.Option(help="Also save a picture: .html, .svg, .pdf or .png.")]

# Keys may start with a minus sign, which must not be parsed as an option.
ALLOW_NEGATIVE_NUMBERS = {"ignore_unknown_options": True}


@design_app.command(context_settings=ALLOW_NEGATIVE_NUMBERS)
def select(
    keys: KeysArgument,
    key: Annotated[int, typer.Argument(help="Index of the key, counted from 0.")],
    values: ValuesOption = None,
    precision: PrecisionOption = None,
    tolerance: ToleranceOption = None,
    out: OutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find a query that selects one key, or prove that there is none and show the best."""
    from headtohead.key_design import find_selecting_query

    solve = partial(find_selecting_query, key_index=key)
    _solve_and_show(solve, keys, values, precision, tolerance, out, as_json)


@design_app.command(context_settings=ALLOW_NEGATIVE_NUMBERS)
def average(
    keys: KeysArgument,
    chosen: Annotated[str, typer.Argument(metavar="[WHICH]", help="Indices of the keys, e.g. 0,1; or all.")] = "all",
    values: ValuesOption = None,
    precision: PrecisionOption = None,
    tolerance: ToleranceOption = None,
    out: OutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find a query with equal weights on some keys and none on the others."""
    from headtohead.key_design import find_averaging_query

    solve = partial(find_averaging_query, indices=None if chosen == "all" else _parse_key_indices(chosen))
    _solve_and_show(solve, keys, values, precision, tolerance, out, as_json)


@design_app.command(context_settings=ALLOW_NEGATIVE_NUMBERS)
def weights(
    keys: KeysArgument,
    target: Annotated[str, typer.Argument(metavar="TARGET", help='Attention weights, as "0.5 0.3 0.2" or a file.')],
    values: ValuesOption = None,
    precision: PrecisionOption = None,
    tolerance: ToleranceOption = None,
    out: OutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find a query that yields the given attention weights."""
    from headtohead.key_design import find_query_for_weights

    solve = partial(find_query_for_weights, target=_read_vector(target, "target"))
    _solve_and_show(solve, keys, values, precision, tolerance, out, as_json)


@design_app.command(context_settings=ALLOW_NEGATIVE_NUMBERS)
def identity(
    keys: KeysArgument,
    values: ValuesOption = None,
    precision: PrecisionOption = None,
    tolerance: ToleranceOption = None,
    out: OutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find a query matrix whose row i selects key i."""
    from headtohead.key_design import find_identity_queries

    _solve_and_show(find_identity_queries, keys, values, precision, tolerance, out, as_json)


@design_app.command("replace-key", context_settings=ALLOW_NEGATIVE_NUMBERS)
def replace_key(
    keys: KeysArgument,
    key: Annotated[int, typer.Argument(help="Index of the key to replace, counted from 0.")],
    query: Annotated[str, typer.Option(help='Fixed query, as "0.5 1" or a file.')],
    select: Annotated[bool, typer.Option("--select", help="The query must select the new key.")] = False,
    average: Annotated[
        str | None, typer.Option(metavar="WHICH", help="The query must average these keys, e.g. 0,1,2; or all.")
    ] = None,
    weights: Annotated[str | None, typer.Option(help="The query must yield these weights.")] = None,
    length: Annotated[float | None, typer.Option(help="Length of the new key.")] = None,
    values: ValuesOption = None,
    precision: PrecisionOption = None,
    tolerance: ToleranceOption = None,
    out: OutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find a replacement key so that a fixed query selects, averages or yields given weights."""
    from headtohead import key_design

    goals = {"--select": select, "--average": average, "--weights": weights}
    given_options = [option for option, value in goals.items() if value]
    if len(given_options) != 1:
        message = f"replace-key: give exactly one of {', '.join(goals)}; got {' and '.join(given_options) or 'none'}"
        raise RequestError(message)
    chosen = None
    if average is not None:
        num_keys = len(key_design.read_matrix(keys))
        chosen = list(range(num_keys)) if average == "all" else _parse_key_indices(average)
    solve = partial(
        key_design.replace_key,
        query=_read_vector(query, "query"),
        key_index=key,
        select=select,
        average=chosen,
        weights=None if weights is None else _read_vector(weights, "weights"),
        required_norm=length,
    )
    _solve_and_show(solve, keys, values, precision, tolerance, out, as_json)


@design_app.command()
def tour(precision: PrecisionOption = None, out: OutOption = None, as_json: JsonOption = False) -> None:
    """Walk through the questions of a published report, with its answers and ours."""
    from headtohead.key_design.guided_tour import build_walkthrough

    _check_output_path(out)
    _show_solution(build_walkthrough(precision=precision), out, as_json)


def _solve_and_show(
    solve: Callable[..., DesignResult],
    keys: str,
    values: str | None,
    precision: float | None,
    tolerance: float | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Read keys and values, call `solve` with them and the given options, and show the solution."""
    from headtohead import key_design

    _check_output_path(out)
    options: dict[str, Any] = {"precision": precision, "tolerance": tolerance}
    options = {name: value for name, value in options.items() if value is not None}
    if values is not None:
        options["values"] = key_design.read_matrix(values, "values")
    _show_solution(solve(key_design.read_matrix(keys), **options), out, as_json)


def _check_output_path(out: Path | None) -> None:
    """Raise an error if the picture cannot be written, before anything is solved."""
    if out is not None:
        from headtohead.presentation.picture_files import check_picture_path

        check_picture_path(out)


def _show_solution(solution: DesignResult, out: Path | None, as_json: bool) -> None:
    """Print the solution, and save its picture if `out` is given."""
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
            echo(f"picture: {out}")


def _parse_key_indices(text: str) -> list[int]:
    """Parse indices such as `0,1` or `0 1`."""
    words = text.replace(",", " ").split()
    try:
        return [int(word) for word in words]
    except ValueError:
        raise RequestError(f"average: expected key indices such as 0,1, or all; got {text!r}") from None


def _read_vector(text: str, name: str) -> Any:
    """Read a vector from a file or text; `name` is used in error messages."""
    from headtohead import key_design

    rows = key_design.read_matrix(text, name)
    if len(rows) != 1:
        raise RequestError(f"{name}: expected one row of numbers, got {len(rows)}")
    return rows[0]
