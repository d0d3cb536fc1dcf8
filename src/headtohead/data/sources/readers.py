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

from headtohead.config.data import Columns
from headtohead.data.file_errors import SHOWN, missing, refusal
from headtohead.data.sources.streaming import LARGE, PARAGRAPH_SHARE, Passages, TextFile
from headtohead.data.splits import Table
from headtohead.errors import CorpusError, Fault, nearest

MOST_FAULTS = 1000
"""of one file that are counted"""
PARQUET_ROWS = 256
UNPACKED = 100
"""times its size that a Parquet file may be unpacked to"""
TABLES = (".tsv", ".csv", ".jsonl", ".json", ".parquet")

Cells = Sequence[Any]
Numbered = tuple[int, Cells]


def is_table(path: Path) -> bool:
    return path.suffix.lower() in TABLES


def read_text(path: Path) -> str:
    """The whole file with plain line ends; refused when it is not there, empty, or not UTF-8."""
    if not path.is_file():
        raise missing(path)
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise CorpusError(f"{path}: cannot be read: {error.strerror}") from None
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise refusal(path, _bad_bytes(raw)) from None
    if not text.strip():
        raise refusal(path, [Fault("file", "is empty; text was expected")])
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _bad_bytes(raw: bytes) -> list[Fault]:
    """Where the bytes are not UTF-8. Each run of bad bytes counts once."""
    faults = []
    offset, line, before = 0, 1, 0
    text = raw.decode("utf-8", "surrogateescape")
    for bad in islice(re.finditer("[\udc80-\udcff]+", text), MOST_FAULTS):  # a picture would have millions
        between = text[before : bad.start()]
        offset, line = offset + len(between.encode()), line + between.count("\n")
        found = raw[offset : offset + min(len(bad.group()), 4)].hex(" ")
        faults.append(Fault(f"byte {offset} (line {line})", f"{found} is not UTF-8; save the file as UTF-8"))
        offset, before = offset + len(bad.group()), bad.end()
    return faults


def read_passages(path: Path, *, paragraphs: bool | None = None) -> Table:
    """Plain text: a row is a line, or a paragraph where blank lines stand between them.

    `paragraphs` says which; None looks at the text itself. The rows of a large file are not held in memory.
    """
    if path.is_file() and path.stat().st_size > LARGE:
        large = TextFile(path, paragraphs)
        return Table(Passages(large), None, (), str(path), "\n\n" if large.paragraphs else "\n")
    lines = read_text(path).rstrip("\n").split("\n")
    if paragraphs is None:
        paragraphs = in_paragraphs(lines)
    numbered = [(number, line.rstrip()) for number, line in enumerate(lines, start=1)]
    blocks = _blocks(numbered) if paragraphs else [[one] for one in numbered if one[1]]
    rows = tuple("\n".join(text for _, text in block) for block in blocks)
    joint = "\n\n" if paragraphs else "\n"
    return Table(rows, None, tuple(block[0][0] for block in blocks), str(path), joint)


def in_paragraphs(lines: Sequence[str]) -> bool:
    return sum(not line.strip() for line in lines) >= max(1, PARAGRAPH_SHARE * len(lines))


def _blocks(numbered: Sequence[tuple[int, str]]) -> list[list[tuple[int, str]]]:
    blocks: list[list[tuple[int, str]]] = [[]]
    for number, line in numbered:
        if line:
            blocks[-1].append((number, line))
        elif blocks[-1]:
            blocks.append([])
    return [block for block in blocks if block]


def read_table(path: Path, columns: Columns, *, labels: bool) -> Table:
    """The text column and, if asked for, the label column of a TSV, CSV, JSONL or Parquet file."""
    named = {"text": columns.text, "label": columns.label} if labels else {"text": columns.text}
    kind = path.suffix.lower()
    if kind in (".jsonl", ".json"):
        found = _json_rows(path, named)
    elif kind == ".parquet":
        found = _parquet_rows(path, named)
    else:
        found = _delimited_rows(path, named)
    return _table(path, found, labels)


