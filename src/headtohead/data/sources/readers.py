"""Files to rows: plain text, TSV, CSV, JSON lines and, where pyarrow is installed, Parquet.

Every file is UTF-8. A file that cannot be read as asked is refused with all its faults at once, each with its line.
"""

from __future__ import annotations

import csv
import importlib
import io
import json
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from headtohead.config.data import ColumnsConfig
from headtohead.data.file_errors import MAX_ITEMS_SHOWN, build_file_error, build_missing_path_error
from headtohead.data.sources.streaming import (
    PARAGRAPH_BLANK_LINE_FRACTION,
    STREAMING_THRESHOLD_BYTES,
    StreamedRows,
    StreamedTextFile,
)
from headtohead.data.splits import RawSplit
from headtohead.errors import DataError, ValidationIssue, suggest

MAX_COUNTED_ERRORS = 1000
"""of one file that are counted"""
PARQUET_BATCH_ROWS = 256
MAX_PARQUET_EXPANSION = 100
"""times its size that a Parquet file may be unpacked to"""
TABLE_SUFFIXES = (".tsv", ".csv", ".jsonl", ".json", ".parquet")

CellValues = Sequence[Any]
NumberedRow = tuple[int, CellValues]


def is_table_file(path: Path) -> bool:
    return path.suffix.lower() in TABLE_SUFFIXES


def read_text(path: Path) -> str:
    """The whole file with plain line ends; refused when it is not there, empty, or not UTF-8."""
    if not path.is_file():
        raise build_missing_path_error(path)
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise build_file_error(path, _find_invalid_utf8(raw)) from None
    if not text.strip():
        raise build_file_error(path, [ValidationIssue("file", "is empty; text was expected")])
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _find_invalid_utf8(raw: bytes) -> list[ValidationIssue]:
    """Where the bytes are not UTF-8. Each run of bad bytes counts once."""
    faults = []
    offset, line, before = 0, 1, 0
    text = raw.decode("utf-8", "surrogateescape")
    for bad in islice(re.finditer("[\udc80-\udcff]+", text), MAX_COUNTED_ERRORS):  # a picture would have millions
        between = text[before : bad.start()]
        offset, line = offset + len(between.encode()), line + between.count("\n")
        found = raw[offset : offset + min(len(bad.group()), 4)].hex(" ")
        faults.append(ValidationIssue(f"byte {offset} (line {line})", f"{found} is not UTF-8; save the file as UTF-8"))
        offset, before = offset + len(bad.group()), bad.end()
    return faults


def read_plain_text(path: Path, *, has_paragraphs: bool | None = None) -> RawSplit:
    """Plain text: a row is a line, or a paragraph where blank lines stand between them.

    `paragraphs` says which; None looks at the text itself. The rows of a large file are not held in memory.
    """
    if path.is_file() and path.stat().st_size > STREAMING_THRESHOLD_BYTES:
        large = StreamedTextFile(path, has_paragraphs)
        return RawSplit(StreamedRows(large), None, (), str(path), "\n\n" if large.has_paragraphs else "\n")
    lines = read_text(path).rstrip("\n").split("\n")
    if has_paragraphs is None:
        has_paragraphs = is_split_into_paragraphs(lines)
    numbered = [(number, line.rstrip()) for number, line in enumerate(lines, start=1)]
    blocks = _group_paragraphs(numbered) if has_paragraphs else [[one] for one in numbered if one[1]]
    rows = tuple("\n".join(text for _, text in block) for block in blocks)
    joint = "\n\n" if has_paragraphs else "\n"
    return RawSplit(rows, None, tuple(block[0][0] for block in blocks), str(path), joint)


def is_split_into_paragraphs(lines: Sequence[str]) -> bool:
    return sum(not line.strip() for line in lines) >= max(1, PARAGRAPH_BLANK_LINE_FRACTION * len(lines))


def _group_paragraphs(numbered: Sequence[tuple[int, str]]) -> list[list[tuple[int, str]]]:
    blocks: list[list[tuple[int, str]]] = [[]]
    for number, line in numbered:
        if line:
            blocks[-1].append((number, line))
        elif blocks[-1]:
            blocks.append([])
    return [block for block in blocks if block]


def read_table(path: Path, columns: ColumnsConfig, *, has_labels: bool) -> RawSplit:
    """The text column and, if asked for, the label column of a TSV, CSV, JSONL or Parquet file."""
    named = {"text": columns.text, "label": columns.label} if has_labels else {"text": columns.text}
    kind = path.suffix.lower()
    if kind in (".jsonl", ".json"):
        found = _read_json_rows(path, named)
    elif kind == ".parquet":
        found = _read_parquet_rows(path, named)
    else:
        found = _read_delimited_rows(path, named)
    return _build_raw_split(path, found, has_labels)


