"""Write the token files of a split whose rows are on disk, in shards on all cores, resuming after an interruption.

NAME.jsonl gets a line per shard: the number of rows and tokens so far, and the SHA-256 of each file so far.
"""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headtohead.atomic_io import truncate_file, write_bytes
from headtohead.config.tables.data import DataConfig
from headtohead.data.encoding import encode_row_range
from headtohead.data.splits import Split
from headtohead.data.text_store import DiskTextRows
from headtohead.data.tokenization.tokenizers import CorpusTokenizer
from headtohead.json_files import append_jsonl, repair_jsonl
from headtohead.progress import ProgressCallback, ProgressReporter

SHARD_BYTES = 2**22
"""bytes of text encoded at a time, which is also the work lost per core if the process is killed"""
READ_CHUNK_BYTES = 2**22
OFFSET_BYTES = 8
"""size of a row offset, an int64"""

Checksum = Any
"""a hashlib object, whose type has no public name"""

EncodedShard = tuple[NDArray[Any], NDArray[np.int64]]
"""the token ids of consecutive rows, concatenated, and the number of tokens in each row"""


def get_token_dtype(tokenizer: CorpusTokenizer) -> Any:
    """Return the smallest unsigned dtype that can represent every id of a tokenizer's vocabulary."""
    return np.uint16 if tokenizer.vocab_size <= 2**16 else np.uint32


@dataclass(frozen=True)
class SplitTokenization:
    """A split whose token ids are being written to FOLDER/NAME.*."""

    folder: Path
    name: str
    split: Split
    tokenizer: CorpusTokenizer
    has_labels: bool
    data: DataConfig

    def get_path(self, suffix: str) -> Path:
        """Return the path of one of this split's files."""
        return self.folder / f"{self.name}.{suffix}"

    @property
    def rows(self) -> DiskTextRows:
        assert isinstance(self.split.rows, DiskTextRows)
        return self.split.rows

    def encode_shard(self, start: int, stop: int) -> EncodedShard:
        """Encode the rows from `start` up to, but not including, `stop`."""
        rows = list(self.rows.iter_range(start, stop))
        ids_by_row = encode_row_range(self.split, rows, start, self.tokenizer, self.data, has_labels=self.has_labels)
        row_lengths = np.fromiter(map(len, ids_by_row), np.int64, len(ids_by_row))
        dtype, num_tokens = get_token_dtype(self.tokenizer), int(row_lengths.sum())
        return np.fromiter(chain.from_iterable(ids_by_row), dtype, num_tokens), row_lengths


def write_tokens(job: SplitTokenization, on_progress: ProgressCallback) -> dict[str, str]:
    """Write a split's token ids, row offsets and token counts.

    Return the SHA-256 of each file by name, computed while writing, not from the file.
    """
    rows = job.rows
    num_rows, num_tokens, checksums = _resume_after_intact_shards(job)
    count_megabytes = rows.count_megabytes_before
    progress = ProgressReporter(
        f"tokenizing {job.split.name}, in MB", count_megabytes(len(rows)), on_progress, count_megabytes(num_rows)
    )
    with ExitStack() as stack:
        files = {suffix: stack.enter_context(job.get_path(suffix).open("ab")) for suffix in checksums}
        boundaries = [num_rows, *(row for row in rows.compute_shard_boundaries(SHARD_BYTES) if row > num_rows)]
        for end_row, (token_ids, row_lengths) in _iter_encoded_shards(job, boundaries):
            row_ends = num_tokens + np.cumsum(row_lengths)
            row_offsets = row_ends if num_rows else np.concatenate([np.zeros(1, np.int64), row_ends])
            shard_content = {"tokens": token_ids, "offsets": row_offsets}
            for suffix, file in files.items():
                chunk = shard_content[suffix].tobytes()
                file.write(chunk)
                file.flush()
                checksums[suffix].update(chunk)
            progress.step(count_megabytes(end_row) - count_megabytes(num_rows))
            num_rows, num_tokens = end_row, num_tokens + len(token_ids)
            sha256 = {suffix: checksum.hexdigest() for suffix, checksum in checksums.items()}
            append_jsonl(job.get_path("jsonl"), {"rows": num_rows, "tokens": num_tokens, "sha256": sha256})
    token_counts = _count_tokens(job.get_path("tokens"), job.tokenizer).tobytes()
    write_bytes(job.get_path("counts"), token_counts)
    checksums["counts"] = hashlib.sha256(token_counts)
    return {job.get_path(suffix).name: checksum.hexdigest() for suffix, checksum in checksums.items()}


def _resume_after_intact_shards(job: SplitTokenization) -> tuple[int, int, dict[str, Checksum]]:
    """Truncate the token files to the intact shards; return their number of rows and tokens and running checksums.

    A shard is intact if the files are long enough and have the recorded checksums up to its end.
    """
    records = repair_jsonl(job.get_path("jsonl"), is_own_cache=True)
    token_bytes = np.dtype(get_token_dtype(job.tokenizer)).itemsize
    shard_ends = {
        "tokens": [token_bytes * record["tokens"] for record in records],
        "offsets": [OFFSET_BYTES * (record["rows"] + 1) for record in records],
    }
    running_checksums = {
        suffix: _hash_intact_shards(job.get_path(suffix), ends, [record["sha256"][suffix] for record in records])
        for suffix, ends in shard_ends.items()
    }
    num_intact = min(map(len, running_checksums.values())) - 1
    for suffix, ends in shard_ends.items():
        truncate_file(job.get_path(suffix), ends[num_intact - 1] if num_intact else 0)
    if num_intact < len(records):
        lines = job.get_path("jsonl").read_bytes().splitlines(keepends=True)
        write_bytes(job.get_path("jsonl"), b"".join(lines[:num_intact]))
    last_record = records[num_intact - 1] if num_intact else {"rows": 0, "tokens": 0}
    checksums = {suffix: running_checksums[suffix][num_intact] for suffix in shard_ends}
    return last_record["rows"], last_record["tokens"], checksums


def _hash_intact_shards(path: Path, shard_ends: list[int], expected_checksums: list[str]) -> list[Checksum]:
    """Return the running checksum at the start of a token file and at the end of each leading intact shard.

    `shard_ends` are positions in the file, and `expected_checksums` those of the file up to each of them.
    """
    checksums = [hashlib.sha256()]
    path.touch()
    with path.open("rb") as file:
        for end, expected in zip(shard_ends, expected_checksums, strict=True):
            checksum, num_bytes = checksums[-1].copy(), end - file.tell()
            chunk = file.read(num_bytes)
            checksum.update(chunk)
            if len(chunk) < num_bytes or checksum.hexdigest() != expected:
                break
            checksums.append(checksum)
    return checksums


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
    """Return the frequency of each vocabulary token in a token file, read in chunks."""
    dtype = np.dtype(get_token_dtype(tokenizer))
    counts = np.zeros(tokenizer.vocab_size, np.int64)
    with path.open("rb") as file:
        while chunk := file.read(READ_CHUNK_BYTES):
            counts += np.bincount(np.frombuffer(chunk, dtype), minlength=tokenizer.vocab_size)
    return counts
