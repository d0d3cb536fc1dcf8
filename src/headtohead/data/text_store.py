"""Rows of text on disk, read in chunks and by index without loading the whole text.

NAME.text contains the concatenated rows in UTF-8; NAME.ends contains 0 and the end of each row in it, in bytes (int64).
Text is read rather than memory-mapped, because during iteration, mapped pages would count towards the process's memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO, overload

import numpy as np
from numpy.typing import NDArray

from headtohead.atomic_io import translate_disk_full_error
from headtohead.data.mapped_arrays import memory_map_array

READ_CHUNK_ROWS = 4096
READ_CHUNK_BYTES = 2**21
"""limits of the rows that are read at a time"""


class DiskTextRows(Sequence[str]):
    """The rows of NAME.text as a sequence."""

    def __init__(self, folder: Path, name: str, checksums: dict[str, str] | None = None) -> None:
        self.path = folder / f"{name}.text"
        self.checksums = checksums or {}
        """The SHA-256 of both files by name, if they have just been written."""
        self.row_ends: NDArray[np.int64] = memory_map_array(folder / f"{name}.ends", np.int64)

    def __len__(self) -> int:
        return len(self.row_ends) - 1

    def __iter__(self) -> Iterator[str]:
        return self.iter_range(0, len(self))

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...

    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        """Read one row, or the rows of a slice, from disk."""
        if isinstance(index, slice):
            first, last, step = index.indices(len(self))
            return list(self.iter_range(first, last)) if step == 1 else [self[i] for i in range(first, last, step)]
        row = index + len(self) if index < 0 else index
        if not 0 <= row < len(self):
            raise IndexError(f"row {index} is out of range for {len(self)} rows")
        return next(self.iter_range(row, row + 1))

    def iter_range(self, first_row: int, end_row: int) -> Iterator[str]:
        """Yield the rows from `first_row` up to, but not including, `end_row`."""
        with self.path.open("rb") as file:
            while first_row < end_row:
                chunk_end = min(first_row + READ_CHUNK_ROWS, end_row, self._find_chunk_end(first_row))
                boundaries = self.row_ends[first_row : chunk_end + 1].tolist()
                file.seek(boundaries[0])
                chunk = file.read(boundaries[-1] - boundaries[0])
                for start, end in pairwise(boundary - boundaries[0] for boundary in boundaries):
                    yield chunk[start:end].decode()
                first_row = chunk_end

    def _find_chunk_end(self, first_row: int) -> int:
        """Return the row after the last one that fits into a chunk; every chunk has at least one row."""
        max_end = int(self.row_ends[first_row]) + READ_CHUNK_BYTES
        return max(first_row + 1, int(np.searchsorted(self.row_ends, max_end, side="right")) - 1)

    def count_megabytes_before(self, row: int) -> int:
        """Return the size of the text before a row in megabytes, rounded down."""
        return int(self.row_ends[row]) // 2**20

    def compute_shard_boundaries(self, shard_bytes: int) -> list[int]:
        """Return row indices, from 0 to the number of rows, that split the text into shards of about this size."""
        return _compute_shard_boundaries(self.row_ends, shard_bytes)


def _compute_shard_boundaries(row_ends: NDArray[np.int64], shard_bytes: int) -> list[int]:
    """Return the rows at which to split stored text into shards of about `shard_bytes`; `row_ends` starts with 0."""
    num_rows = len(row_ends) - 1
    target_ends = np.arange(shard_bytes, int(row_ends[-1]), shard_bytes)
    boundaries = np.searchsorted(row_ends, target_ends, side="left")
    return [0, *np.unique(boundaries[(boundaries > 0) & (boundaries < num_rows)]).tolist(), num_rows]


def iter_sampled_text(rows: Sequence[str], max_bytes: int) -> Iterator[str]:
    """Yield evenly spaced runs of stored rows with about `max_bytes` of text, or all rows if they have no more.

    The sample on which a BPE tokenizer is trained.
    """
    if isinstance(rows, DiskTextRows):
        row_ends = rows.row_ends
    else:
        row_ends = np.cumsum([0, *(len(row.encode()) for row in rows)], dtype=np.int64)
    boundaries = _compute_shard_boundaries(row_ends, READ_CHUNK_BYTES)
    num_shards, num_sampled = len(boundaries) - 1, max(1, max_bytes // READ_CHUNK_BYTES)
    for index in range(min(num_shards, num_sampled)):
        shard = index * num_shards // num_sampled if num_shards > num_sampled else index
        yield from rows[boundaries[shard] : boundaries[shard + 1]]


class DiskTextWriter:
    """Append rows to NAME.text and NAME.ends."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        self.files: dict[str, BinaryIO] = {
            suffix: (folder / f"{name}.{suffix}").open("wb") for suffix in ("text", "ends")
        }
        self._checksums = {suffix: hashlib.sha256() for suffix in self.files}
        self._write("ends", np.zeros(1, np.int64).tobytes())
        self._bytes_written = self._bytes_buffered = 0
        self._buffer: list[bytes] = []

    def add_row(self, row: bytes) -> None:
        """Append a row, encoded in UTF-8."""
        self._buffer.append(row)
        self._bytes_buffered += len(row)
        if self._bytes_buffered > READ_CHUNK_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write buffered rows to disk."""
        row_ends = self._bytes_written + np.cumsum([len(row) for row in self._buffer], dtype=np.int64)
        self._write("text", b"".join(self._buffer))
        self._write("ends", row_ends.tobytes())
        self._bytes_written += self._bytes_buffered
        self._buffer, self._bytes_buffered = [], 0

    def _write(self, suffix: str, content: bytes) -> None:
        with translate_disk_full_error(Path(self.files[suffix].name)):
            self.files[suffix].write(content)
        self._checksums[suffix].update(content)

    def close(self) -> DiskTextRows:
        """Write buffered rows, close both files and return the rows as a sequence."""
        self.flush()
        for file in self.files.values():
            with translate_disk_full_error(Path(file.name)):
                file.close()
        checksums = {f"{self.name}.{suffix}": checksum.hexdigest() for suffix, checksum in self._checksums.items()}
        return DiskTextRows(self.folder, self.name, checksums)


def write_text_rows(folder: Path, name: str, rows: Iterable[str]) -> DiskTextRows:
    """Write rows to disk and return them as a sequence."""
    writer = DiskTextWriter(folder, name)
    for row in rows:
        writer.add_row(row.encode())
    return writer.close()