def _build_raw_split(path: Path, numbered_rows: Sequence[NumberedRow], has_labels: bool) -> RawSplit:
    if not numbered_rows:
        raise build_file_error(path, [ValidationIssue("file", "has a header and no rows; rows of text were expected")])
    faults = [fault for number, cells in numbered_rows for fault in _find_cell_errors(number, cells)]
    if faults:
        raise build_file_error(path, faults)
    rows = tuple(str(cells[0]).strip() for _, cells in numbered_rows)
    words = tuple(str(cells[1]).strip() for _, cells in numbered_rows) if has_labels else None
    return RawSplit(rows, words, tuple(number for number, _ in numbered_rows), str(path))


def _find_cell_errors(number: int, cells: CellValues) -> Iterator[ValidationIssue]:
    text, *label = cells
    if not isinstance(text, str):
        yield ValidationIssue(f"line {number}", f"the text is {_format_short_repr(text)}; words were expected")
    elif not text.strip():
        yield ValidationIssue(f"line {number}", "the text is empty")
    elif has_lone_surrogate(text):
        yield ValidationIssue(f"line {number}", "the text holds half of a character (a lone surrogate)")
    for one in label:
        if not isinstance(one, str | int) or not str(one).strip() or has_lone_surrogate(str(one)):
            yield ValidationIssue(
                f"line {number}", f"the label is {_format_short_repr(one)}; a word or a whole number was expected"
            )


def has_lone_surrogate(text: str) -> bool:
    return any("\ud800" <= c <= "\udfff" for c in text)


def _read_delimited_rows(path: Path, columns_by_role: dict[str, str | int]) -> list[NumberedRow]:
    lines = _read_tsv_rows(path) if path.suffix.lower() == ".tsv" else _read_csv_rows(path)
    if not lines:
        raise build_file_error(path, [ValidationIssue("file", "has only empty cells; rows of text were expected")])
    numbers = {name: column for name, column in columns_by_role.items() if isinstance(column, int)}
    if numbers and len(numbers) < len(columns_by_role):
        raise DataError(
            f"{path}: data.columns mixes names and numbers ({_format_columns(columns_by_role)}): names need a header, numbers mean that "  # noqa: E501
            "there is none"
        )
    if numbers:
        at = list(numbers.values())
    else:
        at = _find_column_indices(path, *lines[0], {name: str(column) for name, column in columns_by_role.items()})
    faults = _find_width_errors(lines, at, "the header" if not numbers else f"line {lines[0][0]}")
    if faults:
        raise build_file_error(path, faults)
    return [(number, [cells[i] for i in at]) for number, cells in (lines if numbers else lines[1:])]


def _find_column_indices(path: Path, number: int, header: CellValues, columns_by_role: dict[str, str]) -> list[int]:
    names = [str(one).strip() for one in header]
    faults = []
    for purpose, column in columns_by_role.items():
        if column not in names:
            numbered = ", ".join(f"{one} = {i}" for i, one in enumerate(reversed(list(columns_by_role))))
            message = (
                f"the header has no column {column!r} for the {purpose}: it reads {_format_short_repr(' | '.join(names))}. "  # noqa: E501
                f"A file without a header needs numbers: columns = {{ {numbered} }}"
            )
            near = suggest(column, names)
            faults.append(ValidationIssue(f"line {number}", message, suggestion=near))
    if faults:
        raise build_file_error(path, faults)
    return [names.index(column) for column in columns_by_role.values()]


def _find_width_errors(
    lines: Sequence[NumberedRow], column_indices: Sequence[int], source: str
) -> list[ValidationIssue]:
    """Every line must have as many columns as the first, and those that are asked for."""
    width = len(lines[0][1])
    faults = [
        ValidationIssue(
            f"line {number}",
            f"has {_format_column_count(len(cells))}, {source} has {width}: {_format_short_repr(' | '.join(cells))}",
        )
        for number, cells in lines
        if len(cells) != width
    ]
    if max(column_indices) >= width or min(column_indices) < 0:
        wanted = max(column_indices) if max(column_indices) >= width else min(column_indices)
        message = f"has {_format_column_count(width)} (counted from 0), and column {wanted} was asked for: "
        faults.insert(0, ValidationIssue(f"line {lines[0][0]}", message + _format_short_repr(" | ".join(lines[0][1]))))
    return faults


def _read_tsv_rows(path: Path) -> list[NumberedRow]:
    # No quoting: a quotation mark in a TSV is a quotation mark.
    lines = enumerate(read_text(path).split("\n"), start=1)
    return [(number, line.split("\t")) for number, line in lines if line.strip()]


