"""Large plain-text files: read in one pass, with every row written directly to its split on disk.

Rows, splits and the digest equal those of the in-memory path (`file_formats.read_plain_text` and
`splits.build_corpus`); a test compares the two. Anything that needs more than one pass is read into memory instead:
labels, tables, `vocabulary = "folder"`, and texts so short that a held-out fraction may be empty.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import compress, islice
from pathlib import Path
from typing import Any, overload

from headtohead.config.tables.data import SplitRole
from headtohead.data.file_errors import MAX_LISTED_ITEMS, build_file_error
from headtohead.data.raw_corpus import RawCorpus, RawSplit
from headtohead.data.splits import (
    TEST_FRACTION,
    Corpus,
    Split,
    compute_corpus_digest,
    describe_corpus_origin,
    iter_sampled_runs,
)
from headtohead.data.text_store import DiskTextWriter
from headtohead.errors import DataError, ValidationIssue
from headtohead.progress import ProgressCallback, ProgressReporter

STREAMING_THRESHOLD_BYTES = 2**25
"""file size above which rows are not held in memory"""
PARAGRAPH_BLANK_LINE_FRACTION = 0.05
"""fraction of blank lines above which rows are paragraphs; fewer are treated as stray lines"""


class StreamedRows(Sequence[str]):
    """Rows of large files, read from disk on every iteration."""

    def __init__(self, *row_sources: Iterable[str]) -> None:
        self.row_sources = row_sources

    def __iter__(self) -> Iterator[str]:
        for rows in self.row_sources:
            yield from rows

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...

    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        return tuple(self)[index]


class StreamedTextFile:
    """A plain-text file as an iterable of rows: lines, or paragraphs separated by blank lines."""

    def __init__(self, path: Path, has_paragraphs: bool | None) -> None:
        self.path = path
        num_lines, num_blank_lines = self._count_lines()
        min_blank_lines = max(1, PARAGRAPH_BLANK_LINE_FRACTION * num_lines)
        self.has_paragraphs = num_blank_lines >= min_blank_lines if has_paragraphs is None else has_paragraphs

    def _count_lines(self) -> tuple[int, int]:
        """Return the number of lines and of blank lines, ignoring empty lines at the end of the file."""
        num_lines = num_blank = num_trailing = 0
        try:
            for line in self._iter_lines():
                num_lines += 1
                num_blank += not line or line.isspace()
                num_trailing = 0 if line else num_trailing + 1
        except UnicodeDecodeError:
            raise build_file_error(self.path, list(islice(self._find_invalid_lines(), MAX_LISTED_ITEMS))) from None
        except OSError as error:
            raise DataError(f"{self.path}: cannot be read: {error.strerror}") from None
        if num_blank == num_lines:
            raise build_file_error(self.path, [ValidationIssue("file", "is empty; expected text")])
        return num_lines - num_trailing, num_blank - num_trailing

    def _iter_lines(self) -> Iterator[str]:
        """Yield the lines of the file without their line breaks."""
        with self.path.open(encoding="utf-8-sig") as file:
            for line in file:
                yield line.removesuffix("\n")

    def _find_invalid_lines(self) -> Iterator[ValidationIssue]:
        """Yield an issue for each line that is not UTF-8."""
        byte_offset = 0
        with self.path.open("rb") as file:
            for line_number, line in enumerate(file, start=1):
                try:
                    line.decode()
                except UnicodeDecodeError as error:
                    invalid_bytes = line[error.start : error.start + 4].hex(" ")
                    location = f"byte {byte_offset + error.start} (line {line_number})"
                    yield ValidationIssue(location, f"{invalid_bytes} is not UTF-8; save the file as UTF-8")
                byte_offset += len(line)

    def __iter__(self) -> Iterator[str]:
        lines = (line.rstrip() for line in self._iter_lines())
        return _iter_streamed_paragraphs(lines) if self.has_paragraphs else filter(None, lines)


def _iter_streamed_paragraphs(lines: Iterable[str]) -> Iterator[str]:
    """Yield the paragraphs of a file that is too large for memory, while its lines are read."""
    paragraph_lines: list[str] = []
    for line in lines:
        if line:
            paragraph_lines.append(line)
        elif paragraph_lines:
            yield "\n".join(paragraph_lines)
            paragraph_lines = []
    if paragraph_lines:
        yield "\n".join(paragraph_lines)


def has_streamed_rows(raw_corpus: RawCorpus) -> bool:
    """Return whether the rows of a split are streamed from disk."""
    return any(isinstance(split.rows, StreamedRows) for split in raw_corpus.list_splits().values())


def load_into_memory(raw_corpus: RawCorpus) -> RawCorpus:
    """Return the corpus with all streamed rows read into memory, for settings that need more than one pass."""
    splits = {name: replace(split, rows=tuple(split.rows)) for name, split in raw_corpus.list_splits().items()}
    return replace(
        raw_corpus,
        train=splits.pop("train"),
        validation=None if raw_corpus.validation is None else splits.pop("validation"),
        tests=splits,
    )


class _HashHoldOut:
    """Selects the same rows for a held-out split as `splits.hold_out_rows`, one row at a time."""

    def __init__(self, purpose: str, fraction: float) -> None:
        # Equal to rng.derive_seed("split", purpose, row), with the constant prefix hashed once.
        self._hash_prefix = hashlib.blake2b(f"str:split\x1fstr:{purpose}\x1fstr:".encode(), digest_size=8)
        self._hash_threshold = (2 * int(fraction * 2**63)).to_bytes(8, "big")

    def selects_row(self, row: bytes) -> bool:
        """Return whether a row, encoded in UTF-8, is held out."""
        digest = self._hash_prefix.copy()
        digest.update(row)
        return digest.digest() < self._hash_threshold


def build_corpus_on_disk(
    raw_corpus: RawCorpus,
    *,
    validation_fraction: float,
    row_limits: Mapping[SplitRole, int],
    folder: Path,
    on_progress: ProgressCallback,
) -> Corpus | None:
    """Stream the rows of a language-model corpus into files in `folder`; None if a held-out split came out empty."""
    roles: dict[str, SplitRole] = {"train": "train"}
    hold_outs = (
        {"validation": _HashHoldOut("validation", validation_fraction)}
        if raw_corpus.validation is None and validation_fraction > 0
        else {}
    )
    if raw_corpus.validation is not None or hold_outs:
        roles["validation"] = "validation"
    roles |= dict.fromkeys(raw_corpus.tests or ("test",), "test")
    if not raw_corpus.tests:
        hold_outs = {"test": _HashHoldOut("test", TEST_FRACTION), **hold_outs}
    writers = {name: DiskTextWriter(folder, f"split{i}") for i, name in enumerate(roles)}
    max_rows_by_split = {name: row_limits[role] for name, role in roles.items() if role in row_limits}
    row_counts = _distribute_train_rows(raw_corpus.train, hold_outs, writers, max_rows_by_split, on_progress)
    if not all(row_counts.values()):
        for writer in writers.values():
            writer.close()
        return None
    raw_splits = raw_corpus.list_splits()
    for name, split in raw_splits.items():
        if name != "train":
            for row in _sample_streamed_rows(split.rows, max_rows_by_split.get(name)):
                writers[name].add_row(row.encode())
    splits = {}
    for name, role in roles.items():
        raw_split = raw_splits.get(name, raw_corpus.train)
        # Rows held out of train are separate documents, as in `splits.hold_out_rows`.
        documents = tuple(raw_split.documents) if name in raw_splits else ()
        splits[name] = Split(name, role, writers[name].close(), None, raw_split.separator, documents)
    vocabulary_rows = splits["train"].rows
    digest = compute_corpus_digest(False, splits, (), vocabulary_rows)
    return Corpus(False, splits, (), vocabulary_rows, describe_corpus_origin(raw_corpus, validation_fraction), digest)


def _distribute_train_rows(
    train: RawSplit,
    hold_outs: dict[str, _HashHoldOut],
    writers: dict[str, DiskTextWriter],
    max_rows_by_split: Mapping[str, int],
    on_progress: ProgressCallback,
) -> dict[str, int]:
    """Stream each training row to the first split that selects it, if that split's sample includes it.

    Return the number of rows assigned to each split before sampling. With row limits, a first pass counts the rows.
    """

    def find_split_name(row: bytes) -> str:
        return next((name for name, hold_out in hold_outs.items() if hold_out.selects_row(row)), "train")

    total_counts = Counter(find_split_name(row.encode()) for row in train.rows) if max_rows_by_split else {}
    is_sampled = {
        name: iter_sampled_runs(total_counts[name], max_rows_by_split[name])
        for name in total_counts
        if name in max_rows_by_split
    }
    row_counts = dict.fromkeys((*hold_outs, "train"), 0)
    total_bytes = sum(file.path.stat().st_size for file in _list_streamed_files(train.rows))
    progress = ProgressReporter(f"reading {train.path}, in MB", total_bytes // 2**20, on_progress)
    num_bytes = reported_megabytes = 0
    for row in train.rows:
        encoded_row = row.encode()
        name = find_split_name(encoded_row)
        row_counts[name] += 1
        if name not in is_sampled or next(is_sampled[name]):
            writers[name].add_row(encoded_row)
        num_bytes += len(encoded_row) + 1
        if num_bytes // 2**20 > reported_megabytes:
            progress.step(num_bytes // 2**20 - reported_megabytes)
            reported_megabytes = num_bytes // 2**20
    return row_counts


def _sample_streamed_rows(rows: Sequence[str], max_rows: int | None) -> Iterable[str]:
    """Return the rows that `splits.sample_rows` selects."""
    return rows if max_rows is None else compress(rows, iter_sampled_runs(len(rows), max_rows))


def _list_streamed_files(rows: Any) -> list[StreamedTextFile]:
    """Return the large files among the sources of a split's rows."""
    row_sources = rows.row_sources if isinstance(rows, StreamedRows) else ()
    return [file for file in row_sources if isinstance(file, StreamedTextFile)]
