"""A disk cache for teacher outputs: generated texts and top-k log-probabilities, keyed by content.

FOLDER (named by a hash of the teacher weights and the settings)
  teacher.json     the cache key: name and digest of the teacher, settings
  texts.jsonl      one line per document: key, ids, text, stop reason, seconds
  logits.jsonl     one line per document: key, byte offset of its block in logits.bin, number of positions
  logits.bin       concatenated blocks; each position has k token ids (int32), their k log-probabilities
                   and the log-probability of all other tokens (float32)

Files are append-only, and a block is written before its line, so an interrupt loses at most one document. Incomplete
lines, and blocks without a line, are truncated when the cache is next opened for writing. Blocks are not stored as
safetensors because safetensors files cannot be appended to: there would be one file per document. logits.bin is
memory-mapped, so all workers share its pages.

The cache is in $XDG_CACHE_HOME/headtohead/teachers (default ~/.cache) and is shared by all trials and experiments with
the same teacher. It can be deleted at any time; its contents are recomputed when needed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from pydantic import JsonValue

from headtohead.atomic_io import (
    CHECKSUM_KEY,
    append_jsonl,
    compute_checksum,
    get_cache_folder,
    has_valid_checksum,
    read_jsonl,
    repair_jsonl,
    translate_disk_full_error,
    truncate_file,
    verify_checksum,
)
from headtohead.data.text_store import memory_map
from headtohead.errors import RunFolderError
from headtohead.experiment import schemas
from headtohead.safe_open import append_to_file
from headtohead.training.distillation_loss import TeacherTargets

LineT = TypeVar("LineT", bound=schemas.Record)
METADATA_FILE, TEXTS_FILE, LOGITS_INDEX_FILE, LOGITS_FILE = "teacher.json", "texts.jsonl", "logits.jsonl", "logits.bin"
REMEDY = "remove the folder to recompute it"


@dataclass(frozen=True)
class CacheKey:
    """Everything that teacher outputs depend on except the document."""

    name: str
    digest: str
    """digest of the teacher weights"""
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Folder name: a hash of the schema version, the weights and the settings."""
        return compute_hash(schemas.SCHEMA_VERSION, self.digest, dict(self.settings))

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "digest": self.digest, "settings": dict(self.settings)}


def compute_hash(*parts: object) -> str:
    """Return a hash of JSON-serializable values."""
    return hashlib.blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=12).hexdigest()


def find_missing(keys: Sequence[str], cached: Container[str]) -> list[int]:
    """Return the index of the first occurrence of every key that is not cached, in increasing order."""
    first_index = {key: index for index, key in reversed(list(enumerate(keys)))}
    return sorted(index for key, index in first_index.items() if key not in cached)


def get_cache_root() -> Path:
    """Return the folder that holds all teacher caches on this machine."""
    return get_cache_folder("teachers")


