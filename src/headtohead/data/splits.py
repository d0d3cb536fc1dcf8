"""Corpora as named splits, and the rule that holds out missing ones.

The hash of a row's text decides whether it is held out: equal rows stay together, and adding or reordering rows does
not move any other row to a different split.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from types import MappingProxyType
from typing import Literal

from headtohead import rng
from headtohead.config.data import SplitRole
from headtohead.data.file_errors import MAX_ITEMS_SHOWN, build_file_error
from headtohead.errors import DataError, ValidationIssue, suggest

TEST_FRACTION = 0.1
HELD_OUT_TEST = f"no test split: {TEST_FRACTION:.0%} of the rows by hash of the text"
HELD_OUT_VALIDATION = "of train by hash of the text"
"""how a corpus's origin describes splits that its source does not have"""
DIGEST_LABELS = {True: "classify", False: "language-model"}
"""first entry of the digest; published results identify corpora by their digest, so it must not change"""
MAX_LABELS = 10_000
DIGEST_CHUNK_ROWS = 1024
MAX_RUN_ROWS, MIN_SAMPLED_RUNS = 10, 10
"""a sample of running text keeps up to ten consecutive rows together, but has at least ten runs"""


@dataclass(frozen=True)
class Split:
    """A named split of a corpus. Labels are indices into the corpus's label names."""

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
    """the document of each row, as an index into `documents`; empty if there is only one or each row is its own"""


@dataclass(frozen=True)
class Corpus:
    """Splits by name, and the rows that a tokenizer may be trained on."""

    has_labels: bool
    splits: Mapping[str, Split]
    label_names: tuple[str, ...]
    vocabulary_rows: Sequence[str]
    origin: str
    """where the text comes from and, if known, its licence"""
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


@dataclass(frozen=True)
class RawSplit:
    """Rows as a source returns them, with labels as text."""

    rows: Sequence[str]
    labels: tuple[str, ...] | None = None
    """one per row, for classification"""
    lines: tuple[int, ...] = ()
    """the line number of each row, for error messages"""
    path: str = ""
    """where the rows come from, for error messages"""
    separator: str = "\n"
    """text between two rows when the split is read as one stream"""
    documents: Sequence[str] = ()
    """the name of each row's document, or one name for all rows; empty if each row is its own document"""

    @property
    def has_named_rows(self) -> bool:
        """Whether each row names its document."""
        return len(self.documents) > 1

    def pick(self, row_mask: Iterable[bool]) -> RawSplit:
        """Return the rows where the mask is True."""
        indices = [i for i, is_selected in enumerate(row_mask) if is_selected]
        return RawSplit(
            tuple(self.rows[i] for i in indices),
            tuple(self.labels[i] for i in indices) if self.labels is not None else None,
            tuple(self.lines[i] for i in indices) if self.lines else (),
            self.path,
            self.separator,
            tuple(self.documents[i] for i in indices) if self.has_named_rows else self.documents,
        )


@dataclass(frozen=True)
class RawCorpus:
    """The splits that a source has. Missing ones are held out from train."""

    train: RawSplit
    origin: str
    """where the text comes from and, if known, its licence"""
    validation: RawSplit | None = None
    tests: Mapping[str, RawSplit] = field(default_factory=dict)
    """test splits by name"""
    course_rows: tuple[str, ...] = ()
    """rows of all training files, including the other task's, for `vocabulary = "folder"`"""

    def list_splits(self) -> dict[str, RawSplit]:
        """Return every split by name."""
        validation = {} if self.validation is None else {"validation": self.validation}
        return {"train": self.train, **validation, **self.tests}


def check_raw_corpus(raw_corpus: object, source: str, *, has_labels: bool) -> None:
    """Raise `DataError` if a source did not return a corpus, or returned one without the labels that the task needs."""
    if not isinstance(raw_corpus, RawCorpus):
        raise DataError(f"source {source!r} must return a RawCorpus, got {type(raw_corpus).__name__}")
    for name in ("train", "validation"):
        if name in raw_corpus.tests:
            raise DataError(f"a test split cannot be named {name!r}: the name is reserved")
    for name, split in raw_corpus.list_splits().items():
        if not isinstance(split, RawSplit):
            raise DataError(f"source {source!r}: split {name!r} must be a RawSplit, got {type(split).__name__}")
        if has_labels and (split.labels is None or len(split.labels) != len(split.rows)):
            label_count = "no labels" if split.labels is None else f"{len(split.labels)} labels"
            raise DataError(f"source {source!r}: split {name!r} has {len(split.rows)} rows and {label_count}")
        if split.has_named_rows and len(split.documents) != len(split.rows):
            raise DataError(
                f"source {source!r}: split {name!r} has {len(split.rows)} rows and {len(split.documents)} documents; "
                "name the document of each row, one document for all rows, or none"
            )
    if not any(True for _ in raw_corpus.train.rows):
        raise DataError(f"source {source!r}: train has no rows")


