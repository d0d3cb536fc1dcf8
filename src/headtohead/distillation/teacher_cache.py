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

from headtohead.atomic_io import translate_disk_full_error, truncate_file
from headtohead.cache_folders import get_cache_folder
from headtohead.data.mapped_arrays import memory_map_array
from headtohead.errors import RunFolderError
from headtohead.experiment import schemas
from headtohead.json_files import (
    CHECKSUM_KEY,
    append_jsonl,
    compute_json_checksum,
    has_valid_json_checksum,
    read_json,
    read_jsonl,
    repair_jsonl,
    verify_json_checksum,
)
from headtohead.safe_open import append_to_file
from headtohead.training.losses.distillation_loss import TeacherTargets

LineT = TypeVar("LineT", bound=schemas.Record)
METADATA_FILE = "teacher.json"
TEXTS_FILE = "texts.jsonl"
LOGITS_INDEX_FILE = "logits.jsonl"
LOGITS_FILE = "logits.bin"
RECOMPUTE_HINT = "remove the folder to recompute it"


@dataclass(frozen=True)
class TeacherCacheKey:
    """The teacher and the settings that determine its outputs for a document."""

    name: str
    digest: str
    """digest of the teacher weights"""
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def folder_name(self) -> str:
        """Hash of the schema version, the weights and the settings."""
        return hash_json_values(schemas.SCHEMA_VERSION, self.digest, dict(self.settings))

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "digest": self.digest, "settings": dict(self.settings)}


def hash_json_values(*values: object) -> str:
    """Return a hash of JSON-serializable values, used as the cache key of a document or a cache folder."""
    return hashlib.blake2b(json.dumps(values, sort_keys=True).encode(), digest_size=12).hexdigest()


def find_uncached_indices(document_keys: Sequence[str], cached_keys: Container[str]) -> list[int]:
    """Return the index of the first occurrence of every key that is not cached, in increasing order."""
    first_indices = {key: index for index, key in reversed(list(enumerate(document_keys)))}
    return sorted(index for key, index in first_indices.items() if key not in cached_keys)


def get_cache_root() -> Path:
    """Return the folder that contains all teacher caches on this machine."""
    return get_cache_folder("teachers")


def find_cache_folders(teacher_digest: str) -> list[Path]:
    """Return the cache folders that hold outputs of the teacher with the given weights digest, with any settings."""
    metadata_files = get_cache_root().glob(f"*/{METADATA_FILE}")
    return sorted(path.parent for path in metadata_files if read_json(path)["digest"] == teacher_digest)


