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

from headtohead.errors import RequestError, nearest
from headtohead.key_design.solvers import OfKeys, Rows, Vector

SUFFIXES = (".csv", ".tsv", ".txt", ".json")
SHOWN_FAULTS = 10
ROUNDED = 0.01
"""a target whose sum is so near to 1 is taken for rounded figures and divided by its sum"""


def blame(name: str, faults: Sequence[str]) -> RequestError:
    """One error for all that is wrong."""
    if len(faults) == 1:
        return RequestError(f"{name}: {faults[0]}")
    more = [f"and {len(faults) - SHOWN_FAULTS} more"] if len(faults) > SHOWN_FAULTS else []
    return RequestError("\n  ".join([f"{name}: {len(faults)} errors", *faults[:SHOWN_FAULTS], *more]))


def matrix(given: Any, name: str = "keys", rows: int | None = None) -> Rows:
    """Rows of numbers, all of one length, at least one of each."""
    if isinstance(given, str):
        raise RequestError(
            f"{name}: rows of numbers are wanted, not text; headtohead.key_design.inputs.read reads text and files"
        )
    found = _rows_of(given, name)
    if not found:
        raise RequestError(f"{name}: there are no rows of numbers")
    width = len(found[0])
    faults = [
        f"row {at} has {_numbers(len(row))}, row 0 has {width}" for at, row in enumerate(found) if len(row) != width
    ]
    if not width:
        faults.append("row 0 is empty")
    faults += [
        f"row {at}, number {place}: {_said(number)} is not a finite number"
        for at, row in enumerate(found)
        for place, number in enumerate(row)
        if not _is_finite(number)
    ]
    if faults:
        raise blame(f"{name} (rows and numbers count from 0)", faults)
    if rows is not None and len(found) != rows:
        raise RequestError(f"{name}: {len(found)} rows for {rows} keys; each key has one")
    return np.array([[float(number) for number in row] for row in found])


def _rows_of(given: Any, name: str) -> list[list[Any]]:
    """Lists of lists, out of whatever holds rows: lists, numpy arrays, tensors."""
    plain = given.tolist() if callable(getattr(given, "tolist", None)) else given
    if not isinstance(plain, Iterable) or isinstance(plain, str | bytes | dict):
        raise RequestError(f"{name}: rows of numbers are wanted, as [[1, 0], [0, 1]], not {_said(given)}")
    rows = []
    for row in plain:
        row = row.tolist() if callable(getattr(row, "tolist", None)) else row
        if not isinstance(row, Iterable) or isinstance(row, str | bytes | dict):
            raise RequestError(f"{name}: each row is a list of numbers, as in [[1, 0], [0, 1]], not {_said(row)}")
        rows.append(list(row))
    return rows


def vector(given: Any, length: int, name: str, unit: str) -> Vector:
    """One row of numbers, of a known length."""
    one = given.tolist() if callable(getattr(given, "tolist", None)) else given
    if isinstance(one, Sequence) and len(one) == 1 and isinstance(one[0], Sequence) and not isinstance(one[0], str):
        one = one[0]  # a row of a matrix with one row
    if not isinstance(one, Iterable) or isinstance(one, str | bytes | dict):
        raise RequestError(f"{name}: a list of numbers is wanted, not {_said(given)}")
    one = list(one)
    faults = [
        f"number {at}: {_said(number)} is not a finite number"
        for at, number in enumerate(one)
        if not _is_finite(number)
    ]
    if len(one) != length:
        faults.insert(0, f"{_numbers(len(one))} for {length} {unit}")
    if faults:
        raise blame(name, faults)
    return np.array([float(number) for number in one])


def distribution(given: Any, count: int) -> OfKeys:
    """Weights that are wanted: one for each key, none below 0, together 1."""
    wanted = vector(given, count, "target", "keys")
    faults = [f"weight {at} is {weight:g}; a weight is at least 0" for at, weight in enumerate(wanted) if weight < 0]
    if faults:
        raise blame("target", faults)
    if abs(wanted.sum() - 1) > ROUNDED:
        raise RequestError(f"target: the weights sum to {wanted.sum():g}; they must sum to 1")
    return np.asarray(wanted / wanted.sum())


