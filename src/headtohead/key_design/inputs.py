"""Read and validate keys, values, queries and targets.

They are arrays, lists, CSV or JSON files, or text such as "0.5 0.5; 1 0". In text, numbers are separated by spaces or
commas, and rows by semicolons or newlines. All errors are reported at once, with their row.
"""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from headtohead.errors import RequestError, format_suggestion
from headtohead.key_design.convex_solvers import KeyMatrix, PerKeyVector, Vector

SUPPORTED_SUFFIXES = (".csv", ".tsv", ".txt", ".json")
MAX_SHOWN_ERRORS = 10
SUM_TOLERANCE = 0.01
"""targets whose sum is this close to 1 are assumed to be rounded and are normalized"""


def build_input_error(input_name: str, errors: Sequence[str]) -> RequestError:
    """Return one error that lists everything wrong with a matrix, vector or target."""
    if len(errors) == 1:
        return RequestError(f"{input_name}: {errors[0]}")
    omitted = [f"and {len(errors) - MAX_SHOWN_ERRORS} more"] if len(errors) > MAX_SHOWN_ERRORS else []
    return RequestError("\n  ".join([f"{input_name}: {len(errors)} errors", *errors[:MAX_SHOWN_ERRORS], *omitted]))


def validate_matrix(value: Any, name: str = "keys", expected_rows: int | None = None) -> KeyMatrix:
    """Return the input as a matrix with at least one row and column; raise an error that names every invalid cell."""
    if isinstance(value, str):
        raise RequestError(
            f"{name}: expected rows of numbers, got text; use headtohead.key_design.read_matrix for text and files"
        )
    rows = _convert_to_rows(value, name)
    if not rows:
        raise RequestError(f"{name}: there are no rows of numbers")
    row_length = len(rows[0])
    errors = [
        f"row {row_index} has {_format_number_count(len(row))}, row 0 has {row_length}"
        for row_index, row in enumerate(rows)
        if len(row) != row_length
    ]
    if not row_length:
        errors.append("row 0 is empty")
    errors += [
        f"row {row_index}, number {column_index}: {_format_value(number)} is not a finite number"
        for row_index, row in enumerate(rows)
        for column_index, number in enumerate(row)
        if not _is_finite_number(number)
    ]
    if errors:
        raise build_input_error(f"{name} (rows and numbers count from 0)", errors)
    if expected_rows is not None and len(rows) != expected_rows:
        raise RequestError(f"{name}: {len(rows)} rows for {expected_rows} keys; each key has one")
    return np.array([[float(number) for number in row] for row in rows])


def _convert_to_rows(value: Any, name: str) -> list[list[Any]]:
    """Convert an input, lists, numpy arrays or tensors, to a list of lists."""
    rows = _convert_to_list(value, f"{name}: expected rows of numbers such as [[1, 0], [0, 1]]")
    return [
        _convert_to_list(row, f"{name}: each row must be a list of numbers, as in [[1, 0], [0, 1]]") for row in rows
    ]


def _convert_to_list(value: Any, expectation: str) -> list[Any]:
    """Convert a list, numpy array or tensor to a list; for other types, the error message begins with `expectation`."""
    plain_value = value.tolist() if callable(getattr(value, "tolist", None)) else value
    if not isinstance(plain_value, Iterable) or isinstance(plain_value, str | bytes | dict):
        raise RequestError(f"{expectation}, got {_format_value(value)}")
    return list(plain_value)


def validate_vector(value: Any, expected_length: int, name: str, unit: str) -> Vector:
    """Return the input as a vector of the expected length."""
    numbers = _convert_to_list(value, f"{name}: expected a list of numbers")
    if len(numbers) == 1 and isinstance(numbers[0], list | tuple):
        numbers = list(numbers[0])  # a matrix with one row
    errors = [
        f"number {index}: {_format_value(number)} is not a finite number"
        for index, number in enumerate(numbers)
        if not _is_finite_number(number)
    ]
    if len(numbers) != expected_length:
        errors.insert(0, f"{_format_number_count(len(numbers))} for {expected_length} {unit}")
    if errors:
        raise build_input_error(name, errors)
    return np.array([float(number) for number in numbers])


def validate_distribution(value: Any, num_keys: int) -> PerKeyVector:
    """Return the input as target weights: one per key, nonnegative, summing to 1."""
    weights = validate_vector(value, num_keys, "target", "keys")
    negative_weights = [(index, weight) for index, weight in enumerate(weights) if weight < 0]
    if errors := [f"weight {index} is {weight:g}; weights must be nonnegative" for index, weight in negative_weights]:
        raise build_input_error("target", errors)
    if abs(weights.sum() - 1) > SUM_TOLERANCE:
        raise RequestError(f"target: the weights sum to {weights.sum():g}; they must sum to 1")
    return np.asarray(weights / weights.sum())


def validate_index(value: Any, num_keys: int, name: str = "key") -> int:
    """Return the input as a key index, counted from 0."""
    try:
        index = operator.index(value)
    except TypeError:
        raise RequestError(
            f"{name}: expected an integer from 0 to {num_keys - 1}, got {_format_value(value)}"
        ) from None
    if not 0 <= index < num_keys:
        existing_keys = "there is 1 key" if num_keys == 1 else f"there are {num_keys} keys"
        raise RequestError(f"{name}: there is no key {index}; {existing_keys}, counted from 0")
    return index


