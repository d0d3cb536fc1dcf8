"""Corpora for summarization: documents with reference summaries, read from JSON Lines files.

A line has the keys `document` and `summary` or `summaries`.

A folder contains train.jsonl, dev.jsonl (or validation, valid) and test.jsonl. Missing splits are held out by document
hash. Held-out documents that also occur in train are removed and counted.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args

from headtohead import rng
from headtohead.config.tables.data import SplitRole
from headtohead.data.file_errors import (
    build_file_error,
    build_missing_path_error,
    format_name_list,
    list_folder_entries,
)
from headtohead.data.sources.file_formats import InvalidJson, has_lone_surrogate, parse_json_text, read_text
from headtohead.data.sources.folders_and_files import SPLIT_FILE_STEMS
from headtohead.data.splits import select_evenly_spaced
from headtohead.errors import DataError, ValidationIssue, suggest

DOCUMENT_SUFFIXES = (".jsonl", ".json")
HELD_OUT_FRACTIONS = {"test": 0.1, "validation": 0.1}


@dataclass(frozen=True)
class Document:
    """A document with its reference summaries."""

    text: str
    summaries: tuple[str, ...]
    id: str = ""


DocumentSplit = tuple[Document, ...]


@dataclass(frozen=True)
class SummarizationCorpus:
    """The splits of a corpus of documents with summaries."""

    splits: Mapping[str, DocumentSplit]
    origin: str
    digest: str
    """SHA-256 of every document and summary"""
    num_overlapping: Mapping[str, int]
    """number of held-out documents per split that were removed because they also occur in train"""


def read_documents(path: Path) -> list[Document]:
    """Read a corpus of documents and their summaries from a JSON Lines file. Raise `DataError` with all errors."""
    documents, issues = [], []
    for line_number, line in enumerate(read_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        entry = parse_json_text(line)
        errors = [(str(entry), None)] if isinstance(entry, InvalidJson) else list(_iter_document_errors(entry))
        issues += [
            ValidationIssue(f"line {line_number}", message, suggestion=suggestion) for message, suggestion in errors
        ]
        if not errors:
            documents.append(Document(entry["document"], _get_summaries(entry), str(entry.get("id", line_number))))
    if issues:
        raise build_file_error(path, issues)
    return documents


def _iter_document_errors(entry: Any) -> Iterator[tuple[str, str | None]]:
    """Yield each error in a line with a document and its summaries, and the key that was probably meant."""
    if not isinstance(entry, dict):
        yield f"is a {type(entry).__name__}; expected an object with document and summary", None
        return
    keys = ", ".join(entry) or "nothing"
    if "document" not in entry:
        yield f"has no 'document'; it has {keys}", suggest("document", entry)
    elif not isinstance(entry["document"], str) or not entry["document"].strip():
        yield "has an empty document", None
    elif has_lone_surrogate(entry["document"]) or has_lone_surrogate(str(entry.get("id"))):
        yield "contains a lone surrogate", None
    if "summary" not in entry and "summaries" not in entry:
        yield f"has no 'summary' and no 'summaries'; it has {keys}", suggest("summary", entry)
        return
    summaries = _get_summaries(entry)
    if not summaries:
        yield "has an empty list of summaries", None
    for number, summary in enumerate(summaries, start=1):
        if not isinstance(summary, str):
            yield f"summary {number} is a {type(summary).__name__}, not text", None
        elif has_lone_surrogate(summary):
            yield f"summary {number} contains a lone surrogate", None
        elif not summary.strip():
            yield f"has an empty summary{f' (number {number} of {len(summaries)})' if len(summaries) > 1 else ''}", None


def _get_summaries(entry: Mapping[str, Any]) -> tuple[Any, ...]:
    summaries = entry["summaries"] if "summaries" in entry else entry["summary"]
    return tuple(summaries) if isinstance(summaries, list) else (summaries,)


def load_summarization_corpus(
    source: str | Path, *, row_limits: Mapping[SplitRole, int] = MappingProxyType({})
) -> SummarizationCorpus:
    """Return a folder's or file's splits, with an even sample of the documents where `row_limits` has a limit."""
    path = Path(source).expanduser()
    if path.is_dir():
        splits, origin = _read_splits(path), f"folder {source}"
    elif path.is_file():
        splits, origin = {"train": read_documents(path)}, f"file {source}"
    else:
        raise build_missing_path_error(path)
    for name, fraction in HELD_OUT_FRACTIONS.items():
        if name not in splits:
            splits["train"], splits[name] = _hold_out_documents(splits["train"], fraction, name, path)
            origin += f"; no {name} split: {fraction:.0%} of the documents by hash of the text"
    train_texts = {document.text for document in splits["train"]}
    num_overlapping = {}
    for name in ("validation", "test"):
        unseen_documents = [document for document in splits[name] if document.text not in train_texts]
        num_overlapping[name] = len(splits[name]) - len(unseen_documents)
        splits[name] = unseen_documents
        if not unseen_documents:
            raise DataError(f"{path}: every document of {name} also occurs in train, so none is left to evaluate on")
    ordered_splits = {
        role: tuple(splits[role][i] for i in select_evenly_spaced(len(splits[role]), row_limits.get(role)))
        for role in get_args(SplitRole)
    }
    return SummarizationCorpus(ordered_splits, origin, _compute_corpus_digest(ordered_splits), num_overlapping)


def _read_splits(folder: Path) -> dict[str, list[Document]]:
    """Read the splits of a summarization corpus from a folder with train.jsonl and, optionally, others."""
    splits = {}
    for name, stems in SPLIT_FILE_STEMS.items():
        paths = [p for stem in stems for suffix in DOCUMENT_SUFFIXES if (p := folder / f"{stem}{suffix}").is_file()]
        if len(paths) > 1:
            raise DataError(f"{folder}: several files match {name}: {format_name_list([p.name for p in paths])}")
        if paths:
            splits[name] = read_documents(paths[0])
    if "train" not in splits:
        raise DataError(
            f"{folder}: expected train.jsonl (JSON lines with document and summary, or summaries), "
            f"found {format_name_list(list_folder_entries(folder))}"
        )
    return splits


def _hold_out_documents(
    documents: Sequence[Document], fraction: float, purpose: str, path: Path
) -> tuple[list[Document], list[Document]]:
    """Split off about `fraction` of the documents of a summarization corpus by text hash. Return (rest, held out)."""
    hashes = {document.text: rng.derive_seed("split", purpose, document.text) for document in documents}
    threshold = max(int(fraction * 2**63), min(hashes.values()) + 1)
    remaining = [document for document in documents if hashes[document.text] >= threshold]
    if not remaining:
        raise DataError(f"{path}: {len(documents)} documents cannot be split into train and {purpose}; add documents")
    return remaining, [document for document in documents if hashes[document.text] < threshold]


def _compute_corpus_digest(splits: Mapping[str, DocumentSplit]) -> str:
    """Return the SHA-256 of every document and summary of a summarization corpus."""
    texts_by_split = {
        name: [[document.text, document.summaries] for document in documents] for name, documents in splits.items()
    }
    return hashlib.sha256(json.dumps(texts_by_split).encode()).hexdigest()
