"""Corpora as named splits, and the rule for holding out missing splits.

The hash of a row's text determines whether it is held out: equal rows stay together, and adding or reordering rows does
not move other rows between splits.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from types import MappingProxyType
from typing import Literal

from headtohead import rng
from headtohead.config.tables.data import SplitRole
from headtohead.data.file_errors import MAX_LISTED_ITEMS, build_file_error
from headtohead.data.raw_corpus import RawCorpus, RawSplit
from headtohead.errors import DataError, ValidationIssue, suggest

TEST_FRACTION = 0.1
HELD_OUT_TEST_ORIGIN = f"no test split: {TEST_FRACTION:.0%} of the rows by hash of the text"
"""how a corpus's origin describes a test split that its source does not have"""
HELD_OUT_VALIDATION_ORIGIN = "of train by hash of the text"
"""how a corpus's origin describes a validation split that its source does not have"""
DIGEST_PREFIXES = {True: "classify", False: "language-model"}
"""first entry of the digest; published results identify corpora by their digest, so it must not change"""
MAX_LABELS = 10_000
DIGEST_CHUNK_ROWS = 1024
MAX_RUN_ROWS = 10
"""consecutive rows of running text that a sample keeps together"""
MIN_SAMPLED_RUNS = 10
"""runs of consecutive rows in a sample, so that it covers the whole text"""


@dataclass(frozen=True)
class Split:
    """A named split of a corpus. Labels are indices into the label names of the corpus."""

    name: str
    role: SplitRole
    rows: Sequence[str]
    """in memory, or on disk as `DiskTextRows`"""
    labels: tuple[int, ...] | None = None
    separator: str = "\n"
    """text between two rows when the split is read as one stream"""
    documents: tuple[str, ...] = ()
    """names of the documents; empty if each row is its own document"""
    document_ids: Sequence[int] = ()
    """document index of each row, into `documents`; empty if there is only one document or each row is its own"""


@dataclass(frozen=True)
class Corpus:
    """The splits of a corpus by name, and the rows that a tokenizer may be trained on."""

    has_labels: bool
    splits: Mapping[str, Split]
    label_names: tuple[str, ...]
    vocabulary_rows: Sequence[str]
    origin: str
    """where the text comes from and, if known, its license"""
    digest: str
    """SHA-256 of the splits, the labels and the vocabulary rows"""

    @property
    def train(self) -> Split:
        return self.splits["train"]

    @property
    def validation(self) -> Split | None:
        return self.splits.get("validation")

    def get_test_splits(self) -> tuple[Split, ...]:
        return tuple(split for split in self.splits.values() if split.role == "test")


def build_corpus(
    raw_corpus: RawCorpus,
    *,
    has_labels: bool,
    validation_fraction: float,
    vocabulary_source: Literal["train", "folder"],
    row_limits: Mapping[SplitRole, int] = MappingProxyType({}),
) -> Corpus:
    """Hold out missing splits, sample rows and convert labels to indices.

    Args:
        raw_corpus: The splits provided by the source.
        has_labels: Whether the task requires labels.
        validation_fraction: Fraction of the training rows to hold out if there is no validation split.
        vocabulary_source: Rows from which the vocabulary is built.
        row_limits: Maximum number of rows by role of the split.
    """
    label_names = _collect_label_names(raw_corpus.train) if has_labels else ()
    train, tests = raw_corpus.train, dict(raw_corpus.tests)
    if not tests:
        train, tests["test"] = hold_out_rows(train, TEST_FRACTION, "test")
    validation = raw_corpus.validation
    if validation is None and validation_fraction > 0:
        train, validation = hold_out_rows(train, validation_fraction, "validation")
    train = sample_rows(train, row_limits.get("train"))
    splits = {"train": _build_split("train", "train", train, label_names)}
    if validation is not None:
        sampled_rows = sample_rows(validation, row_limits.get("validation"))
        splits["validation"] = _build_split("validation", "validation", sampled_rows, label_names)
    for name, test in tests.items():
        splits[name] = _build_split(name, "test", sample_rows(test, row_limits.get("test")), label_names)
    folder_rows = _select_folder_rows(raw_corpus, validation) if vocabulary_source == "folder" else None
    vocabulary_rows = train.rows if folder_rows is None else folder_rows
    origin = describe_corpus_origin(raw_corpus, validation_fraction)
    digest = compute_corpus_digest(has_labels, splits, label_names, vocabulary_rows)
    return Corpus(has_labels, splits, label_names, vocabulary_rows, origin, digest)


