"""Encode a split on disk into token files, in shards on all cores, resuming after the last intact shard.

NAME.jsonl gets a line per shard: the rows and tokens so far and the SHA-256 of each file so far.
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

from headtohead.atomic_io import append_jsonl, repair_jsonl, truncate_file, write_bytes
from headtohead.config.data import DataConfig
from headtohead.data.encoding import encode_row_range
from headtohead.data.splits import Split
from headtohead.data.text_store import DiskTextRows
from headtohead.data.tokenizers import CorpusTokenizer
from headtohead.progress import ProgressCallback, ProgressReporter

SHARD_BYTES = 2**22
"""bytes of text encoded at a time, which is also the work lost per core if the process is killed"""
READ_CHUNK_BYTES = 2**22

Checksum = Any
"""a hashlib object, whose type has no public name"""

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
        """Return the path of one of this split's files."""
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


def write_tokens(job: SplitTokenization, on_progress: ProgressCallback) -> dict[str, str]:
    """Write a split's tokens, row offsets and counts.

    Returns the SHA-256 of each file by name, computed while writing, not from the file.
    """
    rows = job.rows
    num_rows, num_tokens, checksums = _resume(job)
    megabytes_done = rows.count_megabytes_before
    progress = ProgressReporter(
        f"tokenizing {job.split.name}, in MB", megabytes_done(len(rows)), on_progress, megabytes_done(num_rows)
    )
    with ExitStack() as stack:
        files = {suffix: stack.enter_context(job.path(suffix).open("ab")) for suffix in checksums}
        boundaries = [num_rows, *(row for row in rows.compute_shard_boundaries(SHARD_BYTES) if row > num_rows)]
        for end_row, (ids, lengths) in _iter_encoded_shards(job, boundaries):
            ends = num_tokens + np.cumsum(lengths)
            content = {"tokens": ids, "offsets": ends if num_rows else np.concatenate([np.zeros(1, np.int64), ends])}
            for suffix, file in files.items():
                chunk = content[suffix].tobytes()
                file.write(chunk)
                file.flush()
                checksums[suffix].update(chunk)
            progress.step(megabytes_done(end_row) - megabytes_done(num_rows))
            num_rows, num_tokens = end_row, num_tokens + len(ids)
            sha256 = {suffix: checksum.hexdigest() for suffix, checksum in checksums.items()}
            append_jsonl(job.path("jsonl"), {"rows": num_rows, "tokens": num_tokens, "sha256": sha256})
    counts = _count_tokens(job.path("tokens"), job.tokenizer).tobytes()
    write_bytes(job.path("counts"), counts)
    checksums["counts"] = hashlib.sha256(counts)
    return {job.path(suffix).name: checksum.hexdigest() for suffix, checksum in checksums.items()}


def _resume(job: SplitTokenization) -> tuple[int, int, dict[str, Checksum]]:
    """Truncate the files to the intact shards; return their rows, tokens and running checksums.

    A shard is intact if the files are long enough and have the recorded checksums up to its end.
    """
    records = repair_jsonl(job.path("jsonl"), is_own_cache=True)
    item_bytes = {"tokens": np.dtype(get_token_dtype(job.tokenizer)).itemsize, "offsets": 8}
    sizes = [
        {"tokens": record["tokens"] * item_bytes["tokens"], "offsets": 8 * (record["rows"] + 1)} for record in records
    ]
    states = {
        suffix: _hash_shards(
            job.path(suffix),
            [(size[suffix], record["sha256"][suffix]) for size, record in zip(sizes, records, strict=True)],
        )
        for suffix in item_bytes
    }
    num_intact = min(map(len, states.values())) - 1
    for suffix in item_bytes:
        truncate_file(job.path(suffix), sizes[num_intact - 1][suffix] if num_intact else 0)
    if num_intact < len(records):
        lines = job.path("jsonl").read_bytes().splitlines(keepends=True)
        write_bytes(job.path("jsonl"), b"".join(lines[:num_intact]))
    last = records[num_intact - 1] if num_intact else {"rows": 0, "tokens": 0}
    return last["rows"], last["tokens"], {suffix: states[suffix][num_intact] for suffix in item_bytes}


def _hash_shards(path: Path, shards: list[tuple[int, str]]) -> list[Checksum]:
    """Return the running checksum at the start of the file and at the end of each leading intact shard.

    `shards` holds the position and the expected checksum of each end.
    """
    states = [hashlib.sha256()]
    path.touch()
    with path.open("rb") as file:
        for end, expected in shards:
            checksum, size = states[-1].copy(), end - file.tell()
            chunk = file.read(size)
            checksum.update(chunk)
            if len(chunk) < size or checksum.hexdigest() != expected:
                break
            states.append(checksum)
    return states


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