@dataclass
class TeacherCache:
    """Cached outputs of one teacher with one set of settings."""

    folder: Path
    cache_key: CacheKey
    texts: dict[str, schemas.TeacherTextLine] = field(default_factory=dict)
    block_locations: dict[str, tuple[int, int]] = field(default_factory=dict)
    """by document key: byte offset of the block and its number of positions"""
    checksums: dict[str, str] = field(default_factory=dict)
    """by document key: SHA-256 of the block"""
    _verified_keys: set[str] = field(default_factory=set)
    """keys of blocks whose checksum has been verified"""
    _num_bytes: int = 0
    """size of all blocks in bytes"""

    @classmethod
    def open(cls, cache_key: CacheKey, folder: Path | None = None, *, is_writable: bool = False) -> TeacherCache:
        """Open the cache for a key, creating its folder if needed.

        Only one process may open a cache with `is_writable`: hold `lock_cache_folder` while writing.
        """
        cache_folder = folder or get_cache_root() / cache_key.key
        with translate_disk_full_error(cache_folder):
            cache_folder.mkdir(parents=True, exist_ok=True)
        cache = cls(cache_folder, cache_key)
        cache._check()
        read_lines = partial(repair_jsonl if is_writable else read_jsonl, is_own_cache=True)
        texts = _validate_lines(
            read_lines(cache_folder / TEXTS_FILE), schemas.TeacherTextLine, cache_folder / TEXTS_FILE
        )
        block_lines = _validate_lines(
            read_lines(cache_folder / LOGITS_INDEX_FILE), schemas.LogitsBlockLine, cache_folder / LOGITS_INDEX_FILE
        )
        cache.texts = {line.key: line for line in texts}
        cache.block_locations = {line.key: (line.offset, line.positions) for line in block_lines}
        cache.checksums = {line.key: line.sha256 for line in block_lines if line.sha256 is not None}
        if misaligned_keys := [
            key for key, (offset, _) in cache.block_locations.items() if offset % cache._bytes_per_position
        ]:
            raise RunFolderError(
                f"{cache_folder / LOGITS_INDEX_FILE} is corrupted: no block begins at the offset of "
                f"{misaligned_keys[0]!r}"
            )
        cache._num_bytes = max(
            (offset + count * cache._bytes_per_position for offset, count in cache.block_locations.values()), default=0
        )
        if is_writable and (cache_folder / LOGITS_FILE).is_file():
            truncate_file(cache_folder / LOGITS_FILE, cache._num_bytes)
        cache._check_logits_size()
        return cache

    def _check(self) -> None:
        """Write teacher.json, or raise RunFolderError if an existing one has a different teacher or settings."""
        path = self.folder / METADATA_FILE
        if not path.is_file():
            metadata = schemas.TeacherCacheFile.model_validate(self.cache_key.to_dict())
            schemas.write_record(path, metadata, with_checksum=True)
            return
        verify_checksum(path, REMEDY)
        existing = schemas.read_record(path, schemas.TeacherCacheFile)
        if existing.digest != self.cache_key.digest:
            raise RunFolderError(
                f"{self.folder} holds outputs of another teacher, {existing.name} (weights {existing.digest}); "
                f"expected {self.cache_key.name} (weights {self.cache_key.digest}); {REMEDY}"
            )
        if existing.settings != dict(self.cache_key.settings):
            differing = [
                name for name, value in self.cache_key.settings.items() if existing.settings.get(name) != value
            ]
            raise RunFolderError(
                f"{self.folder} holds outputs for other settings ({', '.join(differing) or 'more of them'}); {REMEDY}"
            )

    def _check_logits_size(self) -> None:
        """Raise RunFolderError if logits.bin is shorter than its index."""
        size = (self.folder / LOGITS_FILE).stat().st_size if (self.folder / LOGITS_FILE).is_file() else 0
        if size < self._num_bytes:
            raise RunFolderError(
                f"{self.folder / LOGITS_FILE} is shorter than {LOGITS_INDEX_FILE} declares ({size} bytes of "
                f"{self._num_bytes}); {REMEDY}"
            )

    # -- texts

    def add_text(self, line: schemas.TeacherTextLine) -> None:
        """Append one generated text."""
        append_jsonl(self.folder / TEXTS_FILE, _add_checksum(line))
        self.texts[line.key] = line

    # -- logits

    @property
    def top_k(self) -> int:
        """Number of token ids stored per position."""
        return int(self.cache_key.settings["top_k"])

    @property
    def _bytes_per_position(self) -> int:
        """Size of one position in logits.bin."""
        return 4 * (2 * self.top_k + 1)

    def add_targets(self, key: str, targets: TeacherTargets) -> None:
        """Append the targets for every position in one document."""
        log_probs = torch.cat((targets.log_probs, targets.other_log_prob[:, None]), 1).float().cpu().numpy()
        ids = targets.ids.to(torch.int32).cpu().numpy()
        assert ids.shape[1] == self.top_k, "top_k ids per position"
        block = np.ascontiguousarray(np.concatenate((ids.view(np.float32), log_probs), axis=1)).tobytes()
        offset = self._num_bytes
        path = self.folder / LOGITS_FILE
        with translate_disk_full_error(path), append_to_file(path) as file:
            file.write(block)
        checksum = hashlib.sha256(block).hexdigest()
        line = schemas.LogitsBlockLine(key=key, offset=offset, positions=len(ids), sha256=checksum)
        append_jsonl(self.folder / LOGITS_INDEX_FILE, _add_checksum(line))
        self.checksums[key] = checksum
        self.block_locations[key], self._num_bytes = (offset, len(ids)), offset + len(ids) * self._bytes_per_position
        self.__dict__.pop("_blocks", None)

    @cached_property
    def _blocks(self) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Memory map of logits.bin, shape (positions, 2 * top_k + 1)."""
        mapped = memory_map(self.folder / LOGITS_FILE, np.float32)[: self._num_bytes // 4]
        return mapped.reshape(-1, self._bytes_per_position // 4)

    def _check_block(self, key: str) -> None:
        """Raise RunFolderError if a block does not match its checksum. Each block is checked on first use."""
        if key in self._verified_keys:
            return
        offset, num_positions = self.block_locations[key]
        block = self._blocks[offset // self._bytes_per_position : offset // self._bytes_per_position + num_positions]
        if (
            key in self.checksums
            and hashlib.sha256(np.ascontiguousarray(block).tobytes()).hexdigest() != self.checksums[key]
        ):
            raise RunFolderError(
                f"{self.folder / LOGITS_FILE} is corrupted: checksum mismatch in the block of {key!r}; {REMEDY}"
            )
        self._verified_keys.add(key)

    def targets(self, keys: Sequence[str], counts: Sequence[int]) -> TeacherTargets:
        """Return the targets for the first `counts[i]` positions of document `keys[i]`, concatenated over documents."""
        position_ranges = []
        for key, count in zip(keys, counts, strict=True):
            offset, num_positions = self.block_locations[key]
            self._check_block(key)
            assert count <= num_positions, f"{count} positions requested, {num_positions} stored"
            position_ranges.append(
                np.arange(offset // self._bytes_per_position, offset // self._bytes_per_position + count)
            )
        block = self._blocks[np.concatenate(position_ranges)]
        ids = torch.from_numpy(block[:, : self.top_k].copy().view(np.int32)).long()
        log_probs = torch.from_numpy(block[:, self.top_k :].copy())
        return TeacherTargets(ids, log_probs[:, :-1].contiguous(), log_probs[:, -1].contiguous())


def _add_checksum(line: schemas.Record) -> dict[str, JsonValue]:
    """Return a line as JSON with its checksum."""
    fields = {name: value for name, value in line.to_json().items() if name != CHECKSUM_KEY}
    return {**fields, CHECKSUM_KEY: compute_checksum(fields)}


def _validate_lines(lines: Sequence[dict[str, Any]], schema: type[LineT], path: Path) -> list[LineT]:
    """Validate every line in a teacher cache file against its schema and its checksum."""
    records = schemas.validate_record(lines, list[schema], path)  # type: ignore[valid-type]
    for number, line in enumerate(lines, start=1):
        if not has_valid_checksum(line):
            raise RunFolderError(f"{path}, line {number} is corrupted: checksum mismatch; {REMEDY}")
    return records
