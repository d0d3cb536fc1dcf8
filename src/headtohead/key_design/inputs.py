"""Keys, values, queries and targets as people give them: arrays, lists, a CSV or JSON file, or text on the command line
("0.5 0.5; 1 0": numbers divided by spaces or commas, rows by semicolons or lines). Everything that is wrong with them
is said at once, with its row.
"""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from headtohead.errors import RequestError, suggest
from headtohead.key_design.solvers import KeyMatrix, PerKeyVector, Vector

SUPPORTED_SUFFIXES = (".csv", ".tsv", ".txt", ".json")
MAX_SHOWN_ERRORS = 10
SUM_TOLERANCE = 0.01
"""a target whose sum is so near to 1 is taken for rounded figures and divided by its sum"""


def build_request_error(name: str, errors: Sequence[str]) -> RequestError:
    """One error for all that is wrong."""
    if len(errors) == 1:
        return RequestError(f"{name}: {errors[0]}")
    more = [f"and {len(errors) - MAX_SHOWN_ERRORS} more"] if len(errors) > MAX_SHOWN_ERRORS else []
    return RequestError("\n  ".join([f"{name}: {len(errors)} errors", *errors[:MAX_SHOWN_ERRORS], *more]))


def validate_matrix(value: Any, name: str = "keys", expected_rows: int | None = None) -> KeyMatrix:
    """Rows of numbers, all of one length, at least one of each."""
    if isinstance(value, str):
        raise RequestError(
            f"{name}: rows of numbers are wanted, not text; headtohead.key_design.inputs.read_matrix reads text and files"  # noqa: E501
        )
    found = _convert_to_rows(value, name)
    if not found:
        raise RequestError(f"{name}: there are no rows of numbers")
    width = len(found[0])
    faults = [
        f"row {at} has {_format_number_count(len(row))}, row 0 has {width}"
        for at, row in enumerate(found)
        if len(row) != width
    ]
    if not width:
        faults.append("row 0 is empty")
    faults += [
        f"row {at}, number {place}: {_format_value(number)} is not a finite number"
        for at, row in enumerate(found)
        for place, number in enumerate(row)
        if not _is_finite_number(number)
    ]
    if faults:
        raise build_request_error(f"{name} (rows and numbers count from 0)", faults)
    if expected_rows is not None and len(found) != expected_rows:
        raise RequestError(f"{name}: {len(found)} rows for {expected_rows} keys; each key has one")
    return np.array([[float(number) for number in row] for row in found])


def _convert_to_rows(value: Any, name: str) -> list[list[Any]]:
    """Lists of lists, out of whatever holds rows: lists, numpy arrays, tensors."""
    plain = value.tolist() if callable(getattr(value, "tolist", None)) else value
    if not isinstance(plain, Iterable) or isinstance(plain, str | bytes | dict):
        raise RequestError(f"{name}: rows of numbers are wanted, as [[1, 0], [0, 1]], not {_format_value(value)}")
    rows = []
    for row in plain:
        row = row.tolist() if callable(getattr(row, "tolist", None)) else row
        if not isinstance(row, Iterable) or isinstance(row, str | bytes | dict):
            raise RequestError(
                f"{name}: each row is a list of numbers, as in [[1, 0], [0, 1]], not {_format_value(row)}"
            )
        rows.append(list(row))
    return rows


def validate_vector(value: Any, expected_length: int, name: str, unit: str) -> Vector:
    """One row of numbers, of a known length."""
    one = value.tolist() if callable(getattr(value, "tolist", None)) else value
    if isinstance(one, Sequence) and len(one) == 1 and isinstance(one[0], Sequence) and not isinstance(one[0], str):
        one = one[0]  # a row of a matrix with one row
    if not isinstance(one, Iterable) or isinstance(one, str | bytes | dict):
        raise RequestError(f"{name}: a list of numbers is wanted, not {_format_value(value)}")
    one = list(one)
    faults = [
        f"number {at}: {_format_value(number)} is not a finite number"
        for at, number in enumerate(one)
        if not _is_finite_number(number)
    ]
    if len(one) != expected_length:
        faults.insert(0, f"{_format_number_count(len(one))} for {expected_length} {unit}")
    if faults:
        raise build_request_error(name, faults)
    return np.array([float(number) for number in one])


def validate_distribution(value: Any, num_keys: int) -> PerKeyVector:
    """Weights that are wanted: one for each key, none below 0, together 1."""
    wanted = validate_vector(value, num_keys, "target", "keys")
    faults = [f"weight {at} is {weight:g}; a weight is at least 0" for at, weight in enumerate(wanted) if weight < 0]
    if faults:
        raise build_request_error("target", faults)
    if abs(wanted.sum() - 1) > SUM_TOLERANCE:
        raise RequestError(f"target: the weights sum to {wanted.sum():g}; they must sum to 1")
    return np.asarray(wanted / wanted.sum())