def validate_indices(value: Any, num_keys: int, name: str = "average") -> tuple[int, ...]:
    """Return the input as distinct key indices."""
    if not isinstance(value, Iterable) or isinstance(value, str):
        raise RequestError(f"{name}: expected a list of key indices such as [0, 1], got {_format_value(value)}")
    indices = [validate_index(index, num_keys, name) for index in value]
    if not indices:
        raise RequestError(f"{name}: expected at least one key, got none")
    if repeated_indices := sorted({index for index in indices if indices.count(index) > 1}):
        raise RequestError(f"{name}: key {repeated_indices[0]} is given twice")
    return tuple(indices)


def validate_number(value: Any, name: str, requirement: str, is_valid: Callable[[float], bool]) -> float:
    """Return a finite number that satisfies `is_valid`; `requirement` describes the condition."""
    if not _is_finite_number(value) or not is_valid(float(value)):
        raise RequestError(f"{name}: {requirement}, got {_format_value(value)}")
    return float(value)


def validate_precision(value: Any) -> float:
    """Return the required precision of a query."""
    requirement = "must be strictly between 0 and 1, because softmax weights are positive"
    return validate_number(value, "precision", requirement, lambda number: 1e-9 <= number <= 1 - 1e-15)


def validate_tolerance(value: Any) -> float:
    """Return the distance below which keys count as equal."""
    return validate_number(value, "tolerance", "must be between 1e-13 and 0.01", lambda number: 1e-13 <= number <= 0.01)


def read_matrix(source: str | Path, name: str = "keys") -> KeyMatrix:
    """Read an input matrix from a file (.csv, .tsv, .txt, .json) or from text."""
    path = Path(source)
    if isinstance(source, str) and not _is_existing_file(path):
        if path.suffix.lower() in SUPPORTED_SUFFIXES:
            file_names = [sibling.name for sibling in path.parent.iterdir()] if path.parent.is_dir() else []
            raise RequestError(f"{name}: {source}: no such file{format_suggestion(path.name, file_names)}")
        return validate_matrix(parse_matrix_text(source, name), name)
    try:
        if path.exists() and not path.is_file():
            raise RequestError(f"{name}: {path}: cannot be read (not a regular file)")
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise RequestError(f"{name}: {path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise RequestError(f"{name}: {path}: is not UTF-8 text") from None
    return validate_matrix(parse_matrix_text(text, f"{name}: {path}"), f"{name}: {path}")


def _is_existing_file(path: Path) -> bool:
    """Return whether an input is the path of a file; text that is no path counts as no file."""
    try:
        return path.is_file()
    except OSError:  # too long for a file name
        return False


def parse_matrix_text(text: str, name: str = "keys") -> list[list[Any]]:
    """Parse the text of an input matrix into rows.

    Cells that are not numbers stay strings so that `validate_matrix` can name them.
    """
    if text.lstrip().startswith(("[", "{")):
        return _parse_json_matrix(text, name)
    lines = [line for raw_line in text.splitlines() for line in raw_line.partition("#")[0].split(";")]
    rows = [_split_cells(line) for line in lines]
    return [[_parse_cell(cell) for cell in row] for row in rows if row]


def _split_cells(line: str) -> list[str]:
    """Split a line of an input matrix at commas or tabs, so that empty cells are detected, or else at whitespace."""
    for separator in (",", "\t"):
        if separator in line:
            return [cell.strip() for cell in line.strip(" ").split(separator)]
    return line.split()


def _parse_json_matrix(text: str, name: str) -> list[list[Any]]:
    """Parse a JSON input: a list of rows, a single row, or an object that contains either under the key `name`."""
    try:
        parsed_value = json.loads(text)
    except json.JSONDecodeError as error:
        raise RequestError(f"{name}: is not valid JSON (line {error.lineno}: {error.msg})") from None
    except RecursionError:
        raise RequestError(f"{name}: is not valid JSON (nested too deeply)") from None
    except ValueError as error:  # a number with too many digits
        raise RequestError(f"{name}: is not valid JSON ({error})") from None
    key = name.partition(":")[0]
    if isinstance(parsed_value, dict):
        if key not in parsed_value:
            given_keys = ", ".join(parsed_value) or "nothing"
            raise RequestError(
                f"{name}: expected a list of rows or an object with {key!r}, got an object with {given_keys}"
            )
        parsed_value = parsed_value[key]
    if isinstance(parsed_value, list) and parsed_value and not any(isinstance(row, list) for row in parsed_value):
        parsed_value = [parsed_value]
    return _convert_to_rows(parsed_value, name)


def _parse_cell(cell: str) -> float | str:
    """Return the number in a cell of an input matrix, or its text if it is no number."""
    try:
        return float(cell)
    except ValueError:
        return cell


def _is_finite_number(number: Any) -> bool:
    """Return whether an input value is a finite number; strings and booleans do not count."""
    if isinstance(number, bool | str | bytes):
        return False
    try:
        return math.isfinite(number)
    except (TypeError, OverflowError):
        return False


def _format_value(value: Any) -> str:
    """Return an invalid value for an error message, shortened to 40 characters."""
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _format_number_count(num_numbers: int) -> str:
    return "1 number" if num_numbers == 1 else f"{num_numbers} numbers"