def _table(path: Path, found: Sequence[Numbered], labels: bool) -> Table:
    if not found:
        raise refusal(path, [Fault("file", "has a header and no rows; rows of text were expected")])
    faults = [fault for number, cells in found for fault in _cell_faults(number, cells)]
    if faults:
        raise refusal(path, faults)
    rows = tuple(str(cells[0]).strip() for _, cells in found)
    words = tuple(str(cells[1]).strip() for _, cells in found) if labels else None
    return Table(rows, words, tuple(number for number, _ in found), str(path))


def _cell_faults(number: int, cells: Cells) -> Iterator[Fault]:
    text, *label = cells
    if not isinstance(text, str):
        yield Fault(f"line {number}", f"the text is {_short(text)}; words were expected")
    elif not text.strip():
        yield Fault(f"line {number}", "the text is empty")
    elif has_half(text):
        yield Fault(f"line {number}", "the text holds half of a character (a lone surrogate)")
    for one in label:
        if not isinstance(one, str | int) or not str(one).strip() or has_half(str(one)):
            yield Fault(f"line {number}", f"the label is {_short(one)}; a word or a whole number was expected")


def has_half(text: str) -> bool:
    return any("\ud800" <= c <= "\udfff" for c in text)


def _delimited_rows(path: Path, named: dict[str, str | int]) -> list[Numbered]:
    lines = _tsv_lines(path) if path.suffix.lower() == ".tsv" else _csv_lines(path)
    if not lines:
        raise refusal(path, [Fault("file", "has only empty cells; rows of text were expected")])
    numbers = {name: column for name, column in named.items() if isinstance(column, int)}
    if numbers and len(numbers) < len(named):
        raise CorpusError(
            f"{path}: data.columns mixes names and numbers ({_said(named)}): names need a header, numbers mean that "
            "there is none"
        )
    if numbers:
        at = list(numbers.values())
    else:
        at = _columns_of_header(path, *lines[0], {name: str(column) for name, column in named.items()})
    faults = _width_faults(lines, at, "the header" if not numbers else f"line {lines[0][0]}")
    if faults:
        raise refusal(path, faults)
    return [(number, [cells[i] for i in at]) for number, cells in (lines if numbers else lines[1:])]


def _columns_of_header(path: Path, number: int, header: Cells, named: dict[str, str]) -> list[int]:
    names = [str(one).strip() for one in header]
    faults = []
    for purpose, column in named.items():
        if column not in names:
            numbered = ", ".join(f"{one} = {i}" for i, one in enumerate(reversed(list(named))))
            message = (
                f"the header has no column {column!r} for the {purpose}: it reads {_short(' | '.join(names))}. "
                f"A file without a header needs numbers: columns = {{ {numbered} }}"
            )
            near = nearest(column, names)
            faults.append(Fault(f"line {number}", message, nearest=near))
    if faults:
        raise refusal(path, faults)
    return [names.index(column) for column in named.values()]


def _width_faults(lines: Sequence[Numbered], at: Sequence[int], source: str) -> list[Fault]:
    """Every line must have as many columns as the first, and those that are asked for."""
    width = len(lines[0][1])
    faults = [
        Fault(f"line {number}", f"has {_columns(len(cells))}, {source} has {width}: {_short(' | '.join(cells))}")
        for number, cells in lines
        if len(cells) != width
    ]
    if max(at) >= width or min(at) < 0:
        wanted = max(at) if max(at) >= width else min(at)
        message = f"has {_columns(width)} (counted from 0), and column {wanted} was asked for: "
        faults.insert(0, Fault(f"line {lines[0][0]}", message + _short(" | ".join(lines[0][1]))))
    return faults


def _tsv_lines(path: Path) -> list[Numbered]:
    # No quoting: a quotation mark in a TSV is a quotation mark.
    lines = enumerate(read_text(path).split("\n"), start=1)
    return [(number, line.split("\t")) for number, line in lines if line.strip()]