def index(given: Any, count: int, name: str = "key") -> int:
    """A key's place, counted from 0."""
    try:
        at = operator.index(given)
    except TypeError:
        raise RequestError(f"{name}: a whole number from 0 to {count - 1} is wanted, not {_said(given)}") from None
    if not 0 <= at < count:
        raise RequestError(f"{name}: there is no key {at}; {_keys(count)}, counted from 0 to {count - 1}")
    return at


def indices(given: Any, count: int, name: str = "average") -> tuple[int, ...]:
    """Some keys' places, each once."""
    if not isinstance(given, Iterable) or isinstance(given, str):
        raise RequestError(f"{name}: a list of keys' places is wanted, as [0, 1], not {_said(given)}")
    places = [index(one, count, name) for one in given]
    if not places:
        raise RequestError(f"{name}: no keys given; at least one must be there to be averaged")
    if twice := sorted({at for at in places if places.count(at) > 1}):
        raise RequestError(f"{name}: key {twice[0]} is given twice")
    return tuple(places)


def number(given: Any, name: str, allowed: str, fits: Callable[[float], bool]) -> float:
    """A single number that `fits`; `allowed` says so in words."""
    if not _is_finite(given) or not fits(float(given)):
        raise RequestError(f"{name}: {_said(given)} given; {allowed}")
    return float(given)


def precision(given: Any) -> float:
    allowed = "it must lie between 0 and 1, both excluded: softmax gives no key all the weight"
    return number(given, "precision", allowed, lambda one: 1e-9 <= one <= 1 - 1e-15)


def tolerance(given: Any) -> float:
    return number(given, "tolerance", "it must lie between 1e-13 and 0.01", lambda one: 1e-13 <= one <= 0.01)


def read(source: str | Path, name: str = "keys") -> Rows:
    """Rows of numbers from a file (.csv, .tsv, .txt, .json) or from text."""
    path = Path(source)
    if isinstance(source, str) and not _is_file(path):
        if path.suffix.lower() in SUFFIXES:
            raise RequestError(f"{name}: {source}: no such file{_near(path)}")
        return matrix(parse(source, name), name)
    try:
        if path.exists() and not path.is_file():
            raise RequestError(f"{name}: {path}: cannot be read (it is no plain file)")
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise RequestError(f"{name}: {path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise RequestError(f"{name}: {path}: is not text in UTF-8") from None
    return matrix(parse(text, f"{name}: {path}"), f"{name}: {path}")


def _near(path: Path) -> str:
    beside = [one.name for one in path.parent.iterdir()] if path.parent.is_dir() else []
    found = nearest(path.name, beside)
    return f"; did you mean {found!r}?" if found else ""


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a text too long for a name
        return False


def parse(text: str, name: str = "keys") -> list[list[Any]]:
    """Rows from text. What is no number stays as it is, to be named by `matrix` with its place."""
    if text.lstrip().startswith(("[", "{")):
        return _parse_json(text, name)
    lines = [line for piece in text.splitlines() for line in piece.partition("#")[0].split(";")]
    rows = [_cells(line) for line in lines]
    return [[_number_or_text(cell) for cell in row] for row in rows if row]


def _cells(line: str) -> list[str]:
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
    return _rows_of(found, name)


def _number_or_text(cell: str) -> float | str:
    try:
        return float(cell)
    except ValueError:
        return cell


def _is_finite(number: Any) -> bool:
    if isinstance(number, bool | str | bytes):
        return False
    try:
        return math.isfinite(number)
    except (TypeError, OverflowError):
        return False


def _said(given: Any) -> str:
    said = repr(given)
    return said if len(said) <= 40 else said[:37] + "..."


def _numbers(count: int) -> str:
    return "1 number" if count == 1 else f"{count} numbers"


def _keys(count: int) -> str:
    return "there is 1 key" if count == 1 else f"there are {count} keys"