@dataclass
class TeacherCache:
    """Cached outputs of one teacher with one set of settings."""

    folder: Path
    cache_key: TeacherCacheKey
    text_lines: dict[str, schemas.TeacherTextLine] = field(default_factory=dict)
    """generated texts by document key"""
    block_locations: dict[str, tuple[int, int]] = field(default_factory=dict)
    """by document key: byte offset of the block in logits.bin and its number of positions"""
    block_checksums: dict[str, str] = field(default_factory=dict)
    """by document key: SHA-256 of the block"""
    _verified_keys: set[str] = field(default_factory=set)
    """keys of blocks whose checksum has been verified"""
    _logits_bytes: int = 0
    """size of all blocks in logits.bin"""

    @classmethod
    def open(cls, cache_key: TeacherCacheKey, folder: Path | None = None, *, is_writable: bool = False) -> TeacherCache:
        """Open the cache for a key, creating its folder if needed.

        Only one process may open a cache with `is_writable`: hold `lock_cache_folder` while writing.
        """
        cache_folder = folder or get_cache_root() / cache_key.folder_name
        with translate_disk_full_error(cache_folder):
            cache_folder.mkdir(parents=True, exist_ok=True)
        cache = cls(cache_folder, cache_key)
        cache._check_metadata()
        read_lines = partial(repair_jsonl if is_writable else read_jsonl, is_own_cache=True)
        text_lines = _validate_cache_lines(
            read_lines(cache_folder / TEXTS_FILE), schemas.TeacherTextLine, cache_folder / TEXTS_FILE
        )
        block_lines = _validate_cache_lines(
            read_lines(cache_folder / LOGITS_INDEX_FILE), schemas.LogitsBlockLine, cache_folder / LOGITS_INDEX_FILE
        )
        cache.text_lines = {line.key: line for line in text_lines}
        cache.block_locations = {line.key: (line.offset, line.positions) for line in block_lines}
        cache.block_checksums = {line.key: line.sha256 for line in block_lines if line.sha256 is not None}
        if misaligned_keys := [
            key for key, (offset, _) in cache.block_locations.items() if offset % cache._bytes_per_position
        ]:
            raise RunFolderError(
                f"{cache_folder / LOGITS_INDEX_FILE} is corrupted: no block begins at the offset of "
                f"{misaligned_keys[0]!r}"
            )
        cache._logits_bytes = max(
            (offset + count * cache._bytes_per_position for offset, count in cache.block_locations.values()), default=0
        )
        if is_writable and (cache_folder / LOGITS_FILE).is_file():
            truncate_file(cache_folder / LOGITS_FILE, cache._logits_bytes)
        cache._check_logits_size()
        return cache

    def _check_metadata(self) -> None:
        """Write teacher.json, or raise RunFolderError if an existing one has a different teacher or settings."""
        path = self.folder / METADATA_FILE
        if not path.is_file():
            metadata = schemas.TeacherCacheFile.model_validate(self.cache_key.to_dict())
            schemas.write_record(path, metadata, with_checksum=True)
            return
        verify_json_checksum(path, RECOMPUTE_HINT)
        existing = schemas.read_record(path, schemas.TeacherCacheFile)
        if existing.digest != self.cache_key.digest:
            raise RunFolderError(
                f"{self.folder} holds outputs of a different teacher, {existing.name} (weights {existing.digest}); "
                f"expected {self.cache_key.name} (weights {self.cache_key.digest}); {RECOMPUTE_HINT}"
            )
        if existing.settings != dict(self.cache_key.settings):
            differing = [
                name for name, value in self.cache_key.settings.items() if existing.settings.get(name) != value
            ]
            raise RunFolderError(
                f"{self.folder} holds outputs for different settings ({', '.join(differing) or 'more of them'}); "
                f"{RECOMPUTE_HINT}"
            )

    def _check_logits_size(self) -> None:
        """Raise RunFolderError if logits.bin is shorter than its index."""
        path = self.folder / LOGITS_FILE
        size_bytes = path.stat().st_size if path.is_file() else 0
        if size_bytes < self._logits_bytes:
            raise RunFolderError(
                f"{path} is shorter than {LOGITS_INDEX_FILE} declares ({size_bytes} bytes of "
                f"{self._logits_bytes}); {RECOMPUTE_HINT}"
            )

    # -- texts

    def add_text_line(self, line: schemas.TeacherTextLine) -> None:
        """Append one generated text."""
        append_jsonl(self.folder / TEXTS_FILE, _add_checksum(line))
        self.text_lines[line.key] = line

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
        token_ids = targets.token_ids.to(torch.int32).cpu().numpy()
        assert token_ids.shape[1] == self.top_k, "top_k token ids per position"
        block = np.ascontiguousarray(np.concatenate((token_ids.view(np.float32), log_probs), axis=1)).tobytes()
        offset = self._logits_bytes
        path = self.folder / LOGITS_FILE
        with translate_disk_full_error(path), append_to_file(path) as file:
            file.write(block)
        checksum = hashlib.sha256(block).hexdigest()
        num_positions = len(token_ids)
        line = schemas.LogitsBlockLine(key=key, offset=offset, positions=num_positions, sha256=checksum)
        append_jsonl(self.folder / LOGITS_INDEX_FILE, _add_checksum(line))
        self.block_checksums[key] = checksum
        self.block_locations[key] = (offset, num_positions)
        self._logits_bytes = offset + num_positions * self._bytes_per_position
        self.__dict__.pop("_blocks", None)

    @cached_property
    def _blocks(self) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Memory map of logits.bin, shape (positions, 2 * top_k + 1)."""
        mapped_values = memory_map_array(self.folder / LOGITS_FILE, np.float32)[: self._logits_bytes // 4]
        return mapped_values.reshape(-1, self._bytes_per_position // 4)

    def _verify_block_checksum(self, key: str) -> None:
        """Raise RunFolderError if a document's block does not match its checksum. Blocks are verified on first use."""
        if key in self._verified_keys:
            return
        offset, num_positions = self.block_locations[key]
        first_position = offset // self._bytes_per_position
        block = self._blocks[first_position : first_position + num_positions]
        if (
            key in self.block_checksums
            and hashlib.sha256(np.ascontiguousarray(block).tobytes()).hexdigest() != self.block_checksums[key]
        ):
            raise RunFolderError(
                f"{self.folder / LOGITS_FILE} is corrupted: checksum mismatch in the block of {key!r}; {RECOMPUTE_HINT}"
            )
        self._verified_keys.add(key)

    def read_targets(self, document_keys: Sequence[str], num_positions: Sequence[int]) -> TeacherTargets:
        """Return the targets for the first `num_positions[i]` positions of document i, concatenated over documents."""
        position_ranges = []
        for key, num_requested in zip(document_keys, num_positions, strict=True):
            offset, num_stored = self.block_locations[key]
            self._verify_block_checksum(key)
            assert num_requested <= num_stored, f"{num_requested} positions requested, {num_stored} stored"
            first_position = offset // self._bytes_per_position
            position_ranges.append(np.arange(first_position, first_position + num_requested))
        positions = self._blocks[np.concatenate(position_ranges)]
        token_ids = torch.from_numpy(positions[:, : self.top_k].copy().view(np.int32)).long()
        log_probs = torch.from_numpy(positions[:, self.top_k :].copy())
        return TeacherTargets(token_ids, log_probs[:, :-1].contiguous(), log_probs[:, -1].contiguous())


def _add_checksum(line: schemas.Record) -> dict[str, JsonValue]:
    """Return a line as JSON with its checksum."""
    fields = {name: value for name, value in line.to_json().items() if name != CHECKSUM_KEY}
    return {**fields, CHECKSUM_KEY: compute_json_checksum(fields)}


def _validate_cache_lines(lines: Sequence[dict[str, Any]], schema: type[LineT], path: Path) -> list[LineT]:
    """Validate every line of texts.jsonl or logits.jsonl against its schema and its checksum."""
    records = schemas.validate_record(lines, list[schema], path)  # type: ignore[valid-type]
    for number, line in enumerate(lines, start=1):
        if not has_valid_json_checksum(line):
            raise RunFolderError(f"{path}, line {number} is corrupted: checksum mismatch; {RECOMPUTE_HINT}")
    return records