def _csv_lines(path: Path) -> list[Numbered]:
    reader = csv.reader(io.StringIO(read_text(path), newline=""), strict=True)
    lines: list[Numbered] = []
    try:
        start = 1
        for cells in reader:
            if any(cell.strip() for cell in cells):
                lines.append((start, cells))
            start = reader.line_num + 1
    except csv.Error as error:
        raise refusal(path, [Fault(f"line {reader.line_num}", f"is not CSV: {error}")]) from None
    return lines


def _json_rows(path: Path, named: dict[str, str | int]) -> list[Numbered]:
    """JSON lines, or one JSON list; the number of a list's entry stands for its line."""
    names = _named_only(path, named)
    text = read_text(path)
    found: list[Numbered] = []
    faults = []
    for number, entry in _json_entries(text):
        if isinstance(entry, NoJson):
            faults.append(Fault(f"line {number}", str(entry)))
        elif not isinstance(entry, dict):
            faults.append(Fault(f"line {number}", f"is {_short(entry)}; an object with {_said(named)} was expected"))
        elif absent := [name for name in names if name not in entry]:
            near = nearest(absent[0], entry) if len(faults) < SHOWN else None
            faults.append(Fault(f"line {number}", f"has no {absent[0]!r}; it has {', '.join(entry)}", nearest=near))
        else:
            found.append((number, [entry[name] for name in names]))
    if faults:
        raise refusal(path, faults)
    return found


def _json_entries(text: str) -> Iterator[tuple[int, Any]]:
    if text.lstrip().startswith("["):
        found = read_json_text(text)
        yield from [(found.line, found)] if isinstance(found, NoJson) else enumerate(found, start=1)
        return
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield number, read_json_text(line)


class NoJson(str):
    """Why a text is not JSON, and in which of its lines."""

    line = 1


def read_json_text(text: str) -> Any:
    """What the text holds, or a `NoJson`."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        made = NoJson(f"is not JSON: {error.msg} at column {error.colno}")
        made.line = error.lineno
        return made
    except RecursionError:
        return NoJson("is not JSON that can be read: lists are nested too deep")
    except ValueError as error:  # a number of too many digits
        return NoJson(f"is not JSON that can be read: {error}")


def _parquet_rows(path: Path, named: dict[str, str | int]) -> list[Numbered]:
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise CorpusError(f"{path}: Parquet files need pyarrow; install it with: pip install pyarrow") from None
    names = _named_only(path, named)
    if not path.is_file():
        raise missing(path)
    room = UNPACKED * path.stat().st_size + 2**24
    try:
        opened = parquet.ParquetFile(path)
        known = tuple(opened.schema_arrow.names)
        if absent := [name for name in names if name not in known]:
            raise refusal(path, [Fault("columns", f"no column {one!r}", known, nearest(one, known)) for one in absent])
        columns: dict[str, list[Any]] = {name: [] for name in names}
        for batch in opened.iter_batches(batch_size=PARQUET_ROWS, columns=names):
            for name in names:
                found = batch.column(name).to_pylist()
                columns[name] += found
                room -= sum(len(one) for one in found if isinstance(one, str))
            if room < 0:  # one value, said a million times, takes no room while it is packed
                raise refusal(path, [Fault("file", f"unpacks to more than {UNPACKED} times its size")])
    except (OSError, ValueError, KeyError, TypeError, NotImplementedError, MemoryError) as error:
        raise refusal(path, [Fault("file", f"is not Parquet that can be read: {error}")]) from None
    return list(enumerate(zip(*(columns[name] for name in names), strict=True), start=1))


def _named_only(path: Path, named: dict[str, str | int]) -> list[str]:
    if numbers := [name for name, column in named.items() if isinstance(column, int)]:
        raise CorpusError(f"{path}: its columns have names, and data.columns.{numbers[0]} is {named[numbers[0]]}")
    return [str(column) for column in named.values()]


def _said(named: dict[str, str | int]) -> str:
    return ", ".join(f"{name} = {column!r}" for name, column in named.items())


def _columns(count: int) -> str:
    return f"{count} column{'s' if count != 1 else ''}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:56]} ...{text[-1]}"
