"""Read the rows of one corpus file: plain text, TSV, CSV, JSON, JSON Lines and, if pyarrow is installed, Parquet.

Files are UTF-8. An invalid file raises `DataError` with all of its errors, each with its line.
"""

from __future__ import annotations

import csv
import importlib
import io
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from headtohead.config.tables.data import ColumnsConfig
from headtohead.data.file_errors import MAX_LISTED_ITEMS, build_file_error, build_missing_path_error
from headtohead.data.raw_corpus import RawSplit
from headtohead.data.sources.streaming import (
    PARAGRAPH_BLANK_LINE_FRACTION,
    STREAMING_THRESHOLD_BYTES,
    StreamedRows,
    StreamedTextFile,
)
from headtohead.errors import DataError, ValidationIssue, suggest

MAX_COUNTED_ERRORS = 1000
"""errors counted per file; binary files would have millions"""
PARQUET_BATCH_ROWS = 256
MAX_PARQUET_EXPANSION = 100
"""maximum ratio of a Parquet file's decompressed to its compressed size"""
DOCUMENT_COLUMN = "document"
"""column that is read if a file has it, and `data.columns.document` names no column"""
TABLE_SUFFIXES = (".tsv", ".csv", ".jsonl", ".json", ".parquet")

CellValues = Sequence[Any]
"""the cells of a row, not yet validated"""
NumberedRow = tuple[int, CellValues]
"""the line number of a row, for error messages, and its cells"""


def is_table_file(path: Path) -> bool:
    """Return whether a file extension denotes a table."""
    return path.suffix.lower() in TABLE_SUFFIXES


def read_text(path: Path) -> str:
    """Return a UTF-8 file with \\n line endings. Raise `DataError` if it is missing, empty or invalid."""
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
        raise build_file_error(path, [ValidationIssue("file", "is empty; expected text")])
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _find_invalid_utf8(raw: bytes) -> list[ValidationIssue]:
    """Return an issue for each run of bytes in a corpus file that are not UTF-8."""
    issues = []
    byte_offset, line_number, previous_end = 0, 1, 0
    text = raw.decode("utf-8", "surrogateescape")
    for match in islice(re.finditer("[\udc80-\udcff]+", text), MAX_COUNTED_ERRORS):
        valid_text = text[previous_end : match.start()]
        byte_offset, line_number = byte_offset + len(valid_text.encode()), line_number + valid_text.count("\n")
        invalid_bytes = raw[byte_offset : byte_offset + min(len(match.group()), 4)].hex(" ")
        location = f"byte {byte_offset} (line {line_number})"
        issues.append(ValidationIssue(location, f"{invalid_bytes} is not UTF-8; save the file as UTF-8"))
        byte_offset, previous_end = byte_offset + len(match.group()), match.end()
    return issues


def read_plain_text(path: Path, *, has_paragraphs: bool | None = None) -> RawSplit:
    """Return the lines of a text file as rows, or its paragraphs if blank lines separate them.

    `has_paragraphs` selects one of the two; None infers it from the text. A large file's rows stay on disk.
    """
    if path.is_file() and path.stat().st_size > STREAMING_THRESHOLD_BYTES:
        streamed_file = StreamedTextFile(path, has_paragraphs)
        return RawSplit(
            StreamedRows(streamed_file), None, (), str(path), "\n\n" if streamed_file.has_paragraphs else "\n"
        )
    lines = read_text(path).rstrip("\n").split("\n")
    if has_paragraphs is None:
        has_paragraphs = is_split_into_paragraphs(lines)
    numbered_lines = [(number, line.rstrip()) for number, line in enumerate(lines, start=1)]
    lines_by_row = (
        _group_lines_into_paragraphs(numbered_lines)
        if has_paragraphs
        else [[(number, line)] for number, line in numbered_lines if line]
    )
    rows = tuple("\n".join(line for _, line in row_lines) for row_lines in lines_by_row)
    separator = "\n\n" if has_paragraphs else "\n"
    return RawSplit(rows, None, tuple(row_lines[0][0] for row_lines in lines_by_row), str(path), separator)


def is_split_into_paragraphs(lines: Sequence[str]) -> bool:
    """Return whether enough lines of a text file are blank for its rows to be paragraphs."""
    return sum(not line.strip() for line in lines) >= max(1, PARAGRAPH_BLANK_LINE_FRACTION * len(lines))