def build_corpus(
    raw_corpus: RawCorpus,
    *,
    has_labels: bool,
    validation_fraction: float,
    vocabulary_source: Literal["train", "folder"],
    row_limits: Mapping[SplitRole, int] = MappingProxyType({}),
) -> Corpus:
    """Hold out missing splits from train, sample rows, convert labels to indices, and return the corpus."""
    label_names = _collect_label_names(raw_corpus.train) if has_labels else ()
    train, tests = raw_corpus.train, dict(raw_corpus.tests)
    if not tests:
        train, tests["test"] = hold_out(train, TEST_FRACTION, "test")
    validation = raw_corpus.validation
    if validation is None and validation_fraction > 0:
        train, validation = hold_out(train, validation_fraction, "validation")
    train = sample_rows(train, row_limits.get("train"))
    splits = {"train": _build_split("train", "train", train, label_names)}
    if validation is not None:
        sampled = sample_rows(validation, row_limits.get("validation"))
        splits["validation"] = _build_split("validation", "validation", sampled, label_names)
    for name, test in tests.items():
        splits[name] = _build_split(name, "test", sample_rows(test, row_limits.get("test")), label_names)
    rows = _select_folder_rows(raw_corpus, validation) if vocabulary_source == "folder" else train.rows
    origin = describe_origin(raw_corpus, validation_fraction)
    return Corpus(has_labels, splits, label_names, rows, origin, compute_digest(has_labels, splits, label_names, rows))


