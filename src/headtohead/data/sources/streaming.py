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

from headtohead.data.file_errors import SHOWN, refusal
from headtohead.data.splits import TEST_SHARE, Corpus, Found, Role, Split, Table, digest_of, origin_of
from headtohead.data.text_store import Texts, TextWriter
from headtohead.errors import CorpusError, Fault
from headtohead.progress import Clock, Tell

LARGE = 2**25
"""bytes of a file whose rows are not held in memory"""
PARAGRAPH_SHARE = 0.05
"""so many blank lines make a text one of paragraphs; fewer are taken for slips in a text of lines"""


class Passages(Sequence[str]):
    """Rows of large files, read anew whenever they are gone through."""

    def __init__(self, *parts: Iterable[str]) -> None:
        self.parts = parts

    def __iter__(self) -> Iterator[str]:
        for part in self.parts:
            yield from part

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @overload
    def __getitem__(self, at: int) -> str: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[str]: ...

    def __getitem__(self, at: int | slice) -> str | Sequence[str]:
        return tuple(self)[at]


class TextFile:
    """A plain text on disk as rows: lines, or paragraphs where blank lines stand between them."""

    def __init__(self, path: Path, paragraphs: bool | None) -> None:
        self.path = path
        lines, blank = self._count()
        self.paragraphs = blank >= max(1, PARAGRAPH_SHARE * lines) if paragraphs is None else paragraphs

    def _count(self) -> tuple[int, int]:
        """How many lines it has, and how many are blank; line ends at the end of the file do not count."""
        lines = blank = ended_with = 0
        try:
            for line in self._lines():
                lines += 1
                blank += not line or line.isspace()
                ended_with = 0 if line else ended_with + 1
        except UnicodeDecodeError:
            raise refusal(self.path, list(islice(self._bad_lines(), SHOWN))) from None
        except OSError as error:
            raise CorpusError(f"{self.path}: cannot be read: {error.strerror}") from None
        if blank == lines:
            raise refusal(self.path, [Fault("file", "is empty; text was expected")])
        return lines - ended_with, blank - ended_with

    def _lines(self) -> Iterator[str]:
        with self.path.open(encoding="utf-8-sig") as file:
            for line in file:
                yield line.removesuffix("\n")

    def _bad_lines(self) -> Iterator[Fault]:
        at = 0
        with self.path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                try:
                    line.decode()
                except UnicodeDecodeError as error:
                    found = line[error.start : error.start + 4].hex(" ")
                    place = f"byte {at + error.start} (line {number})"
                    yield Fault(place, f"{found} is not UTF-8; save the file as UTF-8")
                at += len(line)

    def __iter__(self) -> Iterator[str]:
        lines = (line.rstrip() for line in self._lines())
        return _paragraphs(lines) if self.paragraphs else filter(None, lines)


def _paragraphs(lines: Iterable[str]) -> Iterator[str]:
    block: list[str] = []
    for line in lines:
        if line:
            block.append(line)
        elif block:
            yield "\n".join(block)
            block = []
    if block:
        yield "\n".join(block)


def is_large(found: Found) -> bool:
    return any(isinstance(table.rows, Passages) for table in _tables(found))


def in_memory(found: Found) -> Found:
    """The same with every row at hand."""
    tests = {name: _held(table) for name, table in found.tests.items()}
    validation = None if found.validation is None else _held(found.validation)
    return replace(found, train=_held(found.train), validation=validation, tests=tests)


def _held(table: Table) -> Table:
    return replace(table, rows=tuple(table.rows))


def _tables(found: Found) -> list[Table]:
    return [found.train, *([found.validation] if found.validation else []), *found.tests.values()]


class _Held:
    """Which rows are held back for a purpose: those that `splits.hold_back` would take, if it takes any."""

    def __init__(self, purpose: str, share: float) -> None:
        # As streams.key hashes ("split", purpose, row), with the beginning hashed once.
        self._begun = hashlib.blake2b(f"str:split\x1fstr:{purpose}\x1fstr:".encode(), digest_size=8)
        self._limit = (2 * int(share * 2**63)).to_bytes(8, "big")

    def takes(self, row: bytes) -> bool:
        made = self._begun.copy()
        made.update(row)
        return made.digest() < self._limit


def assemble_on_disk(
    found: Found, *, validation: float, test_rows: int | None, folder: Path, tell: Tell
) -> Corpus | None:
    """The corpus of a language model with its rows in `folder`; None where too few rows were held back to be sure."""
    if {"train", "validation"} & set(found.tests):
        return None  # names that are refused
    roles: dict[str, Role] = {"train": "train"}
    held = {"validation": _Held("validation", validation)} if found.validation is None and validation > 0 else {}
    if found.validation is not None or held:
        roles["validation"] = "validation"
    roles |= dict.fromkeys(found.tests or ("test",), "test")
    if not found.tests:
        held = {"test": _Held("test", TEST_SHARE), **held}
    writers = {name: TextWriter(folder, f"split{at}") for at, name in enumerate(roles)}
    taken = _part(found.train, held, writers, test_rows, tell)
    if not all(taken.values()):
        for writer in writers.values():
            writer.close()
        return None
    given = {**({"validation": found.validation} if found.validation else {}), **found.tests}
    for name, table in given.items():
        for row in islice(table.rows, test_rows if name in found.tests else None):
            writers[name].add(row.encode())
    splits = {}
    for at, (name, role) in enumerate(roles.items()):
        writers[name].close()
        joint = given[name].joint if name in given else found.train.joint
        splits[name] = Split(name, role, Texts(folder, f"split{at}"), None, joint)
    rows = splits["train"].rows
    digest = digest_of("language-model", splits, (), rows)
    return Corpus("language-model", splits, (), rows, origin_of(found, validation), digest)


def _part(
    train: Table, held: dict[str, _Held], writers: dict[str, TextWriter], test_rows: int | None, tell: Tell
) -> dict[str, int]:
    """Every row of the training text to the split that takes it first. Gives how many each took."""
    taken = dict.fromkeys((*held, "train"), 0)
    room = {"test": test_rows}
    size = sum(part.path.stat().st_size for part in _files(train.rows))
    clock, done, told = Clock(f"reading {train.path}, in MB", size // 2**20, tell), 0, 0
    for row in train.rows:
        raw = row.encode()
        name = next((name for name, one in held.items() if one.takes(raw)), "train")
        taken[name] += 1
        limit = room.get(name)
        if limit is None or taken[name] <= limit:
            writers[name].add(raw)
        done += len(raw) + 1
        if done // 2**20 > told:
            clock.step(done // 2**20 - told)
            told = done // 2**20
    return taken


def _files(rows: Any) -> list[TextFile]:
    return [part for part in rows.parts if isinstance(part, TextFile)] if isinstance(rows, Passages) else []