def _group_lines_into_paragraphs(numbered_lines: Sequence[tuple[int, str]]) -> list[list[tuple[int, str]]]:
    """Return the paragraphs of a plain-text file, each as the line numbers and lines between two blank lines."""
    paragraphs: list[list[tuple[int, str]]] = [[]]
    for number, line in numbered_lines:
        if line:
            paragraphs[-1].append((number, line))
        elif paragraphs[-1]:
            paragraphs.append([])
    return [paragraph for paragraph in paragraphs if paragraph]


def read_table(path: Path, columns: ColumnsConfig, *, has_labels: bool) -> RawSplit:
    """Return the rows of a TSV, CSV, JSONL or Parquet file: texts, documents and, with `has_labels`, labels.

    Without `columns.document`, documents are read from the column `document` if the file has one.
    """
    columns_by_role = {"text": columns.text, "label": columns.label} if has_labels else {"text": columns.text}
    if columns.document is not None:
        columns_by_role["document"] = columns.document
    row_readers = {".jsonl": _read_json_rows, ".json": _read_json_rows, ".parquet": _read_parquet_rows}
    read_rows = row_readers.get(path.suffix.lower(), _read_delimited_rows)
    return _build_raw_split(path, read_rows(path, columns_by_role), [*columns_by_role, "document"])


def _add_document_column(
    columns_by_role: dict[str, str | int], available_columns: Iterable[str]
) -> dict[str, str | int]:
    """Return the columns to read, including the column `document` if the file has one that is not read already."""
    if DOCUMENT_COLUMN in available_columns and DOCUMENT_COLUMN not in columns_by_role.values():
        return {**columns_by_role, "document": columns_by_role.get("document", DOCUMENT_COLUMN)}
    return columns_by_role


def _build_raw_split(path: Path, numbered_rows: Sequence[NumberedRow], roles: Sequence[str]) -> RawSplit:
    """Return the rows of a table file as a split. Cells are in the order of `roles`; the last role may be absent."""
    if not numbered_rows:
        raise build_file_error(path, [ValidationIssue("file", "has a header but no rows")])
    issues = [issue for number, cells in numbered_rows for issue in _find_cell_errors(number, cells, roles)]
    if issues:
        raise build_file_error(path, issues)
    columns = zip(*((str(cell).strip() for cell in cells) for _, cells in numbered_rows), strict=True)
    columns_by_role = dict(zip(roles, columns, strict=False))
    return RawSplit(
        columns_by_role["text"],
        columns_by_role.get("label"),
        tuple(number for number, _ in numbered_rows),
        str(path),
        documents=columns_by_role.get("document", ()),
    )


def _find_cell_errors(line_number: int, cells: CellValues, roles: Sequence[str]) -> Iterator[ValidationIssue]:
    """Yield an issue for every cell in a row of a table file that is not a valid text, label or document name."""
    location = f"line {line_number}"
    text = cells[0]
    if not isinstance(text, str):
        yield ValidationIssue(location, f"the text is {_format_short_repr(text)}; expected a string")
    elif not text.strip():
        yield ValidationIssue(location, "the text is empty")
    elif has_lone_surrogate(text):
        yield ValidationIssue(location, "the text contains a lone surrogate")
    for role, value in zip(roles[1:], cells[1:], strict=False):
        if not isinstance(value, str | int) or not str(value).strip() or has_lone_surrogate(str(value)):
            yield ValidationIssue(location, f"the {role} is {_format_short_repr(value)}; expected a string or integer")


def has_lone_surrogate(text: str) -> bool:
    """Return whether a text contains a surrogate code point, which UTF-8 cannot encode."""
    return any("\ud800" <= character <= "\udfff" for character in text)