def select_evenly_spaced(count: int, limit: int | None) -> list[int]:
    """Return `limit` evenly spaced indices below `count`, or all of them if `limit` is None or not smaller."""
    if limit is None or limit >= count:
        return list(range(count))
    return [i * count // limit for i in range(limit)]


def sample_rows(raw_split: RawSplit, limit: int | None) -> RawSplit:
    """Return an even sample of at most `limit` rows in their original order.

    Labelled rows are sampled class by class, in proportion. Unlabelled rows are sampled in runs of consecutive rows,
    which preserves most of the context in running text.
    """
    if limit is None or limit >= (count := len(raw_split.rows)):
        return raw_split
    if raw_split.labels is None:
        return raw_split.pick(iter_sampled_runs(count, limit))
    labels = raw_split.labels
    by_label = sorted(range(count), key=lambda i: labels[i])
    sampled = {by_label[i] for i in select_evenly_spaced(count, limit)}
    return raw_split.pick(i in sampled for i in range(count))


def iter_sampled_runs(count: int, limit: int) -> Iterator[bool]:
    """Yield for each of `count` rows whether it is in an even sample of `limit` rows, taken in runs."""
    num_runs = max(min(limit, MIN_SAMPLED_RUNS), -(-limit // MAX_RUN_ROWS))
    num_sampled = 0
    for i in range(count):
        run = (i * num_runs + num_runs - 1) // count  # the run k begins at row k * count // num_runs
        is_sampled = num_sampled < (run + 1) * limit // num_runs
        num_sampled += is_sampled
        yield is_sampled


def describe_origin(raw_corpus: RawCorpus, validation_fraction: float) -> str:
    """Return where the text comes from and which splits were held out."""
    origin = raw_corpus.origin
    if not raw_corpus.tests:
        origin += f"; {HELD_OUT_TEST}"
    if raw_corpus.validation is None and validation_fraction > 0:
        origin += f"; validation: {validation_fraction:.0%} {HELD_OUT_VALIDATION}"
    return origin


def _select_folder_rows(raw_corpus: RawCorpus, validation: RawSplit | None) -> Sequence[str]:
    """Return the rows from all training files except those held out for validation, which must stay unseen."""
    held_out = set(validation.rows) if validation is not None and raw_corpus.validation is None else set()
    return tuple(row for row in raw_corpus.course_rows or raw_corpus.train.rows if row not in held_out)


def hold_out(raw_split: RawSplit, fraction: float, purpose: str) -> tuple[RawSplit, RawSplit]:
    """Split off about `fraction` of the rows, at least one distinct text. Return (remaining, held out).

    If rows name their documents, whole documents are held out. Rows held out of a single document are a random sample
    of it, so each of them counts as a separate document.
    """
    units = raw_split.documents if raw_split.has_named_rows else raw_split.rows
    keys = [rng.derive_seed("split", purpose, unit) for unit in units]
    threshold = max(int(fraction * 2**63), min(keys) + 1)
    remaining = raw_split.pick(key >= threshold for key in keys)
    if not remaining.rows:
        count = len(raw_split.rows)
        raise DataError(
            f"{raw_split.path}: {count} row{'s' if count != 1 else ''} "
            f"({'of one document' if raw_split.has_named_rows else 'equal rows count once'}) cannot be split into "
            f"train and {purpose}; add text, or give each split its own file with data.files"
        )
    held_out = raw_split.pick(key < threshold for key in keys)
    return remaining, held_out if raw_split.has_named_rows else replace(held_out, documents=())


def _build_split(name: str, role: SplitRole, raw_split: RawSplit, label_names: tuple[str, ...]) -> Split:
    """Convert labels and document names to indices; raise DataError for labels that do not occur in train."""
    documents = tuple(dict.fromkeys(raw_split.documents))
    index = {document: i for i, document in enumerate(documents)}
    document_ids = tuple(index[document] for document in raw_split.documents) if raw_split.has_named_rows else ()
    if not label_names:
        return Split(name, role, raw_split.rows, None, raw_split.separator, documents, document_ids)
    assert raw_split.labels is not None
    label_index = {label: i for i, label in enumerate(label_names)}
    if unknown := [i for i, label in enumerate(raw_split.labels) if label not in label_index]:
        issues = [_build_unknown_label_error(raw_split, i, label_names) for i in unknown[:MAX_ITEMS_SHOWN]]
        raise build_file_error(raw_split.path, issues, num_errors=len(unknown))
    labels = tuple(label_index[label] for label in raw_split.labels)
    return Split(name, role, raw_split.rows, labels, raw_split.separator, documents, document_ids)


def _build_unknown_label_error(raw_split: RawSplit, row_index: int, label_names: tuple[str, ...]) -> ValidationIssue:
    """Return the issue for a row whose label does not occur in train, with the closest known label."""
    assert raw_split.labels is not None
    label = raw_split.labels[row_index]
    line = raw_split.lines[row_index] if raw_split.lines else row_index + 1
    return ValidationIssue(
        f"line {line}", f"label {label!r} does not occur in train", label_names, suggest(label, label_names)
    )


def _collect_label_names(train: RawSplit) -> tuple[str, ...]:
    """Return the labels of train in numerical order if all are integers, else in alphabetical order."""
    assert train.labels is not None
    names = set(train.labels)
    if len(names) < 2:
        raise DataError(f"{train.path}: every row has the label {train.labels[0]!r}; classification needs at least two")
    if len(names) > MAX_LABELS:
        raise DataError(f"{train.path}: {len(names):,} different labels; the maximum is {MAX_LABELS:,}")
    are_integers = all(re.fullmatch(r"-?\d{1,18}", name) for name in names)
    sort_key: Callable[[str], tuple[int, str]] = lambda name: (int(name) if are_integers else 0, name)  # noqa: E731
    return tuple(sorted(names, key=sort_key))


def compute_digest(
    has_labels: bool, splits: Mapping[str, Split], label_names: tuple[str, ...], vocabulary_rows: Sequence[str]
) -> str:
    """Return the SHA-256 of the corpus as one JSON list, hashed in chunks because texts may exceed memory."""
    digest = hashlib.sha256()
    for chunk in _iter_json_chunks(has_labels, splits, label_names, vocabulary_rows):
        digest.update(chunk.encode())
    return digest.hexdigest()


def _iter_json_chunks(
    has_labels: bool, splits: Mapping[str, Split], label_names: tuple[str, ...], vocabulary_rows: Sequence[str]
) -> Iterator[str]:
    """Yield the corpus as JSON text, a few rows at a time, so that its digest needs little memory."""
    yield f"[{_dump_json(DIGEST_LABELS[has_labels])}, {_dump_json(label_names)}, ["
    for i, split in enumerate(splits.values()):
        yield f"{', ' if i else ''}[{_dump_json(split.name)}, {_dump_json(split.role)}, "
        yield from _iter_rows_as_json(split.rows)
        # Documents are part of the digest only where rows name them: a file's name says nothing about its content.
        names = f", {_dump_json([split.documents, *split.document_ids])}" if len(split.document_ids) else ""
        yield f", {_dump_json(split.labels)}, {_dump_json(split.separator)}{names}]"
    yield "], "
    yield from _iter_rows_as_json(vocabulary_rows)
    yield "]"


def _iter_rows_as_json(rows: Sequence[str]) -> Iterator[str]:
    """Yield the rows as one JSON array, in chunks of DIGEST_CHUNK_ROWS rows."""
    yield "["
    iterator, separator = iter(rows), ""
    while chunk := list(islice(iterator, DIGEST_CHUNK_ROWS)):
        yield separator + _dump_json(chunk)[1:-1]
        separator = ", "
    yield "]"


def _dump_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
