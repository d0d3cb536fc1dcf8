"""Rows of text on disk, read in chunks and by index without loading the whole text.

NAME.text holds the concatenated rows in UTF-8; NAME.ends holds the start of each row and the end of the last one
(int64). Text is read rather than memory-mapped, because during iteration, mapped pages would count towards the
process's memory.
"""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, overload

import numpy as np
from numpy.typing import NDArray

from headtohead.atomic_io import translate_disk_full_error

READ_CHUNK_ROWS, READ_CHUNK_BYTES = 4096, 2**21


def memory_map(path: Path, dtype: Any) -> NDArray[Any]:
    """Map a file of numbers as an array. Pages are loaded on demand and shared between processes.

    The mapping is copy-on-write, because torch does not accept read-only arrays.
    """
    if not path.stat().st_size:
        return np.empty(0, dtype)
    with path.open("rb") as file:
        pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    if hasattr(mmap, "MADV_RANDOM"):
        pages.madvise(mmap.MADV_RANDOM)  # batches are scattered, so read-ahead is wasted
    return np.frombuffer(pages, dtype, len(pages) // np.dtype(dtype).itemsize)


class DiskTextRows(Sequence[str]):
    """The rows of NAME.text as a sequence."""

    def __init__(self, folder: Path, name: str, checksums: dict[str, str] | None = None) -> None:
        self.path = folder / f"{name}.text"
        self.checksums = checksums or {}
        """The SHA-256 of both files by name, if they have just been written."""
        self.ends: NDArray[np.int64] = memory_map(folder / f"{name}.ends", np.int64)

    def __len__(self) -> int:
        return len(self.ends) - 1

    def __iter__(self) -> Iterator[str]:
        return self.between(0, len(self))

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...

    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        if isinstance(index, slice):
            first, last, step = index.indices(len(self))
            return list(self.between(first, last)) if step == 1 else [self[i] for i in range(first, last, step)]
        row = index + len(self) if index < 0 else index
        if not 0 <= row < len(self):
            raise IndexError(f"row {index} is out of range for {len(self)} rows")
        return next(self.between(row, row + 1))

    def between(self, first_row: int, end_row: int) -> Iterator[str]:
        """Yield the rows from `first_row` up to, but not including, `end_row`."""
        with self.path.open("rb") as file:
            while first_row < end_row:
                chunk_end = min(first_row + READ_CHUNK_ROWS, end_row, self._find_chunk_end(first_row))
                ends = self.ends[first_row : chunk_end + 1].tolist()
                file.seek(ends[0])
                chunk = file.read(ends[-1] - ends[0])
                for start, end in pairwise(end - ends[0] for end in ends):
                    yield chunk[start:end].decode()
                first_row = chunk_end

    def _find_chunk_end(self, first_row: int) -> int:
        """Return the row after the last one that fits into a chunk; every chunk has at least one row."""
        limit = int(self.ends[first_row]) + READ_CHUNK_BYTES
        return max(first_row + 1, int(np.searchsorted(self.ends, limit, side="right")) - 1)

    def count_megabytes_before(self, row: int) -> int:
        """Return the size of the text before a row."""
        return int(self.ends[row]) // 2**20

    def compute_shard_boundaries(self, shard_bytes: int) -> list[int]:
        """Return row numbers, from 0 to the number of rows, that split the text into shards of about this size."""
        total = int(self.ends[-1])
        rows = np.searchsorted(self.ends, np.arange(shard_bytes, total, shard_bytes), side="left")
        return [0, *np.unique(rows[(rows > 0) & (rows < len(self))]).tolist(), len(self)]


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

    def add(self, row: bytes) -> None:
        """Append a row, encoded in UTF-8."""
        self._buffer.append(row)
        self._bytes_buffered += len(row)
        if self._bytes_buffered > READ_CHUNK_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write buffered rows to disk."""
        ends = self._bytes_written + np.cumsum([len(row) for row in self._buffer], dtype=np.int64)
        self._write("text", b"".join(self._buffer))
        self._write("ends", ends.tobytes())
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
        writer.add(row.encode())
    return writer.close()