def _read_delimited_rows(path: Path, columns_by_role: dict[str, str | int]) -> list[NumberedRow]:
    """Read a CSV or TSV file; return the cells of the configured columns, with line numbers.

    Columns given by number select cells by position, and the file has no header.
    """
    numbered_rows = _read_tsv_rows(path) if path.suffix.lower() == ".tsv" else _read_csv_rows(path)
    if not numbered_rows:
        raise build_file_error(path, [ValidationIssue("file", "has only empty cells; expected rows of text")])
    numbered_columns = [column for column in columns_by_role.values() if isinstance(column, int)]
    if numbered_columns and len(numbered_columns) < len(columns_by_role):
        raise DataError(
            f"{path}: data.columns mixes names and numbers ({_format_columns(columns_by_role)}); names are for files "
            "with a header, numbers for files without"
        )
    first_line, first_cells = numbered_rows[0]
    if numbered_columns:
        column_indices, data_rows, width_source = numbered_columns, numbered_rows, f"line {first_line}"
    else:
        columns_by_role = _add_document_column(columns_by_role, [str(cell).strip() for cell in first_cells])
        column_names_by_role = {role: str(column) for role, column in columns_by_role.items()}
        column_indices = _find_column_indices(path, first_line, first_cells, column_names_by_role)
        data_rows, width_source = numbered_rows[1:], "the header"
    issues = _find_column_count_errors(numbered_rows, column_indices, width_source)
    if issues:
        raise build_file_error(path, issues)
    return [(number, [cells[i] for i in column_indices]) for number, cells in data_rows]


def _find_column_indices(
    path: Path, line_number: int, header: CellValues, columns_by_role: dict[str, str]
) -> list[int]:
    """Return the index of each configured column in a file's header; raise DataError if one is missing."""
    column_names = [str(cell).strip() for cell in header]
    header_text = _format_short_repr(" | ".join(column_names))
    example = ", ".join(f"{role} = {i}" for i, role in enumerate(reversed(list(columns_by_role))))
    issues = [
        ValidationIssue(
            f"line {line_number}",
            f"the header has no column {column!r} for the {role}: it is {header_text}. For a file without a "
            f"header, give numbers: columns = {{ {example} }}",
            suggestion=suggest(column, column_names),
        )
        for role, column in columns_by_role.items()
        if column not in column_names
    ]
    if issues:
        raise build_file_error(path, issues)
    return [column_names.index(column) for column in columns_by_role.values()]


def _find_column_count_errors(
    numbered_rows: Sequence[NumberedRow], column_indices: Sequence[int], width_source: str
) -> list[ValidationIssue]:
    """Return issues for rows of a CSV or TSV file that differ in length from the first row, and for missing columns."""
    first_line, first_cells = numbered_rows[0]
    num_columns = len(first_cells)
    issues = [
        ValidationIssue(
            f"line {number}",
            f"has {_format_column_count(len(cells))}, {width_source} has {num_columns}: "
            f"{_format_short_repr(' | '.join(cells))}",
        )
        for number, cells in numbered_rows
        if len(cells) != num_columns
    ]
    if max(column_indices) >= num_columns or min(column_indices) < 0:
        missing_column = max(column_indices) if max(column_indices) >= num_columns else min(column_indices)
        message = f"has {_format_column_count(num_columns)} (numbered from 0), so there is no column {missing_column}: "
        issues.insert(0, ValidationIssue(f"line {first_line}", message + _format_short_repr(" | ".join(first_cells))))
    return issues


def _read_tsv_rows(path: Path) -> list[NumberedRow]:
    """Return the non-empty rows of a TSV file with their line numbers."""
    # TSV has no quoting: a quotation mark is an ordinary character.
    lines = enumerate(read_text(path).split("\n"), start=1)
    return [(number, line.split("\t")) for number, line in lines if line.strip()]


def _read_csv_rows(path: Path) -> list[NumberedRow]:
    """Return the non-empty rows of a CSV file with the line numbers on which they start."""
    reader = csv.reader(io.StringIO(read_text(path), newline=""), strict=True)
    numbered_rows: list[NumberedRow] = []
    try:
        first_line = 1
        for cells in reader:
            if any(cell.strip() for cell in cells):
                numbered_rows.append((first_line, cells))
            first_line = reader.line_num + 1
    except csv.Error as error:
        raise build_file_error(path, [ValidationIssue(f"line {reader.line_num}", f"is not CSV: {error}")]) from None
    return numbered_rows


def _read_json_rows(path: Path, columns_by_role: dict[str, str | int]) -> list[NumberedRow]:
    """Read a JSON Lines file, or a JSON file with one list, whose entries are numbered instead of lines."""
    numbered_entries = list(_iter_json_entries(read_text(path)))
    if numbered_entries and isinstance(numbered_entries[0][1], dict):
        columns_by_role = _add_document_column(columns_by_role, numbered_entries[0][1])
    column_names = _require_column_names(path, columns_by_role)
    rows: list[NumberedRow] = []
    issues: list[ValidationIssue] = []
    for number, entry in numbered_entries:
        suggestion = None
        if isinstance(entry, InvalidJson):
            message = str(entry)
        elif not isinstance(entry, dict):
            message = f"is {_format_short_repr(entry)}; expected an object with {_format_columns(columns_by_role)}"
        elif missing_columns := [name for name in column_names if name not in entry]:
            message = f"has no {missing_columns[0]!r}; it has {', '.join(entry)}"
            suggestion = suggest(missing_columns[0], entry) if len(issues) < MAX_LISTED_ITEMS else None
        else:
            rows.append((number, [entry[name] for name in column_names]))
            continue
        issues.append(ValidationIssue(f"line {number}", message, suggestion=suggestion))
    if issues:
        raise build_file_error(path, issues)
    return rows


