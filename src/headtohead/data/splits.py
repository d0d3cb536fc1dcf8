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
from headtohead.data.file_errors import SHOWN, refusal
from headtohead.errors import CorpusError, Fault, nearest

Task = Literal["language-model", "classify"]
Role = Literal["train", "validation", "test"]

TEST_SHARE = 0.1
MOST_LABELS = 10_000
ROWS_AT_ONCE = 1024


@dataclass(frozen=True)
class Split:
    """One named part of a corpus. Labels are indices into the corpus's label_names."""

    name: str
    role: Role
    rows: Sequence[str]
    """in memory, or on disk (`texts.Texts`)"""
    labels: tuple[int, ...] | None = None
    joint: str = "\n"
    """what stands between two rows when they are read as one stream"""


@dataclass(frozen=True)
class Corpus:
    """Texts with named splits, and what a tokenizer may learn from."""

    task: Task
    splits: Mapping[str, Split]
    label_names: tuple[str, ...]
    vocabulary_rows: Sequence[str]
    origin: str
    """where from, in plain words; the licence if it is known"""
    digest: str
    """SHA-256 of the task, every split and what the vocabulary is made from"""

    @property
    def train(self) -> Split:
        return self.splits["train"]

    @property
    def validation(self) -> Split | None:
        return self.splits.get("validation")

    def held_out(self) -> tuple[Split, ...]:
        """The test splits."""
        return tuple(split for split in self.splits.values() if split.role == "test")


@dataclass(frozen=True)
class Table:
    """Rows as read: labels are still words, and each row knows its line."""

    rows: Sequence[str]
    labels: tuple[str, ...] | None = None
    lines: tuple[int, ...] = ()
    path: str = ""
    joint: str = "\n"

    def pick(self, wanted: Iterable[bool]) -> Table:
        at = [i for i, one in enumerate(wanted) if one]
        return Table(
            tuple(self.rows[i] for i in at),
            tuple(self.labels[i] for i in at) if self.labels is not None else None,
            tuple(self.lines[i] for i in at) if self.lines else (),
            self.path,
            self.joint,
        )


@dataclass(frozen=True)
class Found:
    """What a source gave: which splits it has, and the texts of every training file."""

    train: Table
    origin: str
    validation: Table | None = None
    tests: Mapping[str, Table] = field(default_factory=dict)
    course: tuple[str, ...] = ()
    """every row of every training file, the other task's too"""


def assemble(
    found: Found,
    task: Task,
    *,
    validation: float,
    vocabulary: Literal["train", "course"],
    test_rows: int | None = None,
) -> Corpus:
    """The corpus: what the source lacks is held back from train, labels become numbers."""
    names = _label_names(found.train) if task == "classify" else ()
    train, tests = found.train, dict(found.tests)
    if not tests:
        train, tests["test"] = hold_back(train, TEST_SHARE, "test")
    held = found.validation
    if held is None and validation > 0:
        train, held = hold_back(train, validation, "validation")
    splits = {"train": _split("train", "train", train, names)}
    if held is not None:
        splits["validation"] = _split("validation", "validation", held, names)
    for name, table in tests.items():
        if test_rows is not None:
            table = table.pick(i < test_rows for i in range(len(table.rows)))
        if name in splits:
            raise CorpusError(f"a held-out text cannot be named {name!r}: that is a split of its own")
        splits[name] = _split(name, "test", table, names)
    rows = _course_rows(found, held) if vocabulary == "course" else train.rows
    return Corpus(task, splits, names, rows, origin_of(found, validation), digest_of(task, splits, names, rows))


def origin_of(found: Found, validation: float) -> str:
    """Where the texts are from, and what was held back from train."""
    origin = found.origin
    if not found.tests:
        origin += f"; no test split: {TEST_SHARE:.0%} of the rows by hash of the text"
    if found.validation is None and validation > 0:
        origin += f"; validation: {validation:.0%} of train by hash of the text"
    return origin


