"""Prompts and, where people went on from them, what they wrote: one text, a file of lines, or a table.

A .txt file holds a prompt a line. A table (.tsv, .csv with a header, .jsonl) has a column for the prompt and may have
one for the people's continuation; columns are known by their names below. ROCStories in the layout of TimeTravel (Qin
et al. 2019, arXiv:1909.04076) is such a table: the first sentence is the prompt, the others are the continuation.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from headtohead.data.file_errors import build_file_error, build_missing_path_error
from headtohead.data.sources.readers import InvalidJson, has_lone_surrogate, parse_json, read_text
from headtohead.decoding_comparison.compare import Prompt
from headtohead.errors import DataError, ValidationIssue, suggest

SUPPORTED_EXTENSIONS = (".txt", ".tsv", ".csv", ".jsonl", ".json")
PROMPT_COLUMNS = ("prompt", "premise", "text")
CONTINUATION_COLUMNS = (
    ("continuation",),
    ("completion",),
    ("reference",),
    ("sentence2", "ending"),
    ("initial", "original_ending"),
)
PROMPT_FILE_NAMES = ("prompts.jsonl", "prompts.tsv", "prompts.csv", "prompts.txt", "stories.jsonl", "dev_data.json")
"""what is looked for in a folder, in this order"""


def read_prompts(source: str, max_prompts: int | None = None) -> list[Prompt]:
    """The first `limit` prompts, each once; a prompt that comes again is skipped."""
    path = Path(source)
    if _is_prompt_path(source, path):
        found = _read_prompt_file(_find_prompt_file(path) if path.is_dir() else path)
    elif source.strip():
        found = [Prompt(source)]
    else:
        found = [Prompt("")]  # some models can begin from nothing; those that cannot say so
    unique: dict[str, Prompt] = {}
    for prompt in found:
        unique.setdefault(prompt.text, prompt)
    return list(unique.values())[:max_prompts]


def _is_prompt_path(source: str, path: Path) -> bool:
    """A text may be longer than any path, and a path that is mistyped should not be taken for a text."""
    if path.suffix.lower() in SUPPORTED_EXTENSIONS and "\n" not in source:
        return True
    try:
        return bool(source.strip()) and path.exists()
    except OSError:
        return False


def _find_prompt_file(folder: Path) -> Path:
    found = next((folder / name for name in PROMPT_FILE_NAMES if (folder / name).is_file()), None)
    if found is None:
        names = sorted(one.name for one in folder.iterdir() if one.suffix.lower() in SUPPORTED_EXTENSIONS)
        hint = f"; it holds {', '.join(names)}: name one of them" if names else ""
        raise DataError(
            f"{folder}: no file of prompts in this folder{hint}; looked for: {', '.join(PROMPT_FILE_NAMES)}"
        )
    return found


def _read_prompt_file(path: Path) -> list[Prompt]:
    if not path.is_file():
        raise build_missing_path_error(path)
    kind = path.suffix.lower()
    if kind not in SUPPORTED_EXTENSIONS:
        near = suggest(kind, SUPPORTED_EXTENSIONS)
        hint = f"; did you mean {near!r}?" if near else ""
        raise DataError(f"{path}: prompts cannot be read from {kind or 'a file without ending'}{hint}; "
                          f"allowed: {', '.join(SUPPORTED_EXTENSIONS)}")  # fmt: skip
    text = read_text(path)
    if kind == ".txt":
        return [Prompt(line.strip()) for line in text.split("\n") if line.strip()]
    rows = list(
        _parse_json_rows(path, text) if kind in (".jsonl", ".json") else _parse_delimited_rows(path, text, kind)
    )
    if not rows:
        raise build_file_error(path, [ValidationIssue("file", "has a header and no rows; prompts were expected")])
    return _build_prompts(path, rows)


def _parse_json_rows(path: Path, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    faults = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        row = parse_json(line)
        if isinstance(row, InvalidJson):
            faults.append(ValidationIssue(f"line {number}", str(row)))
            continue
        if isinstance(row, dict):
            yield number, row
        else:
            faults.append(
                ValidationIssue(
                    f"line {number}", f"is {str(row)[:40]!r}; an object with {PROMPT_COLUMNS[0]!r} was expected"
                )
            )
    if faults:
        raise build_file_error(path, faults)


def _parse_delimited_rows(path: Path, text: str, extension: str) -> Iterator[tuple[int, dict[str, Any]]]:
    if extension == ".tsv":  # a quotation mark in a TSV is a quotation mark
        lines = [(n, line.split("\t")) for n, line in enumerate(text.split("\n"), start=1) if line.strip()]
    else:
        reader = csv.reader(io.StringIO(text, newline=""), strict=True)
        try:
            lines = [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
        except csv.Error as error:
            raise build_file_error(path, [ValidationIssue(f"line {reader.line_num}", f"is not CSV: {error}")]) from None
    if not lines:
        raise build_file_error(path, [ValidationIssue("file", "has only empty cells; prompts were expected")])
    header = [name.strip() for name in lines[0][1]]
    faults = [
        ValidationIssue(f"line {number}", f"has {len(row)} columns, the header has {len(header)}")
        for number, row in lines[1:]
        if len(row) != len(header)
    ]
    if faults:
        raise build_file_error(path, faults)
    for number, row in lines[1:]:
        yield number, dict(zip(header, row, strict=True))


def _build_prompts(path: Path, rows: Sequence[tuple[int, dict[str, Any]]]) -> list[Prompt]:
    number, first = rows[0]
    name = next((name for name in PROMPT_COLUMNS if name in first), None)
    if name is None:
        near = suggest(PROMPT_COLUMNS[0], first)
        message = f"no column for the prompt; it has {', '.join(first)}"
        raise build_file_error(path, [ValidationIssue(f"line {number}", message, PROMPT_COLUMNS, near)])
    parts = next((names for names in CONTINUATION_COLUMNS if all(one in first for one in names)), ())
    faults = [fault for number, row in rows for fault in _check_cells(number, row, (name, *parts))]
    if faults:
        raise build_file_error(path, faults)
    return [Prompt(row[name].strip(), " ".join(row[one].strip() for one in parts).strip() or None) for _, row in rows]


def _check_cells(line_number: int, row: dict[str, Any], columns: Sequence[str]) -> Iterator[ValidationIssue]:
    for name in columns:
        value = row.get(name)
        if not isinstance(value, str) or has_lone_surrogate(value):
            yield ValidationIssue(f"line {line_number}", f"{name} is {str(value)[:40]!r}; words were expected")
    if isinstance(row.get(columns[0]), str) and not row[columns[0]].strip():
        yield ValidationIssue(f"line {line_number}", f"{columns[0]} is empty")