def _iter_json_entries(text: str) -> Iterator[tuple[int, Any]]:
    """Yield the number and value of each row of a table: lines of a JSON Lines file, or items of a JSON array."""
    if text.lstrip().startswith("["):
        entries = parse_json_text(text)
        yield from [(entries.line, entries)] if isinstance(entries, InvalidJson) else enumerate(entries, start=1)
        return
    for line_number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield line_number, parse_json_text(line)


class InvalidJson(str):
    """The message of a JSON syntax error in a corpus file, with its line."""

    line = 1


def parse_json_text(text: str) -> Any:
    """Return the value of a line or of a whole file of a corpus; an `InvalidJson` instead of an exception if invalid.

    So all invalid lines of a file can be reported together.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        invalid_json = InvalidJson(f"is not JSON: {error.msg} at column {error.colno}")
        invalid_json.line = error.lineno
        return invalid_json
    except RecursionError:
        return InvalidJson("cannot be parsed as JSON: nested too deeply")
    except ValueError as error:  # an integer with too many digits
        return InvalidJson(f"cannot be parsed as JSON: {error}")


def _read_parquet_rows(path: Path, columns_by_role: dict[str, str | int]) -> list[NumberedRow]:
    """Read columns of a Parquet file. Raise `DataError` if pyarrow is missing or the file expands too much."""
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise DataError(f"{path}: Parquet files require pyarrow; install it with: pip install pyarrow") from None
    _require_column_names(path, columns_by_role)
    if not path.is_file():
        raise build_missing_path_error(path)
    remaining_characters = MAX_PARQUET_EXPANSION * path.stat().st_size + 2**24
    try:
        file = parquet.ParquetFile(path)
        column_names = tuple(file.schema_arrow.names)
        selected_names = _require_column_names(path, _add_document_column(columns_by_role, column_names))
        if missing_names := [name for name in selected_names if name not in column_names]:
            issues = [
                ValidationIssue("columns", f"no column {name!r}", column_names, suggest(name, column_names))
                for name in missing_names
            ]
            raise build_file_error(path, issues)
        columns: dict[str, list[Any]] = {name: [] for name in selected_names}
        for batch in file.iter_batches(batch_size=PARQUET_BATCH_ROWS, columns=selected_names):
            for name in selected_names:
                values = batch.column(name).to_pylist()
                columns[name] += values
                remaining_characters -= sum(len(value) for value in values if isinstance(value, str))
            if remaining_characters < 0:  # a value repeated millions of times compresses to almost nothing
                message = f"decompresses to more than {MAX_PARQUET_EXPANSION} times its size"
                raise build_file_error(path, [ValidationIssue("file", message)])
    except (OSError, ValueError, KeyError, TypeError, NotImplementedError, MemoryError) as error:
        raise build_file_error(path, [ValidationIssue("file", f"is not a readable Parquet file: {error}")]) from None
    return list(enumerate(zip(*(columns[name] for name in selected_names), strict=True), start=1))


def _require_column_names(path: Path, columns_by_role: dict[str, str | int]) -> list[str]:
    """Return the names of the columns to read from a JSON or Parquet file; raise DataError if one is a number."""
    if numbered_roles := [role for role, column in columns_by_role.items() if isinstance(column, int)]:
        role = numbered_roles[0]
        raise DataError(
            f"{path}: columns of this format have names, but data.columns.{role} is {columns_by_role[role]}"
        )
    return [str(column) for column in columns_by_role.values()]


def _format_columns(columns_by_role: dict[str, str | int]) -> str:
    return ", ".join(f"{role} = {column!r}" for role, column in columns_by_role.items())


def _format_column_count(count: int) -> str:
    return f"{count} column{'s' if count != 1 else ''}"


def _format_short_repr(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:56]} ...{text[-1]}"
