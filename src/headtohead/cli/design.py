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
    help="Find queries and keys that produce given attention weights.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(design_app, name="design")

KeysArgument = Annotated[
    str,
    typer.Argument(
        metavar="KEYS",
        help='Key vectors, one per row, in a .csv or .json file, or as text: "0.5 1; 1 0; -1 2".',
    ),
]
KeyIndexArgument = Annotated[int, typer.Argument(metavar="INDEX", help="Index of the key, counted from 0.")]
ValuesOption = Annotated[
    str | None,
    typer.Option(
        metavar="MATRIX",
        help="Value vectors, one row per key, as a file or as text. The output of the attention is then shown, too.",
    ),
]
PrecisionOption = Annotated[
    float | None,
    typer.Option(
        metavar="X",
        help="Precision to reach, between 0 and 1: the total attention weight of the intended keys. [default: 0.999]",
    ),
]
ToleranceOption = Annotated[
    float | None,
    typer.Option(metavar="X", help="Distance below which keys count as equal, relative to their size. [default: 1e-9]"),
]
OutOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Also save a picture of the solution: .html, .svg, .pdf or .png.")
]

# Keys may start with a minus sign, which must not be parsed as an option.
ALLOW_NEGATIVE_NUMBERS = {"ignore_unknown_options": True}


