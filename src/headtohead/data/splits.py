"""What a corpus is: texts with named splits, and how a share of the rows is held back.

A row falls on one side by the hash of its text alone: equal rows stay together, and the split does not change when
rows are added or the order does.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal

from headtohead import rng
from headtohead.data.file_errors import MAX_ITEMS_SHOWN, build_file_error
from headtohead.errors import DataError, ValidationIssue, suggest

SplitRole = Literal["train", "validation", "test"]

TEST_FRACTION = 0.1
MAX_LABELS = 10_000
DIGEST_CHUNK_ROWS = 1024
DIGEST_LABELS = {True: "classify", False: "language-model"}
"""first entry of the digest; published results name corpora by their digest, so it must not change"""


@dataclass(frozen=True)
class Split:
    """One named part of a corpus. Labels are indices into the corpus's label_names."""

    name: str
    role: SplitRole
    rows: Sequence[str]
    """in memory, or on disk (`texts.Texts`)"""
    labels: tuple[int, ...] | None = None
    separator: str = "\n"
    """what stands between two rows when they are read as one stream"""


@dataclass(frozen=True)
class Corpus:
    """Texts with named splits, and what a tokenizer may learn from."""

    has_labels: bool
    splits: Mapping[str, Split]
    label_names: tuple[str, ...]
    vocabulary_rows: Sequence[str]
    origin: str
    """where from, in plain words; the licence if it is known"""
    digest: str
    """SHA-256 of every split, the labels and what the vocabulary is made from"""

    @property
    def train(self) -> Split:
        return self.splits["train"]

    @property
    def validation(self) -> Split | None:
        return self.splits.get("validation")

    def get_test_splits(self) -> tuple[Split, ...]:
        """The test splits."""
        return tuple(split for split in self.splits.values() if split.role == "test")


@dataclass(frozen=True)
class RawSplit:
    """Rows as read: labels are still words, and each row knows its line."""

    rows: Sequence[str]
    labels: tuple[str, ...] | None = None
    lines: tuple[int, ...] = ()
    path: str = ""
    separator: str = "\n"

    def pick(self, row_mask: Iterable[bool]) -> RawSplit:
        at = [i for i, one in enumerate(row_mask) if one]
        return RawSplit(
            tuple(self.rows[i] for i in at),
            tuple(self.labels[i] for i in at) if self.labels is not None else None,
            tuple(self.lines[i] for i in at) if self.lines else (),
            self.path,
            self.separator,
        )


@dataclass(frozen=True)
class RawCorpus:
    """What a source gave: which splits it has, and the texts of every training file."""

    train: RawSplit
    origin: str
    validation: RawSplit | None = None
    tests: Mapping[str, RawSplit] = field(default_factory=dict)
    course_rows: tuple[str, ...] = ()
    """every row of every training file, the other task's too"""


def build_corpus(
    raw_corpus: RawCorpus,
    *,
    has_labels: bool,
    validation_fraction: float,
    vocabulary_source: Literal["train", "course"],
    max_test_rows: int | None = None,
) -> Corpus:
    """The corpus: what the source lacks is held back from train, labels become numbers."""
    names = _collect_label_names(raw_corpus.train) if has_labels else ()
    train, tests = raw_corpus.train, dict(raw_corpus.tests)
    if not tests:
        train, tests["test"] = hold_out(train, TEST_FRACTION, "test")
    held = raw_corpus.validation
    if held is None and validation_fraction > 0:
        train, held = hold_out(train, validation_fraction, "validation")
    splits = {"train": _build_split("train", "train", train, names)}
    if held is not None:
        splits["validation"] = _build_split("validation", "validation", held, names)
    for name, table in tests.items():
        if max_test_rows is not None:
            table = table.pick(i < max_test_rows for i in range(len(table.rows)))
        if name in splits:
            raise DataError(f"a held-out text cannot be named {name!r}: that is a split of its own")
        splits[name] = _build_split(name, "test", table, names)
    rows = _select_course_rows(raw_corpus, held) if vocabulary_source == "course" else train.rows
    return Corpus(
        has_labels,
        splits,
        names,
        rows,
        describe_origin(raw_corpus, validation_fraction),
        compute_digest(has_labels, splits, names, rows),
    )


def describe_origin(raw_corpus: RawCorpus, validation_fraction: float) -> str:
    """Where the texts are from, and what was held back from train."""
    origin = raw_corpus.origin
    if not raw_corpus.tests:
        origin += f"; no test split: {TEST_FRACTION:.0%} of the rows by hash of the text"
    if raw_corpus.validation is None and validation_fraction > 0:
        origin += f"; validation: {validation_fraction:.0%} of train by hash of the text"
    return origin