def _read_csv_rows(path: Path) -> list[NumberedRow]:
    reader = csv.reader(io.StringIO(read_text(path), newline=""), strict=True)
    lines: list[NumberedRow] = []
    try:
        start = 1
        for cells in reader:
            if any(cell.strip() for cell in cells):
                lines.append((start, cells))
            start = reader.line_num + 1
    except csv.Error as error:
        raise build_file_error(path, [ValidationIssue(f"line {reader.line_num}", f"is not CSV: {error}")]) from None
    return lines


def _read_json_rows(path: Path, columns_by_role: dict[str, str | int]) -> list[NumberedRow]:
    """JSON lines, or one JSON list; the number of a list's entry stands for its line."""
    names = _require_column_names(path, columns_by_role)
    text = read_text(path)
    found: list[NumberedRow] = []
    faults = []
    for number, entry in _iter_json_entries(text):
        if isinstance(entry, InvalidJson):
            faults.append(ValidationIssue(f"line {number}", str(entry)))
        elif not isinstance(entry, dict):
            faults.append(
                ValidationIssue(
                    f"line {number}",
                    f"is {_format_short_repr(entry)}; an object with {_format_columns(columns_by_role)} was expected",
                )
            )
        elif absent := [name for name in names if name not in entry]:
            near = suggest(absent[0], entry) if len(faults) < MAX_ITEMS_SHOWN else None
            faults.append(
                ValidationIssue(f"line {number}", f"has no {absent[0]!r}; it has {', '.join(entry)}", suggestion=near)
            )
        else:
            found.append((number, [entry[name] for name in names]))
    if faults:
        raise build_file_error(path, faults)
    return found


def _iter_json_entries(text: str) -> Iterator[tuple[int, Any]]:
    if text.lstrip().startswith("["):
        found = parse_json(text)
        yield from [(found.line, found)] if isinstance(found, InvalidJson) else enumerate(found, start=1)
        return
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield number, parse_json(line)


class InvalidJson(str):
    """Why a text is not JSON, and in which of its lines."""

    line = 1


def parse_json(text: str) -> Any:
    """What the text holds, or a `NoJson`."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        made = InvalidJson(f"is not JSON: {error.msg} at column {error.colno}")
        made.line = error.lineno
        return made
    except RecursionError:
        return InvalidJson("is not JSON that can be read: lists are nested too deep")
    except ValueError as error:  # a number of too many digits
        return InvalidJson(f"is not JSON that can be read: {error}")


def _read_parquet_rows(path: Path, columns_by_role: dict[str, str | int]) -> list[NumberedRow]:
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise DataError(f"{path}: Parquet files need pyarrow; install it with: pip install pyarrow") from None
    names = _require_column_names(path, columns_by_role)
    if not path.is_file():
        raise build_missing_path_error(path)
    room = MAX_PARQUET_EXPANSION * path.stat().st_size + 2**24
    try:
        opened = parquet.ParquetFile(path)
        known = tuple(opened.schema_arrow.names)
        if absent := [name for name in names if name not in known]:
            raise build_file_error(
                path, [ValidationIssue("columns", f"no column {one!r}", known, suggest(one, known)) for one in absent]
            )
        columns: dict[str, list[Any]] = {name: [] for name in names}
        for batch in opened.iter_batches(batch_size=PARQUET_BATCH_ROWS, columns=names):
            for name in names:
                found = batch.column(name).to_pylist()
                columns[name] += found
                room -= sum(len(one) for one in found if isinstance(one, str))
            if room < 0:  # one value, said a million times, takes no room while it is packed
                raise build_file_error(
                    path, [ValidationIssue("file", f"unpacks to more than {MAX_PARQUET_EXPANSION} times its size")]
                )
    except (OSError, ValueError, KeyError, TypeError, NotImplementedError, MemoryError) as error:
        raise build_file_error(path, [ValidationIssue("file", f"is not Parquet that can be read: {error}")]) from None
    return list(enumerate(zip(*(columns[name] for name in names), strict=True), start=1))


def _require_column_names(path: Path, columns_by_role: dict[str, str | int]) -> list[str]:
    if numbers := [name for name, column in columns_by_role.items() if isinstance(column, int)]:
        raise DataError(
            f"{path}: its columns have names, and data.columns.{numbers[0]} is {columns_by_role[numbers[0]]}"
        )
    return [str(column) for column in columns_by_role.values()]


def _format_columns(columns_by_role: dict[str, str | int]) -> str:
    return ", ".join(f"{name} = {column!r}" for name, column in columns_by_role.items())


def _format_column_count(count: int) -> str:
    return f"{count} column{'s' if count != 1 else ''}"


def _format_short_repr(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:56]} ...{text[-1]}"
