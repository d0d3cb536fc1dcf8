"""Rows of text that stay on disk: iterated in blocks, found by number, never in memory as a whole.

NAME.text holds the rows end to end in UTF-8, NAME.ends where each begins and the last one ends (int64). Rows are read,
not mapped: mapped pages of a text that is gone through would count as memory of the process.
"""

from __future__ import annotations

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
    """A file of numbers as an array whose pages are read when they are needed and shared between processes. It may be
    written to, and what is written stays in this process: torch takes no array that is read-only."""
    if not path.stat().st_size:
        return np.empty(0, dtype)
    with path.open("rb") as file:
        pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    if hasattr(mmap, "MADV_RANDOM"):
        pages.madvise(mmap.MADV_RANDOM)  # a batch is read here and there: what stands beside it is not needed
    return np.frombuffer(pages, dtype)


class DiskTextRows(Sequence[str]):
    """The rows of NAME.text."""

    def __init__(self, folder: Path, name: str) -> None:
        self.path = folder / f"{name}.text"
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
        place = index + len(self) if index < 0 else index
        if not 0 <= place < len(self):
            raise IndexError(f"no row {index} of {len(self)}")
        return next(self.between(place, place + 1))

    def between(self, first_row: int, end_row: int) -> Iterator[str]:
        """Rows from number `first` to before `last`."""
        with self.path.open("rb") as file:
            while first_row < end_row:
                upto = min(first_row + READ_CHUNK_ROWS, end_row, self._find_block_end(first_row))
                ends = self.ends[first_row : upto + 1].tolist()
                file.seek(ends[0])
                block = file.read(ends[-1] - ends[0])
                for start, end in pairwise(end - ends[0] for end in ends):
                    yield block[start:end].decode()
                first_row = upto

    def _find_block_end(self, first_row: int) -> int:
        """The row after those that fit into one block; at least one does."""
        limit = int(self.ends[first_row]) + READ_CHUNK_BYTES
        return max(first_row + 1, int(np.searchsorted(self.ends, limit, side="right")) - 1)

    def count_megabytes_before(self, row: int) -> int:
        """How much text stands before this row."""
        return int(self.ends[row]) // 2**20

    def compute_shard_boundaries(self, shard_bytes: int) -> list[int]:
        """Row numbers that cut the text into pieces of about so many bytes, from 0 to the number of rows."""
        total = int(self.ends[-1])
        found = np.searchsorted(self.ends, np.arange(shard_bytes, total, shard_bytes), side="left")
        return [0, *np.unique(found[(found > 0) & (found < len(self))]).tolist(), len(self)]


class DiskTextWriter:
    """Writes NAME.text and NAME.ends, row after row."""

    def __init__(self, folder: Path, name: str) -> None:
        self.text: BinaryIO = (folder / f"{name}.text").open("wb")
        self.ends: BinaryIO = (folder / f"{name}.ends").open("wb")
        self.ends.write(np.zeros(1, np.int64).tobytes())
        self.rows = 0
        self._at = self._waiting = 0
        self._buffer: list[bytes] = []

    def add(self, row: bytes) -> None:
        self._buffer.append(row)
        self._waiting += len(row)
        if self._waiting > READ_CHUNK_BYTES:
            self.flush()

    def flush(self) -> None:
        ends = self._at + np.cumsum([len(row) for row in self._buffer], dtype=np.int64)
        with translate_disk_full_error(Path(self.text.name)):
            self.text.write(b"".join(self._buffer))
            self.ends.write(ends.tobytes())
        self.rows += len(self._buffer)
        self._at += self._waiting
        self._buffer, self._waiting = [], 0

    def close(self) -> None:
        self.flush()
        with translate_disk_full_error(Path(self.text.name)):
            self.text.close()
            self.ends.close()


def write_text_rows(folder: Path, name: str, rows: Iterable[str]) -> DiskTextRows:
    """These rows on disk."""
    writer = DiskTextWriter(folder, name)
    for row in rows:
        writer.add(row.encode())
    writer.close()
    return DiskTextRows(folder, name)
