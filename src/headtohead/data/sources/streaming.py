"""Large plain texts: gone through in one pass, every row to its split as it comes, straight to disk.

The rows, the splits and the digest are those that a text in memory would give (`reading.read_passages`,
`splits.assemble`); a test holds the two together. What cannot be done in one pass goes the other way: labels, tables,
`vocabulary = "course"`, and texts of so few rows that a share of them may be none.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, overload

from headtohead.data.file_errors import MAX_ITEMS_SHOWN, build_file_error
from headtohead.data.splits import (
    TEST_FRACTION,
    Corpus,
    RawCorpus,
    RawSplit,
    Split,
    SplitRole,
    compute_digest,
    describe_origin,
)
from headtohead.data.text_store import DiskTextRows, DiskTextWriter
from headtohead.errors import DataError, ValidationIssue
from headtohead.progress import ProgressCallback, ProgressReporter

STREAMING_THRESHOLD_BYTES = 2**25
"""bytes of a file whose rows are not held in memory"""
PARAGRAPH_BLANK_LINE_FRACTION = 0.05
"""so many blank lines make a text one of paragraphs; fewer are taken for slips in a text of lines"""


class StreamedRows(Sequence[str]):
    """Rows of large files, read anew whenever they are gone through."""

    def __init__(self, *parts: Iterable[str]) -> None:
        self.parts = parts

    def __iter__(self) -> Iterator[str]:
        for part in self.parts:
            yield from part

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...

    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        return tuple(self)[index]


class StreamedTextFile:
    """A plain text on disk as rows: lines, or paragraphs where blank lines stand between them."""

    def __init__(self, path: Path, has_paragraphs: bool | None) -> None:
        self.path = path
        lines, blank = self._count()
        self.has_paragraphs = (
            blank >= max(1, PARAGRAPH_BLANK_LINE_FRACTION * lines) if has_paragraphs is None else has_paragraphs
        )

    def _count(self) -> tuple[int, int]:
        """How many lines it has, and how many are blank; line ends at the end of the file do not count."""
        lines = blank = ended_with = 0
        try:
            for line in self._iter_lines():
                lines += 1
                blank += not line or line.isspace()
                ended_with = 0 if line else ended_with + 1
        except UnicodeDecodeError:
            raise build_file_error(self.path, list(islice(self._find_invalid_lines(), MAX_ITEMS_SHOWN))) from None
        except OSError as error:
            raise DataError(f"{self.path}: cannot be read: {error.strerror}") from None
        if blank == lines:
            raise build_file_error(self.path, [ValidationIssue("file", "is empty; text was expected")])
        return lines - ended_with, blank - ended_with

    def _iter_lines(self) -> Iterator[str]:
        with self.path.open(encoding="utf-8-sig") as file:
            for line in file:
                yield line.removesuffix("\n")

    def _find_invalid_lines(self) -> Iterator[ValidationIssue]:
        at = 0
        with self.path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                try:
                    line.decode()
                except UnicodeDecodeError as error:
                    found = line[error.start : error.start + 4].hex(" ")
                    place = f"byte {at + error.start} (line {number})"
                    yield ValidationIssue(place, f"{found} is not UTF-8; save the file as UTF-8")
                at += len(line)

    def __iter__(self) -> Iterator[str]:
        lines = (line.rstrip() for line in self._iter_lines())
        return _iter_paragraphs(lines) if self.has_paragraphs else filter(None, lines)


def _iter_paragraphs(lines: Iterable[str]) -> Iterator[str]:
    block: list[str] = []
    for line in lines:
        if line:
            block.append(line)
        elif block:
            yield "\n".join(block)
            block = []
    if block:
        yield "\n".join(block)


def has_streamed_rows(raw_corpus: RawCorpus) -> bool:
    return any(isinstance(table.rows, StreamedRows) for table in _list_raw_splits(raw_corpus))


def load_into_memory(raw_corpus: RawCorpus) -> RawCorpus:
    """The same with every row at hand."""
    tests = {name: _load_rows(table) for name, table in raw_corpus.tests.items()}
    validation = None if raw_corpus.validation is None else _load_rows(raw_corpus.validation)
    return replace(raw_corpus, train=_load_rows(raw_corpus.train), validation=validation, tests=tests)


def _load_rows(raw_split: RawSplit) -> RawSplit:
    return replace(raw_split, rows=tuple(raw_split.rows))


def _list_raw_splits(raw_corpus: RawCorpus) -> list[RawSplit]:
    return [raw_corpus.train, *([raw_corpus.validation] if raw_corpus.validation else []), *raw_corpus.tests.values()]


class _HashHoldOut:
    """Which rows are held back for a purpose: those that `splits.hold_back` would take, if it takes any."""

    def __init__(self, purpose: str, fraction: float) -> None:
        # As streams.key hashes ("split", purpose, row), with the beginning hashed once.
        self._hash_prefix = hashlib.blake2b(f"str:split\x1fstr:{purpose}\x1fstr:".encode(), digest_size=8)
        self._hash_threshold = (2 * int(fraction * 2**63)).to_bytes(8, "big")

    def takes(self, row: bytes) -> bool:
        made = self._hash_prefix.copy()
        made.update(row)
        return made.digest() < self._hash_threshold


def build_corpus_on_disk(
    raw_corpus: RawCorpus,
    *,
    validation_fraction: float,
    max_test_rows: int | None,
    folder: Path,
    on_progress: ProgressCallback,
) -> Corpus | None:
    """The corpus of a language model with its rows in `folder`; None where too few rows were held back to be sure."""
    if {"train", "validation"} & set(raw_corpus.tests):
        return None  # names that are refused
    roles: dict[str, SplitRole] = {"train": "train"}
    held = (
        {"validation": _HashHoldOut("validation", validation_fraction)}
        if raw_corpus.validation is None and validation_fraction > 0
        else {}
    )
    if raw_corpus.validation is not None or held:
        roles["validation"] = "validation"
    roles |= dict.fromkeys(raw_corpus.tests or ("test",), "test")
    if not raw_corpus.tests:
        held = {"test": _HashHoldOut("test", TEST_FRACTION), **held}
    writers = {name: DiskTextWriter(folder, f"split{at}") for at, name in enumerate(roles)}
    taken = _distribute_train_rows(raw_corpus.train, held, writers, max_test_rows, on_progress)
    if not all(taken.values()):
        for writer in writers.values():
            writer.close()
        return None
    given = {**({"validation": raw_corpus.validation} if raw_corpus.validation else {}), **raw_corpus.tests}
    for name, table in given.items():
        for row in islice(table.rows, max_test_rows if name in raw_corpus.tests else None):
            writers[name].add(row.encode())
    splits = {}
    for at, (name, role) in enumerate(roles.items()):
        writers[name].close()
        joint = given[name].separator if name in given else raw_corpus.train.separator
        splits[name] = Split(name, role, DiskTextRows(folder, f"split{at}"), None, joint)
    rows = splits["train"].rows
    digest = compute_digest(False, splits, (), rows)
    return Corpus(False, splits, (), rows, describe_origin(raw_corpus, validation_fraction), digest)


def _distribute_train_rows(
    train: RawSplit,
    hold_outs: dict[str, _HashHoldOut],
    writers: dict[str, DiskTextWriter],
    max_test_rows: int | None,
    on_progress: ProgressCallback,
) -> dict[str, int]:
    """Every row of the training text to the split that takes it first. Gives how many each took."""
    taken = dict.fromkeys((*hold_outs, "train"), 0)
    room = {"test": max_test_rows}
    size = sum(part.path.stat().st_size for part in _list_text_files(train.rows))
    clock, done, told = ProgressReporter(f"reading {train.path}, in MB", size // 2**20, on_progress), 0, 0
    for row in train.rows:
        raw = row.encode()
        name = next((name for name, one in hold_outs.items() if one.takes(raw)), "train")
        taken[name] += 1
        limit = room.get(name)
        if limit is None or taken[name] <= limit:
            writers[name].add(raw)
        done += len(raw) + 1
        if done // 2**20 > told:
            clock.step(done // 2**20 - told)
            told = done // 2**20
    return taken


def _list_text_files(rows: Any) -> list[StreamedTextFile]:
    return [part for part in rows.parts if isinstance(part, StreamedTextFile)] if isinstance(rows, StreamedRows) else []