def select_evenly_spaced(num_items: int, max_selected: int | None) -> list[int]:
    """Return the indices of an even sample of at most `max_selected` rows or documents; None selects all of them."""
    if max_selected is None or max_selected >= num_items:
        return list(range(num_items))
    return [i * num_items // max_selected for i in range(max_selected)]


def sample_rows(raw_split: RawSplit, max_rows: int | None) -> RawSplit:
    """Return an even sample of at most `max_rows` rows in their original order.

    Labeled rows are sampled class by class, in proportion. Unlabeled rows are sampled in runs of consecutive rows,
    which preserves most of the context in running text.
    """
    if max_rows is None or max_rows >= (num_rows := len(raw_split.rows)):
        return raw_split
    if raw_split.labels is None:
        return raw_split.pick_rows(iter_sampled_runs(num_rows, max_rows))
    labels = raw_split.labels
    indices_by_label = sorted(range(num_rows), key=lambda i: labels[i])
    sampled_indices = {indices_by_label[i] for i in select_evenly_spaced(num_rows, max_rows)}
    return raw_split.pick_rows(i in sampled_indices for i in range(num_rows))


def iter_sampled_runs(num_rows: int, max_rows: int) -> Iterator[bool]:
    """Yield for each of `num_rows` rows whether a split samples it: an even sample of `max_rows` rows, in runs."""
    num_runs = max(min(max_rows, MIN_SAMPLED_RUNS), -(-max_rows // MAX_RUN_ROWS))
    num_sampled = 0
    for i in range(num_rows):
        run = (i * num_runs + num_runs - 1) // num_rows  # the run k begins at row k * num_rows // num_runs
        is_sampled = num_sampled < (run + 1) * max_rows // num_runs
        num_sampled += is_sampled
        yield is_sampled


def describe_corpus_origin(raw_corpus: RawCorpus, validation_fraction: float) -> str:
    """Return a sentence on the origin of the text and on the splits that were held out."""
    origin = raw_corpus.origin
    if not raw_corpus.tests:
        origin += f"; {HELD_OUT_TEST_ORIGIN}"
    if raw_corpus.validation is None and validation_fraction > 0:
        origin += f"; validation: {validation_fraction:.0%} {HELD_OUT_VALIDATION_ORIGIN}"
    return origin


def _select_folder_rows(raw_corpus: RawCorpus, validation: RawSplit | None) -> Sequence[str]:
    """Return the vocabulary rows: all training files without rows held out for validation, which must stay unseen."""
    held_out = set(validation.rows) if validation is not None and raw_corpus.validation is None else set()
    return tuple(row for row in raw_corpus.course_rows or raw_corpus.train.rows if row not in held_out)


def hold_out_rows(raw_split: RawSplit, fraction: float, purpose: str) -> tuple[RawSplit, RawSplit]:
    """Split off about `fraction` of the rows, at least one distinct text. Return (remaining, held out).

    If rows name their documents, whole documents are held out. Rows held out of a single document are a random sample
    of it, so each of them counts as a separate document.
    """
    hashed_texts = raw_split.documents if raw_split.has_named_rows else raw_split.rows
    hashes = [rng.derive_seed("split", purpose, text) for text in hashed_texts]
    threshold = max(int(fraction * 2**63), min(hashes) + 1)
    remaining = raw_split.pick_rows(row_hash >= threshold for row_hash in hashes)
    if not remaining.rows:
        count = len(raw_split.rows)
        raise DataError(
            f"{raw_split.path}: {count} row{'s' if count != 1 else ''} "
            f"({'of one document' if raw_split.has_named_rows else 'equal rows count once'}) cannot be split into "
            f"train and {purpose}; add text, or give each split its own file with data.files"
        )
    held_out = raw_split.pick_rows(row_hash < threshold for row_hash in hashes)
    return remaining, held_out if raw_split.has_named_rows else replace(held_out, documents=())


def _build_split(name: str, role: SplitRole, raw_split: RawSplit, label_names: tuple[str, ...]) -> Split:
    """Convert labels and document names to indices; raise DataError for labels that do not occur in train."""
    documents = tuple(dict.fromkeys(raw_split.documents))
    document_index = {document: i for i, document in enumerate(documents)}
    document_ids = (
        tuple(document_index[document] for document in raw_split.documents) if raw_split.has_named_rows else ()
    )
    if not label_names:
        return Split(name, role, raw_split.rows, None, raw_split.separator, documents, document_ids)
    assert raw_split.labels is not None
    label_index = {label: i for i, label in enumerate(label_names)}
    if unknown_rows := [i for i, label in enumerate(raw_split.labels) if label not in label_index]:
        issues = [_build_unseen_label_issue(raw_split, i, label_names) for i in unknown_rows[:MAX_LISTED_ITEMS]]
        raise build_file_error(raw_split.path, issues, num_errors=len(unknown_rows))
    labels = tuple(label_index[label] for label in raw_split.labels)
    return Split(name, role, raw_split.rows, labels, raw_split.separator, documents, document_ids)


def _build_unseen_label_issue(raw_split: RawSplit, row_index: int, label_names: tuple[str, ...]) -> ValidationIssue:
    """Return the issue for a row of a validation or test split whose label does not occur in the training split."""
    assert raw_split.labels is not None
    label = raw_split.labels[row_index]
    line = raw_split.lines[row_index] if raw_split.lines else row_index + 1
    return ValidationIssue(
        f"line {line}", f"label {label!r} does not occur in train", label_names, suggest(label, label_names)
    )


def _collect_label_names(train: RawSplit) -> tuple[str, ...]:
    """Return the labels of train in numerical order if all are integers, else in alphabetical order."""
    assert train.labels is not None
    label_names = set(train.labels)
    if len(label_names) < 2:
        raise DataError(f"{train.path}: every row has the label {train.labels[0]!r}; classification needs at least two")
    if len(label_names) > MAX_LABELS:
        raise DataError(f"{train.path}: {len(label_names):,} different labels; the maximum is {MAX_LABELS:,}")
    are_integers = all(re.fullmatch(r"-?\d{1,18}", name) for name in label_names)
    sort_key: Callable[[str], tuple[int, str]] = lambda name: (int(name) if are_integers else 0, name)  # noqa: E731
    return tuple(sorted(label_names, key=sort_key))


def compute_corpus_digest(
    has_labels: bool, splits: Mapping[str, Split], label_names: tuple[str, ...], vocabulary_rows: Sequence[str]
) -> str:
    """Return the SHA-256 of the corpus as one JSON list, hashed in chunks because texts may exceed memory."""
    digest = hashlib.sha256()
    for chunk in _iter_corpus_as_json(has_labels, splits, label_names, vocabulary_rows):
        digest.update(chunk.encode())
    return digest.hexdigest()


def _iter_corpus_as_json(
    has_labels: bool, splits: Mapping[str, Split], label_names: tuple[str, ...], vocabulary_rows: Sequence[str]
) -> Iterator[str]:
    """Yield the corpus as JSON text, a few rows at a time, so that its digest needs little memory."""
    yield f"[{_dump_json(DIGEST_PREFIXES[has_labels])}, {_dump_json(label_names)}, ["
    for i, split in enumerate(splits.values()):
        yield f"{', ' if i else ''}[{_dump_json(split.name)}, {_dump_json(split.role)}, "
        yield from _iter_rows_as_json(split.rows)
        # Documents are part of the digest only where rows name them: a file's name says nothing about its content.
        documents = f", {_dump_json([split.documents, *split.document_ids])}" if len(split.document_ids) else ""
        yield f", {_dump_json(split.labels)}, {_dump_json(split.separator)}{documents}]"
    yield "], "
    yield from _iter_rows_as_json(vocabulary_rows)
    yield "]"


def _iter_rows_as_json(rows: Sequence[str]) -> Iterator[str]:
    """Yield the rows of a split as one JSON array, in chunks of DIGEST_CHUNK_ROWS rows, for the corpus digest."""
    yield "["
    iterator, separator = iter(rows), ""
    while chunk := list(islice(iterator, DIGEST_CHUNK_ROWS)):
        yield separator + _dump_json(chunk)[1:-1]
        separator = ", "
    yield "]"


def _dump_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