def _course_rows(found: Found, held: Table | None) -> Sequence[str]:
    """Every training file's rows but those held back from train: they must be as strange to the model as a test text.
    (Where the other task's file has such a row too it stays, as it does for the course's test texts.)"""
    apart = set(held.rows) if held is not None and found.validation is None else set()
    return tuple(row for row in found.course or found.train.rows if row not in apart)


def hold_back(table: Table, share: float, purpose: str) -> tuple[Table, Table]:
    """What is left, and the share that was taken: about so many rows, at least one text."""
    keys = [rng.key("split", purpose, row) for row in table.rows]
    limit = max(int(share * 2**63), min(keys) + 1)
    left, taken = table.pick(key >= limit for key in keys), table.pick(key < limit for key in keys)
    if not left.rows:
        raise CorpusError(
            f"{table.path}: {_count(len(table.rows), 'row')} (equal ones count once) cannot be split into train and "
            f"{purpose}; give more text, or files of their own for each split (data.files)"
        )
    return left, taken


def _split(name: str, role: Role, table: Table, label_names: tuple[str, ...]) -> Split:
    if not label_names:
        return Split(name, role, table.rows, None, table.joint)
    assert table.labels is not None, "a table of a classifier has labels"
    number = {label: i for i, label in enumerate(label_names)}
    if unknown := [i for i, label in enumerate(table.labels) if label not in number]:
        shown = [_unknown_label(table, i, label_names) for i in unknown[:SHOWN]]
        raise refusal(table.path, shown, count=len(unknown))
    return Split(name, role, table.rows, tuple(number[label] for label in table.labels), table.joint)


def _unknown_label(table: Table, at: int, known: tuple[str, ...]) -> Fault:
    assert table.labels is not None
    label = table.labels[at]
    return Fault(f"line {table.lines[at]}", f"label {label!r} never occurs in train", known, nearest(label, known))


def _label_names(train: Table) -> tuple[str, ...]:
    """In the order of their numbers if they are numbers, else of the alphabet."""
    assert train.labels is not None, "a table of a classifier has labels"
    names = set(train.labels)
    if len(names) < 2:
        raise CorpusError(f"{train.path}: every row has the label {train.labels[0]!r}; a classifier needs two or more")
    if len(names) > MOST_LABELS:
        raise CorpusError(f"{train.path}: {len(names):,} different labels; a classifier names {MOST_LABELS:,} at most")
    numbers = all(re.fullmatch(r"-?\d{1,18}", name) for name in names)
    order: Callable[[str], tuple[int, str]] = lambda name: (int(name) if numbers else 0, name)  # noqa: E731
    return tuple(sorted(names, key=order))


def digest_of(task: Task, splits: Mapping[str, Split], names: tuple[str, ...], vocabulary: Sequence[str]) -> str:
    """SHA-256 of all of it as one JSON list, fed piece by piece: the texts may be larger than memory."""
    made = hashlib.sha256()
    for piece in _pieces(task, splits, names, vocabulary):
        made.update(piece.encode())
    return made.hexdigest()


def _pieces(
    task: Task, splits: Mapping[str, Split], names: tuple[str, ...], vocabulary: Sequence[str]
) -> Iterator[str]:
    yield f"[{_json(task)}, {_json(names)}, ["
    for at, split in enumerate(splits.values()):
        yield f"{', ' if at else ''}[{_json(split.name)}, {_json(split.role)}, "
        yield from _rows_as_json(split.rows)
        yield f", {_json(split.labels)}, {_json(split.joint)}]"
    yield "], "
    yield from _rows_as_json(vocabulary)
    yield "]"


def _rows_as_json(rows: Sequence[str]) -> Iterator[str]:
    yield "["
    every, between = iter(rows), ""
    while block := list(islice(every, ROWS_AT_ONCE)):
        yield between + _json(block)[1:-1]
        between = ", "
    yield "]"


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
