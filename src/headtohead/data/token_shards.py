"""Encode a split on disk into token files, in shards on all cores, resuming after the last complete shard."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headtohead.atomic_io import append_jsonl, repair_jsonl, truncate_file, write_bytes
from headtohead.config.data import DataConfig
from headtohead.data.batches import encode_row_range, is_stream
from headtohead.data.splits import Split
from headtohead.data.text_store import DiskTextRows
from headtohead.data.tokenizers import CorpusTokenizer
from headtohead.progress import ProgressCallback, ProgressReporter

SHARD_BYTES = 2**22
"""bytes of text encoded at a time, and the work that a kill loses per core"""
READ_CHUNK_BYTES = 2**22

EncodedShard = tuple[NDArray[Any], NDArray[np.int64]]
"""the tokens of consecutive rows, concatenated, and the number of tokens in each row"""


def get_token_dtype(tokenizer: CorpusTokenizer) -> Any:
    """Return the smallest unsigned type that holds every token id."""
    return np.uint16 if tokenizer.vocab_size <= 2**16 else np.uint32


@dataclass(frozen=True)
class SplitTokenization:
    """A split whose tokens are being written to FOLDER/NAME.*."""

    folder: Path
    name: str
    split: Split
    tokenizer: CorpusTokenizer
    has_labels: bool
    data: DataConfig

    def path(self, suffix: str) -> Path:
        """Return the path of a file of this split."""
        return self.folder / f"{self.name}.{suffix}"

    @property
    def rows(self) -> DiskTextRows:
        assert isinstance(self.split.rows, DiskTextRows)
        return self.split.rows

    def encode_shard(self, start: int, stop: int) -> EncodedShard:
        """Encode the rows from `start` up to, but not including, `stop`."""
        rows = list(self.rows.between(start, stop))
        ids = encode_row_range(self.split, rows, start, self.tokenizer, self.data, has_labels=self.has_labels)
        lengths = np.fromiter(map(len, ids), np.int64, len(ids))
        return np.fromiter(chain.from_iterable(ids), get_token_dtype(self.tokenizer), int(lengths.sum())), lengths


def write_tokens(job: SplitTokenization, on_progress: ProgressCallback) -> None:
    """Write the tokens and counts of a split and, unless it is a stream, its row offsets."""
    rows = job.rows
    token_bytes = np.dtype(get_token_dtype(job.tokenizer)).itemsize
    shard_records = repair_jsonl(job.path("jsonl"))
    num_rows, num_tokens = (shard_records[-1]["rows"], shard_records[-1]["tokens"]) if shard_records else (0, 0)
    megabytes_done = rows.count_megabytes_before
    progress = ProgressReporter(
        f"tokenizing {job.split.name}, in MB", megabytes_done(len(rows)), on_progress, megabytes_done(num_rows)
    )
    with job.path("tokens").open("ab") as tokens, job.path("offsets").open("ab") as offsets:
        truncate_file(job.path("tokens"), num_tokens * token_bytes)
        truncate_file(job.path("offsets"), 8 * (num_rows + 1) if num_rows else 0)
        if not num_rows:
            offsets.write(np.zeros(1, np.int64).tobytes())
        boundaries = [row for row in rows.compute_shard_boundaries(SHARD_BYTES) if row >= num_rows]
        for end_row, (ids, lengths) in _iter_encoded_shards(job, boundaries):
            tokens.write(ids.tobytes())
            tokens.flush()
            offsets.write((num_tokens + np.cumsum(lengths)).tobytes())
            offsets.flush()
            progress.step(megabytes_done(end_row) - megabytes_done(num_rows))
            num_rows, num_tokens = end_row, num_tokens + len(ids)
            append_jsonl(job.path("jsonl"), {"rows": num_rows, "tokens": num_tokens})
    if is_stream(job.data, has_labels=job.has_labels):
        job.path("offsets").unlink()
    write_bytes(job.path("counts"), _count_tokens(job.path("tokens"), job.tokenizer).tobytes())


def _iter_encoded_shards(job: SplitTokenization, boundaries: list[int]) -> Iterator[tuple[int, EncodedShard]]:
    """Yield the end row and the content of each shard, in order.

    Threads suffice because the tokenizers library releases the GIL. At most two shards per core are in flight.
    """
    num_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    pending: deque[tuple[int, Future[EncodedShard]]] = deque()
    with ThreadPoolExecutor(num_cores) as pool:
        for start, stop in pairwise(boundaries):
            pending.append((stop, pool.submit(job.encode_shard, start, stop)))
            if len(pending) > 2 * num_cores:
                end_row, shard = pending.popleft()
                yield end_row, shard.result()
        for end_row, shard in pending:
            yield end_row, shard.result()


def _count_tokens(path: Path, tokenizer: CorpusTokenizer) -> NDArray[np.int64]:
    """Return the frequency of each token in a file, read in chunks."""
    dtype = np.dtype(get_token_dtype(tokenizer))
    counts = np.zeros(tokenizer.vocab_size, np.int64)
    with path.open("rb") as file:
        while chunk := file.read(READ_CHUNK_BYTES):
            counts += np.bincount(np.frombuffer(chunk, dtype), minlength=tokenizer.vocab_size)
    return counts
