"""Documents with summaries that people wrote: JSON lines with `document` and `summary`, or `summaries` for several.

A folder has train.jsonl, dev.jsonl (or validation, valid) and test.jsonl; of a single file, or where a split is
missing, a share is held back by hash of the document. Held-out documents that also stand in train are left out, and
counted.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headtohead import rng
from headtohead.data.file_errors import (
    build_file_error,
    build_missing_path_error,
    format_name_list,
    list_folder_entries,
)
from headtohead.data.sources.readers import InvalidJson, has_lone_surrogate, parse_json, read_text
from headtohead.errors import DataError, ValidationIssue, suggest

SPLIT_FILE_STEMS = {"train": ("train",), "validation": ("validation", "valid", "dev"), "test": ("test",)}
DOCUMENT_SUFFIXES = (".jsonl", ".json")
ENTRY_KEYS = ("document", "summary", "summaries")
HELD_OUT_FRACTIONS = {"test": 0.1, "validation": 0.1}


@dataclass(frozen=True)
class Document:
    """A text, and how people put it in short."""

    text: str
    summaries: tuple[str, ...]
    id: str = ""


DocumentSplit = tuple[Document, ...]


@dataclass(frozen=True)
class SummarizationCorpus:
    """Splits of documents with summaries."""

    splits: Mapping[str, DocumentSplit]
    origin: str
    digest: str
    """SHA-256 of every document and summary"""
    left_out: Mapping[str, int]
    """held-out documents that also stand in train, by split"""


def read_documents(path: Path) -> list[Document]:
    """One file of JSON lines; refused with every fault of it, each with its line."""
    found, faults = [], []
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        entry = parse_json(line)
        if isinstance(entry, InvalidJson):
            faults.append(ValidationIssue(f"line {number}", str(entry)))
            continue
        wrong = list(_find_entry_errors(entry))
        faults += [ValidationIssue(f"line {number}", message, suggestion=near) for message, near in wrong]
        if not wrong:
            found.append(Document(entry["document"], _get_summaries(entry), str(entry.get("id", number))))
    if faults:
        raise build_file_error(path, faults)
    return found


def _find_entry_errors(entry: Any) -> Iterator[tuple[str, str | None]]:
    """What keeps an entry from being a document with its summaries, and a key that may have been meant."""
    if not isinstance(entry, dict):
        yield f"is a {type(entry).__name__}; an object with document and summary was expected", None
        return
    has = ", ".join(entry) or "nothing"
    if "document" not in entry:
        yield f"has no 'document'; it has {has}", suggest("document", entry)
    elif not isinstance(entry["document"], str) or not entry["document"].strip():
        yield "has an empty document", None
    elif has_lone_surrogate(entry["document"]) or has_lone_surrogate(str(entry.get("id"))):
        yield "holds half of a character (a lone surrogate)", None
    if "summary" not in entry and "summaries" not in entry:
        yield f"has no 'summary' and no 'summaries'; it has {has}", suggest("summary", entry)
        return
    given = _get_summaries(entry)
    if not given:
        yield "has an empty list of summaries", None
    for at, one in enumerate(given, start=1):
        if not isinstance(one, str):
            yield f"summary {at} is a {type(one).__name__}, not text", None
        elif has_lone_surrogate(one):
            yield f"summary {at} holds half of a character (a lone surrogate)", None
        elif not one.strip():
            yield f"has an empty summary{f' (number {at} of {len(given)})' if len(given) > 1 else ''}", None


def _get_summaries(entry: Mapping[str, Any]) -> tuple[Any, ...]:
    given = entry["summaries"] if "summaries" in entry else entry["summary"]
    return tuple(given) if isinstance(given, list) else (given,)


def load_summarization_corpus(source: str | Path, *, max_test_rows: int | None = None) -> SummarizationCorpus:
    """The splits of a folder or a file. `test_rows` reads no more than so many documents of each held-out split."""
    path = Path(source).expanduser()
    if path.is_dir():
        splits, origin = _read_folder(path), f"folder {source}"
    elif path.is_file():
        splits, origin = {"train": read_documents(path)}, f"file {source}"
    else:
        raise build_missing_path_error(path)
    for name, share in HELD_OUT_FRACTIONS.items():
        if name not in splits:
            splits["train"], splits[name] = _hold_out_fraction(splits["train"], share, name, path)
            origin += f"; no {name} split: {share:.0%} of the documents by hash of the text"
    known = {document.text for document in splits["train"]}
    left_out = {}
    for name in ("validation", "test"):
        kept = [document for document in splits[name] if document.text not in known]
        left_out[name] = len(splits[name]) - len(kept)
        splits[name] = kept[:max_test_rows]
        if not kept:
            raise DataError(f"{path}: every document of {name} also stands in train; nothing is left to test on")
    made = {name: tuple(splits[name]) for name in ("train", "validation", "test")}
    return SummarizationCorpus(made, origin, _compute_digest(made), left_out)


def _read_folder(folder: Path) -> dict[str, list[Document]]:
    splits = {}
    for name, stems in SPLIT_FILE_STEMS.items():
        there = [p for stem in stems for suffix in DOCUMENT_SUFFIXES if (p := folder / f"{stem}{suffix}").is_file()]
        if len(there) > 1:
            raise DataError(
                f"{folder}: more than one file could be {name}: {format_name_list([p.name for p in there])}"
            )
        if there:
            splits[name] = read_documents(there[0])
    if "train" not in splits:
        raise DataError(
            f"{folder}: expected train.jsonl (JSON lines with document and summary, or summaries), "
            f"found {format_name_list(list_folder_entries(folder))}"
        )
    return splits


def _hold_out_fraction(
    documents: Sequence[Document], fraction: float, purpose: str, path: Path
) -> tuple[list[Document], list[Document]]:
    """What is left, and the share that was taken, by hash of the text: at least one document each."""
    keys = {document.text: rng.derive_seed("split", purpose, document.text) for document in documents}
    limit = max(int(fraction * 2**63), min(keys.values()) + 1)
    left = [one for one in documents if keys[one.text] >= limit]
    if not left:
        raise DataError(f"{path}: {len(documents)} documents cannot be split into train and {purpose}; give more")
    return left, [one for one in documents if keys[one.text] < limit]


def _compute_digest(splits: Mapping[str, DocumentSplit]) -> str:
    text = json.dumps({name: [[d.text, d.summaries] for d in rows] for name, rows in splits.items()})
    return hashlib.sha256(text.encode()).hexdigest()
