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

from headtohead.data.file_errors import missing, refusal
from headtohead.data.sources.readers import NoJson, has_half, read_json_text, read_text
from headtohead.decoding_comparison.compare import Prompt
from headtohead.errors import CorpusError, Fault, nearest

ENDINGS = (".txt", ".tsv", ".csv", ".jsonl", ".json")
PROMPT = ("prompt", "premise", "text")
CONTINUATION = (
    ("continuation",),
    ("completion",),
    ("reference",),
    ("sentence2", "ending"),
    ("initial", "original_ending"),
)
IN_FOLDER = ("prompts.jsonl", "prompts.tsv", "prompts.csv", "prompts.txt", "stories.jsonl", "dev_data.json")
"""what is looked for in a folder, in this order"""


def read_prompts(where: str, limit: int | None = None) -> list[Prompt]:
    """The first `limit` prompts, each once; a prompt that comes again is skipped."""
    path = Path(where)
    if _is_path(where, path):
        found = _read(_file_in(path) if path.is_dir() else path)
    elif where.strip():
        found = [Prompt(where)]
    else:
        found = [Prompt("")]  # some models can begin from nothing; those that cannot say so
    unique: dict[str, Prompt] = {}
    for prompt in found:
        unique.setdefault(prompt.text, prompt)
    return list(unique.values())[:limit]


def _is_path(where: str, path: Path) -> bool:
    """A text may be longer than any path, and a path that is mistyped should not be taken for a text."""
    if path.suffix.lower() in ENDINGS and "\n" not in where:
        return True
    try:
        return bool(where.strip()) and path.exists()
    except OSError:
        return False


def _file_in(folder: Path) -> Path:
    found = next((folder / name for name in IN_FOLDER if (folder / name).is_file()), None)
    if found is None:
        names = sorted(one.name for one in folder.iterdir() if one.suffix.lower() in ENDINGS)
        hint = f"; it holds {', '.join(names)}: name one of them" if names else ""
        raise CorpusError(f"{folder}: no file of prompts in this folder{hint}; looked for: {', '.join(IN_FOLDER)}")
    return found


def _read(path: Path) -> list[Prompt]:
    if not path.is_file():
        raise missing(path)
    kind = path.suffix.lower()
    if kind not in ENDINGS:
        near = nearest(kind, ENDINGS)
        hint = f"; did you mean {near!r}?" if near else ""
        raise CorpusError(f"{path}: prompts cannot be read from {kind or 'a file without ending'}{hint}; "
                          f"allowed: {', '.join(ENDINGS)}")  # fmt: skip
    text = read_text(path)
    if kind == ".txt":
        return [Prompt(line.strip()) for line in text.split("\n") if line.strip()]
    rows = list(_json_rows(path, text) if kind in (".jsonl", ".json") else _delimited_rows(path, text, kind))
    if not rows:
        raise refusal(path, [Fault("file", "has a header and no rows; prompts were expected")])
    return _prompts(path, rows)


def _json_rows(path: Path, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    faults = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        row = read_json_text(line)
        if isinstance(row, NoJson):
            faults.append(Fault(f"line {number}", str(row)))
            continue
        if isinstance(row, dict):
            yield number, row
        else:
            faults.append(Fault(f"line {number}", f"is {str(row)[:40]!r}; an object with {PROMPT[0]!r} was expected"))
    if faults:
        raise refusal(path, faults)


def _delimited_rows(path: Path, text: str, kind: str) -> Iterator[tuple[int, dict[str, Any]]]:
    if kind == ".tsv":  # a quotation mark in a TSV is a quotation mark
        lines = [(n, line.split("\t")) for n, line in enumerate(text.split("\n"), start=1) if line.strip()]
    else:
        reader = csv.reader(io.StringIO(text, newline=""), strict=True)
        try:
            lines = [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
        except csv.Error as error:
            raise refusal(path, [Fault(f"line {reader.line_num}", f"is not CSV: {error}")]) from None
    if not lines:
        raise refusal(path, [Fault("file", "has only empty cells; prompts were expected")])
    header = [name.strip() for name in lines[0][1]]
    faults = [
        Fault(f"line {number}", f"has {len(row)} columns, the header has {len(header)}")
        for number, row in lines[1:]
        if len(row) != len(header)
    ]
    if faults:
        raise refusal(path, faults)
    for number, row in lines[1:]:
        yield number, dict(zip(header, row, strict=True))


def _prompts(path: Path, rows: Sequence[tuple[int, dict[str, Any]]]) -> list[Prompt]:
    number, first = rows[0]
    name = next((name for name in PROMPT if name in first), None)
    if name is None:
        near = nearest(PROMPT[0], first)
        message = f"no column for the prompt; it has {', '.join(first)}"
        raise refusal(path, [Fault(f"line {number}", message, PROMPT, near)])
    parts = next((names for names in CONTINUATION if all(one in first for one in names)), ())
    faults = [fault for number, row in rows for fault in _cell_faults(number, row, (name, *parts))]
    if faults:
        raise refusal(path, faults)
    return [Prompt(row[name].strip(), " ".join(row[one].strip() for one in parts).strip() or None) for _, row in rows]


def _cell_faults(number: int, row: dict[str, Any], names: Sequence[str]) -> Iterator[Fault]:
    for name in names:
        value = row.get(name)
        if not isinstance(value, str) or has_half(value):
            yield Fault(f"line {number}", f"{name} is {str(value)[:40]!r}; words were expected")
    if isinstance(row.get(names[0]), str) and not row[names[0]].strip():
        yield Fault(f"line {number}", f"{names[0]} is empty")