def validate_index(value: Any, num_keys: int, name: str = "key") -> int:
    """A key's place, counted from 0."""
    try:
        at = operator.index(value)
    except TypeError:
        raise RequestError(
            f"{name}: a whole number from 0 to {num_keys - 1} is wanted, not {_format_value(value)}"
        ) from None
    if not 0 <= at < num_keys:
        raise RequestError(
            f"{name}: there is no key {at}; {_format_key_count(num_keys)}, counted from 0 to {num_keys - 1}"
        )
    return at


def validate_indices(value: Any, num_keys: int, name: str = "average") -> tuple[int, ...]:
    """Some keys' places, each once."""
    if not isinstance(value, Iterable) or isinstance(value, str):
        raise RequestError(f"{name}: a list of keys' places is wanted, as [0, 1], not {_format_value(value)}")
    places = [validate_index(one, num_keys, name) for one in value]
    if not places:
        raise RequestError(f"{name}: no keys given; at least one must be there to be averaged")
    if twice := sorted({at for at in places if places.count(at) > 1}):
        raise RequestError(f"{name}: key {twice[0]} is given twice")
    return tuple(places)


def validate_number(value: Any, name: str, requirement: str, is_valid: Callable[[float], bool]) -> float:
    """A single number that `fits`; `allowed` says so in words."""
    if not _is_finite_number(value) or not is_valid(float(value)):
        raise RequestError(f"{name}: {_format_value(value)} given; {requirement}")
    return float(value)


def validate_precision(value: Any) -> float:
    allowed = "it must lie between 0 and 1, both excluded: softmax gives no key all the weight"
    return validate_number(value, "precision", allowed, lambda one: 1e-9 <= one <= 1 - 1e-15)


def validate_tolerance(value: Any) -> float:
    return validate_number(value, "tolerance", "it must lie between 1e-13 and 0.01", lambda one: 1e-13 <= one <= 0.01)


def read_matrix(source: str | Path, name: str = "keys") -> KeyMatrix:
    """Rows of numbers from a file (.csv, .tsv, .txt, .json) or from text."""
    path = Path(source)
    if isinstance(source, str) and not _is_file(path):
        if path.suffix.lower() in SUPPORTED_SUFFIXES:
            raise RequestError(f"{name}: {source}: no such file{_suggest_file_name(path)}")
        return validate_matrix(parse_rows(source, name), name)
    try:
        if path.exists() and not path.is_file():
            raise RequestError(f"{name}: {path}: cannot be read (it is no plain file)")
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise RequestError(f"{name}: {path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise RequestError(f"{name}: {path}: is not text in UTF-8") from None
    return validate_matrix(parse_rows(text, f"{name}: {path}"), f"{name}: {path}")


def _suggest_file_name(path: Path) -> str:
    beside = [one.name for one in path.parent.iterdir()] if path.parent.is_dir() else []
    found = suggest(path.name, beside)
    return f"; did you mean {found!r}?" if found else ""


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a text too long for a name
        return False


def parse_rows(text: str, name: str = "keys") -> list[list[Any]]:
    """Rows from text. What is no number stays as it is, to be named by `matrix` with its place."""
    if text.lstrip().startswith(("[", "{")):
        return _parse_json(text, name)
    lines = [line for piece in text.splitlines() for line in piece.partition("#")[0].split(";")]
    rows = [_split_cells(line) for line in lines]
    return [[_parse_cell(cell) for cell in row] for row in rows if row]


def _split_cells(line: str) -> list[str]:
    """Divided by commas or tabs if there are any, so that an empty cell is seen; by spaces otherwise."""
    for mark in (",", "\t"):
        if mark in line:
            return [cell.strip() for cell in line.strip(" ").split(mark)]
    return line.split()


def _parse_json(text: str, name: str) -> list[list[Any]]:
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise RequestError(f"{name}: is no JSON (line {error.lineno}: {error.msg})") from None
    except RecursionError:
        raise RequestError(f"{name}: is no JSON that can be read (nested too deep)") from None
    except ValueError as error:  # a number of too many digits
        raise RequestError(f"{name}: is no JSON that can be read ({error})") from None
    word = name.partition(":")[0]
    if isinstance(found, dict):
        if word not in found:
            given = ", ".join(found) or "nothing"
            raise RequestError(f"{name}: a list of rows, or an object with {word!r}, is wanted; it has {given}")
        found = found[word]
    if isinstance(found, list) and found and not any(isinstance(row, list) for row in found):
        found = [found]
    return _convert_to_rows(found, name)


def _parse_cell(cell: str) -> float | str:
    try:
        return float(cell)
    except ValueError:
        return cell


def _is_finite_number(number: Any) -> bool:
    if isinstance(number, bool | str | bytes):
        return False
    try:
        return math.isfinite(number)
    except (TypeError, OverflowError):
        return False


def _format_value(given: Any) -> str:
    said = repr(given)
    return said if len(said) <= 40 else said[:37] + "..."


def _format_number_count(count: int) -> str:
    return "1 number" if count == 1 else f"{count} numbers"


def _format_key_count(count: int) -> str:
    return "there is 1 key" if count == 1 else f"there are {count} keys"
