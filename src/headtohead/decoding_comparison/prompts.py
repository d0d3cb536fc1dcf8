"""Read the prompts of a decoding comparison, with human continuations where they exist.

Prompts are a literal text, a file of lines or a table.

A .txt file has one prompt per line. A table (.tsv, .csv with a header, .jsonl) has a prompt column and optionally a
continuation column, recognized by the names below. ROCStories in the TimeTravel layout (Qin et al. 2019,
arXiv:1909.04076) is such a table: the first sentence is the prompt, the others are the continuation.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from headtohead.data.file_errors import build_file_error, build_missing_path_error
from headtohead.data.sources.file_formats import InvalidJson, has_lone_surrogate, parse_json_text, read_text
from headtohead.decoding_comparison.results import Prompt
from headtohead.errors import DataError, ValidationIssue, format_suggestion, suggest

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
"""file names to look for in a folder, in this order"""


def read_prompts(text_or_path: str, max_prompts: int | None = None) -> list[Prompt]:
    """Return the first `max_prompts` distinct prompts from a file, a folder or literal text."""
    path = Path(text_or_path)
    if _is_prompt_path(text_or_path, path):
        prompts = _read_prompt_file(_find_prompt_file(path) if path.is_dir() else path)
    else:
        # Models without a start token reject an empty prompt.
        prompts = [Prompt(text=text_or_path if text_or_path.strip() else "")]
    prompt_by_text: dict[str, Prompt] = {}
    for prompt in prompts:
        prompt_by_text.setdefault(prompt.text, prompt)
    return list(prompt_by_text.values())[:max_prompts]


def _is_prompt_path(text_or_path: str, path: Path) -> bool:
    """Return whether prompts are given as a path.

    A misspelled file name counts as a path. A text may be longer than any path.
    """
    if path.suffix.lower() in SUPPORTED_EXTENSIONS and "\n" not in text_or_path:
        return True
    try:
        return bool(text_or_path.strip()) and path.exists()
    except OSError:
        return False


def _find_prompt_file(folder: Path) -> Path:
    """Return a folder's prompt file; raise DataError if it has none."""
    path = next((folder / name for name in PROMPT_FILE_NAMES if (folder / name).is_file()), None)
    if path is None:
        names = sorted(entry.name for entry in folder.iterdir() if entry.suffix.lower() in SUPPORTED_EXTENSIONS)
        hint = f"; it contains {', '.join(names)}: name one" if names else ""
        raise DataError(f"{folder}: no prompt file in this folder{hint}; expected {', '.join(PROMPT_FILE_NAMES)}")
    return path


def _read_prompt_file(path: Path) -> list[Prompt]:
    """Read prompts from a text, JSON Lines, CSV or TSV file."""
    if not path.is_file():
        raise build_missing_path_error(path)
    extension = path.suffix.lower()
    if extension not in SUPPORTED_EXTENSIONS:
        hint = format_suggestion(extension, SUPPORTED_EXTENSIONS)
        raise DataError(
            f"{path}: unsupported file extension {extension!r} for prompts{hint} "
            f"(allowed: {', '.join(SUPPORTED_EXTENSIONS)})"
        )
    text = read_text(path)
    if extension == ".txt":
        return [Prompt(text=line.strip()) for line in text.split("\n") if line.strip()]
    is_json = extension in (".jsonl", ".json")
    rows = list(_parse_json_rows(path, text) if is_json else _parse_delimited_rows(path, text, extension))
    if not rows:
        raise build_file_error(path, [ValidationIssue("file", "has a header but no rows")])
    return _build_prompts(path, rows)


def _parse_json_rows(path: Path, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number, object) for each line of a prompt file; raise DataError with all invalid lines."""
    issues = []
    for line_number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        row = parse_json_text(line)
        if isinstance(row, dict):
            yield line_number, row
        elif isinstance(row, InvalidJson):
            issues.append(ValidationIssue(f"line {line_number}", str(row)))
        else:
            message = f"is {str(row)[:40]!r}; expected an object with {PROMPT_COLUMNS[0]!r}"
            issues.append(ValidationIssue(f"line {line_number}", message))
    if issues:
        raise build_file_error(path, issues)


def _parse_delimited_rows(path: Path, text: str, extension: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number, cells by column) for each row of a CSV or TSV prompt file."""
    if extension == ".tsv":  # TSV has no quoting
        lines = [(n, line.split("\t")) for n, line in enumerate(text.split("\n"), start=1) if line.strip()]
    else:
        reader = csv.reader(io.StringIO(text, newline=""), strict=True)
        try:
            lines = [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
        except csv.Error as error:
            raise build_file_error(path, [ValidationIssue(f"line {reader.line_num}", f"is not CSV: {error}")]) from None
    if not lines:
        raise build_file_error(path, [ValidationIssue("file", "has only empty cells; expected prompts")])
    header = [name.strip() for name in lines[0][1]]
    issues = [
        ValidationIssue(f"line {number}", f"has {len(row)} columns, the header has {len(header)}")
        for number, row in lines[1:]
        if len(row) != len(header)
    ]
    if issues:
        raise build_file_error(path, issues)
    for number, row in lines[1:]:
        yield number, dict(zip(header, row, strict=True))


def _build_prompts(path: Path, rows: Sequence[tuple[int, dict[str, Any]]]) -> list[Prompt]:
    """Build prompts from the prompt and continuation columns; raise DataError with all invalid cells."""
    line_number, first_row = rows[0]
    prompt_column = next((name for name in PROMPT_COLUMNS if name in first_row), None)
    if prompt_column is None:
        message = f"has no prompt column; it has {', '.join(first_row)}"
        suggestion = suggest(PROMPT_COLUMNS[0], first_row)
        raise build_file_error(path, [ValidationIssue(f"line {line_number}", message, PROMPT_COLUMNS, suggestion)])
    continuation_columns = next(
        (names for names in CONTINUATION_COLUMNS if all(name in first_row for name in names)), ()
    )
    issues = [
        issue
        for number, row in rows
        for issue in _check_prompt_cells(number, row, (prompt_column, *continuation_columns))
    ]
    if issues:
        raise build_file_error(path, issues)
    continuations = [" ".join(row[name].strip() for name in continuation_columns).strip() or None for _, row in rows]
    return [
        Prompt(text=row[prompt_column].strip(), continuation=continuation)
        for (_, row), continuation in zip(rows, continuations, strict=True)
    ]


def _check_prompt_cells(line_number: int, row: dict[str, Any], columns: Sequence[str]) -> Iterator[ValidationIssue]:
    """Yield an issue for every cell of a prompt file that is not a string, and for an empty prompt."""
    for name in columns:
        value = row.get(name)
        if not isinstance(value, str) or has_lone_surrogate(value):
            yield ValidationIssue(f"line {line_number}", f"{name} is {str(value)[:40]!r}; expected a string")
    if isinstance(row.get(columns[0]), str) and not row[columns[0]].strip():
        yield ValidationIssue(f"line {line_number}", f"{columns[0]} is empty")