@design_app.command(context_settings=ALLOW_NEGATIVE_NUMBERS)
def select(
    keys: KeysArgument,
    key_index: KeyIndexArgument,
    values: ValuesOption = None,
    precision: PrecisionOption = None,
    tolerance: ToleranceOption = None,
    out: OutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find a query that attends only to one key.

    If there is none, the reason and the closest approximation are printed.
    """
    from headtohead.key_design import find_selecting_query

    solve = partial(find_selecting_query, key_index=key_index)
    _solve_and_show(solve, keys, values, precision, tolerance, out, as_json)


@design_app.command(context_settings=ALLOW_NEGATIVE_NUMBERS)
def average(
    keys: KeysArgument,
    indices: Annotated[
        str, typer.Argument(metavar="INDICES", help="Indices of the keys, counted from 0, as in 0,1; or all.")
    ] = "all",
    values: ValuesOption = None,
    precision: PrecisionOption = None,
    tolerance: ToleranceOption = None,
    out: OutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find a query that attends equally to the given keys only."""
    from headtohead.key_design import find_averaging_query

    solve = partial(find_averaging_query, indices=None if indices == "all" else _parse_key_indices(indices))
    _solve_and_show(solve, keys, values, precision, tolerance, out, as_json)


@design_app.command(context_settings=ALLOW_NEGATIVE_NUMBERS)
def weights(
    keys: KeysArgument,
    target_weights: Annotated[
        str,
        typer.Argument(metavar="WEIGHTS", help='One attention weight per key, as text ("0.5 0.3 0.2") or as a file.'),
    ],
    values: ValuesOption = None,
    precision: PrecisionOption = None,
    tolerance: ToleranceOption = None,
    out: OutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find a query that produces the given attention weights."""
    from headtohead.key_design import find_query_for_weights

    solve = partial(find_query_for_weights, target=_read_vector_option(target_weights, "target"))
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
    """Find one query per key that attends only to that key.

    The queries are the rows of a matrix; their attention weights are an identity matrix.
    """
    from headtohead.key_design import find_identity_queries

    _solve_and_show(find_identity_queries, keys, values, precision, tolerance, out, as_json)


@design_app.command("replace-key", context_settings=ALLOW_NEGATIVE_NUMBERS)
def replace_key(
    keys: KeysArgument,
    key_index: KeyIndexArgument,
    query: Annotated[
        str, typer.Option(metavar="VECTOR", help='The query, which does not change, as text ("0.5 1") or as a file.')
    ],
    attend_to_new_key: Annotated[
        bool, typer.Option("--attend-to-new-key", help="Let the query attend only to the new key.")
    ] = False,
    attend_equally_to: Annotated[
        str | None,
        typer.Option(metavar="INDICES", help="Let the query attend equally to these keys, as in 0,1,2; or to all."),
    ] = None,
    attention_weights: Annotated[
        str | None, typer.Option(metavar="VECTOR", help="Let the query produce these attention weights, one per key.")
    ] = None,
    key_norm: Annotated[
        float | None, typer.Option(metavar="X", help="Norm that the new key must have. [default: any]")
    ] = None,
    values: ValuesOption = None,
    precision: PrecisionOption = None,
    tolerance: ToleranceOption = None,
    out: OutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change one key so that a given query attends as intended.

    Exactly one of --attend-to-new-key, --attend-equally-to and --attention-weights is required.
    """
    from headtohead import key_design

    target_options = {
        "--attend-to-new-key": attend_to_new_key,
        "--attend-equally-to": attend_equally_to,
        "--attention-weights": attention_weights,
    }
    given_options = [option for option, value in target_options.items() if value]
    if len(given_options) != 1:
        raise RequestError(
            f"replace-key: give exactly one of {', '.join(target_options)}; got {' and '.join(given_options) or 'none'}"
        )
    averaged_indices = None
    if attend_equally_to is not None:
        num_keys = len(key_design.read_matrix(keys))
        averaged_indices = (
            list(range(num_keys)) if attend_equally_to == "all" else _parse_key_indices(attend_equally_to)
        )
    solve = partial(
        key_design.replace_key,
        query=_read_vector_option(query, "query"),
        key_index=key_index,
        select=attend_to_new_key,
        average=averaged_indices,
        weights=None if attention_weights is None else _read_vector_option(attention_weights, "weights"),
        required_norm=key_norm,
    )
    _solve_and_show(solve, keys, values, precision, tolerance, out, as_json)


@design_app.command()
def tour(precision: PrecisionOption = None, out: OutOption = None, as_json: JsonOption = False) -> None:
    """Answer the questions of a published course report."""
    from headtohead.key_design.walkthrough import build_walkthrough

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
    """Read the keys and values of a `h2h design` command, call `solve` with its options, and show the solution."""
    from headtohead import key_design

    _check_output_path(out)
    given_options: dict[str, Any] = {"precision": precision, "tolerance": tolerance}
    solver_options = {name: value for name, value in given_options.items() if value is not None}
    if values is not None:
        solver_options["values"] = key_design.read_matrix(values, "values")
    _show_solution(solve(key_design.read_matrix(keys), **solver_options), out, as_json)


def _check_output_path(out: Path | None) -> None:
    """Raise an error before `h2h design` solves anything if --out names a picture format that cannot be written."""
    if out is not None:
        from headtohead.presentation.picture_files import check_picture_path

        check_picture_path(out)


def _show_solution(solution: DesignResult, out: Path | None, as_json: bool) -> None:
    """Print the solution of `h2h design`, and save its picture if `out` is given."""
    solution_dict = solution.to_dict()
    if as_json:
        print_json(solution_dict)
    else:
        from headtohead.key_design.views.terminal import print_result

        print_result(solution_dict)
    if out is not None:
        from headtohead.key_design.views.page import save_result

        save_result(solution_dict, out)
        if not as_json:
            echo(f"picture: {out}")


def _parse_key_indices(text: str) -> list[int]:
    """Parse the key indices of `h2h design`, such as `0,1` or `0 1`."""
    words = text.replace(",", " ").split()
    try:
        return [int(word) for word in words]
    except ValueError:
        raise RequestError(f"average: expected key indices such as 0,1, or all; got {text!r}") from None


def _read_vector_option(argument: str, name: str) -> Any:
    """Read a vector option of `h2h design`, given as text or as a file; error messages use `name`."""
    from headtohead import key_design

    matrix = key_design.read_matrix(argument, name)
    if len(matrix) != 1:
        raise RequestError(f"{name}: expected one row of numbers, got {len(matrix)}")
    return matrix[0]