def _select_course_rows(raw_corpus: RawCorpus, held_out: RawSplit | None) -> Sequence[str]:
    """Every training file's rows but those held back from train: they must be as strange to the model as a test text.
    (Where the other task's file has such a row too it stays, as it does for the course's test texts.)"""
    apart = set(held_out.rows) if held_out is not None and raw_corpus.validation is None else set()
    return tuple(row for row in raw_corpus.course_rows or raw_corpus.train.rows if row not in apart)


def hold_out(raw_split: RawSplit, fraction: float, purpose: str) -> tuple[RawSplit, RawSplit]:
    """What is left, and the share that was taken: about so many rows, at least one text."""
    keys = [rng.derive_seed("split", purpose, row) for row in raw_split.rows]
    limit = max(int(fraction * 2**63), min(keys) + 1)
    left, taken = raw_split.pick(key >= limit for key in keys), raw_split.pick(key < limit for key in keys)
    if not left.rows:
        raise DataError(
            f"{raw_split.path}: {_format_count(len(raw_split.rows), 'row')} (equal ones count once) cannot be split into train and "  # noqa: E501
            f"{purpose}; give more text, or files of their own for each split (data.files)"
        )
    return left, taken


def _build_split(name: str, role: SplitRole, raw_split: RawSplit, label_names: tuple[str, ...]) -> Split:
    if not label_names:
        return Split(name, role, raw_split.rows, None, raw_split.separator)
    assert raw_split.labels is not None, "a table of a classifier has labels"
    number = {label: i for i, label in enumerate(label_names)}
    if unknown := [i for i, label in enumerate(raw_split.labels) if label not in number]:
        shown = [_build_unknown_label_error(raw_split, i, label_names) for i in unknown[:MAX_ITEMS_SHOWN]]
        raise build_file_error(raw_split.path, shown, num_errors=len(unknown))
    return Split(name, role, raw_split.rows, tuple(number[label] for label in raw_split.labels), raw_split.separator)


def _build_unknown_label_error(raw_split: RawSplit, row_index: int, label_names: tuple[str, ...]) -> ValidationIssue:
    assert raw_split.labels is not None
    label = raw_split.labels[row_index]
    return ValidationIssue(
        f"line {raw_split.lines[row_index]}",
        f"label {label!r} never occurs in train",
        label_names,
        suggest(label, label_names),
    )


def _collect_label_names(train: RawSplit) -> tuple[str, ...]:
    """In the order of their numbers if they are numbers, else of the alphabet."""
    assert train.labels is not None, "a table of a classifier has labels"
    names = set(train.labels)
    if len(names) < 2:
        raise DataError(f"{train.path}: every row has the label {train.labels[0]!r}; a classifier needs two or more")
    if len(names) > MAX_LABELS:
        raise DataError(f"{train.path}: {len(names):,} different labels; a classifier names {MAX_LABELS:,} at most")
    numbers = all(re.fullmatch(r"-?\d{1,18}", name) for name in names)
    order: Callable[[str], tuple[int, str]] = lambda name: (int(name) if numbers else 0, name)  # noqa: E731
    return tuple(sorted(names, key=order))


def compute_digest(
    has_labels: bool, splits: Mapping[str, Split], label_names: tuple[str, ...], vocabulary_rows: Sequence[str]
) -> str:
    """SHA-256 of all of it as one JSON list, fed piece by piece: the texts may be larger than memory."""
    made = hashlib.sha256()
    for piece in _iter_json_chunks(has_labels, splits, label_names, vocabulary_rows):
        made.update(piece.encode())
    return made.hexdigest()


def _iter_json_chunks(
    has_labels: bool, splits: Mapping[str, Split], label_names: tuple[str, ...], vocabulary_rows: Sequence[str]
) -> Iterator[str]:
    yield f"[{_dump_json(DIGEST_LABELS[has_labels])}, {_dump_json(label_names)}, ["
    for at, split in enumerate(splits.values()):
        yield f"{', ' if at else ''}[{_dump_json(split.name)}, {_dump_json(split.role)}, "
        yield from _iter_rows_as_json(split.rows)
        yield f", {_dump_json(split.labels)}, {_dump_json(split.separator)}]"
    yield "], "
    yield from _iter_rows_as_json(vocabulary_rows)
    yield "]"


def _iter_rows_as_json(rows: Sequence[str]) -> Iterator[str]:
    yield "["
    every, between = iter(rows), ""
    while block := list(islice(every, DIGEST_CHUNK_ROWS)):
        yield between + _dump_json(block)[1:-1]
        between = ", "
    yield "]"


def _dump_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _format_count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
