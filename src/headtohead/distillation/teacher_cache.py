"""A teacher's work on disk: what it wrote and what it thinks of each word, found again by content.

FOLDER (named by a hash of all that the work depends on: the teacher's weights, the settings)
  teacher.json     whose work this is, and how it was done
  texts.jsonl      a line for each document, as it is finished: key, ids, text, how it ended, seconds
  logits.jsonl     a line for each document: key, where its block in logits.bin begins, and how many positions it has
  logits.bin       blocks end to end: of each position k ids (int32), then logarithms of k shares and
                   of the rest (float32)

Both are only ever added to, a document at a time, the block before its line. A kill loses the document that was being
written and nothing else: half a line, and a block without a line, are cut off when the folder is opened to be gone on
with. Blocks are not safetensors, because a safetensors file is written whole: it would be a file for each document, and
thousands of them. logits.bin is mapped into memory, and all workers share its pages.

The place is $XDG_CACHE_HOME/headtohead/teachers (~/.cache unless set), so that all trials, and the next experiment with
the same teacher, find it. Nothing but time is lost when it is removed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
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
    lock_cache_folder,
    read_jsonl,
    repair_jsonl,
    translate_disk_full_error,
    truncate_file,
    verify_checksum,
)
from headtohead.errors import RunFolderError
from headtohead.experiment import schemas
from headtohead.progress import ProgressCallback, ProgressReporter, ProgressUpdate
from headtohead.training.distillation_loss import TeacherTargets

LineT = TypeVar("LineT", bound=schemas.Record)
METADATA_FILE, TEXTS_FILE, LOGITS_INDEX_FILE, LOGITS_FILE = "teacher.json", "texts.jsonl", "logits.jsonl", "logits.bin"


@dataclass(frozen=True)
class CacheKey:
    """Everything that a teacher's work depends on, but for the document."""

    name: str
    digest: str
    """of the teacher's weights"""
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return compute_hash(schemas.SCHEMA_VERSION, self.digest, dict(self.settings))

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "digest": self.digest, "settings": dict(self.settings)}


def compute_hash(*parts: object) -> str:
    return hashlib.blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=12).hexdigest()


def find_missing(keys: Sequence[str], cached: Container[str]) -> list[int]:
    """Return the index of the first occurrence of every key that is not cached, in increasing order."""
    first_index = {key: i for i, key in reversed(list(enumerate(keys)))}
    return sorted(i for key, i in first_index.items() if key not in cached)


def get_cache_root() -> Path:
    """Where teachers' work is kept on this machine."""
    return get_cache_folder("teachers")


@dataclass
class TeacherCache:
    """The work of one teacher with one choice of settings."""

    folder: Path
    whose: CacheKey
    texts: dict[str, schemas.TeacherTextLine] = field(default_factory=dict)
    places: dict[str, tuple[int, int]] = field(default_factory=dict)
    """key: where the block begins, in bytes, and its positions"""
    sums: dict[str, str] = field(default_factory=dict)
    """key: checksum of the block"""
    _sound: set[str] = field(default_factory=set)
    """blocks that have been held against it"""
    _end: int = 0
    """of the blocks, in bytes"""

    @classmethod
    def open(cls, cache_key: CacheKey, folder: Path | None = None, *, is_writable: bool = False) -> TeacherCache:
        """The cache of this teacher. To write (`going_on`) is for one process at a time: see `at_work`."""
        place = folder or get_cache_root() / cache_key.key
        with translate_disk_full_error(place):
            place.mkdir(parents=True, exist_ok=True)
        made = cls(place, cache_key)
        made._check()
        read = repair_jsonl if is_writable else read_jsonl
        texts = _validate_lines(read(place / TEXTS_FILE), schemas.TeacherTextLine, place / TEXTS_FILE)
        blocks = _validate_lines(read(place / LOGITS_INDEX_FILE), schemas.LogitsBlockLine, place / LOGITS_INDEX_FILE)
        made.texts = {line.key: line for line in texts}
        made.places = {line.key: (line.offset, line.positions) for line in blocks}
        made.sums = {line.key: line.sha256 for line in blocks if line.sha256 is not None}
        if wrong := [key for key, (at, _) in made.places.items() if at % made._bytes_per_position]:
            raise RunFolderError(
                f"{place / LOGITS_INDEX_FILE}: is damaged (no block begins where that of {wrong[0]!r} does)"
            )
        made._end = max((at + count * made._bytes_per_position for at, count in made.places.values()), default=0)
        if is_writable and (place / LOGITS_FILE).is_file():
            truncate_file(place / LOGITS_FILE, made._end)
        made._check_logits_size()
        return made

    def _check(self) -> None:
        path = self.folder / METADATA_FILE
        if not path.is_file():
            file = schemas.TeacherCacheFile.model_validate(self.whose.to_dict())
            schemas.write_record(path, file, with_checksum=True)
            return
        verify_checksum(path, "remove the folder to have the work done anew")
        existing = schemas.read_record(path, schemas.TeacherCacheFile)
        if existing.digest != self.whose.digest:
            raise RunFolderError(
                f"{self.folder}: holds the work of another teacher, {existing.name} (weights {existing.digest}); this "
                f"one is {self.whose.name} (weights {self.whose.digest}). Remove the folder to have it done anew"
            )
        if existing.settings != dict(self.whose.settings):
            differing = [k for k, v in self.whose.settings.items() if existing.settings.get(k) != v]
            raise RunFolderError(
                f"{self.folder}: was made with other settings ({', '.join(differing) or 'more of them'}); "
                "remove the folder to have it done anew"
            )

    def _check_logits_size(self) -> None:
        size = (self.folder / LOGITS_FILE).stat().st_size if (self.folder / LOGITS_FILE).is_file() else 0
        if size < self._end:
            raise RunFolderError(
                f"{self.folder / LOGITS_FILE}: is shorter than {LOGITS_INDEX_FILE} says ({size} bytes of {self._end}); "
                "remove the folder to have the work done anew"
            )

    # -- texts

    def add_text(self, line: schemas.TeacherTextLine) -> None:
        """Append one generated text."""
        append_jsonl(self.folder / TEXTS_FILE, _add_checksum(line))
        self.texts[line.key] = line

    # -- logits

    @property
    def top_k(self) -> int:
        return int(self.whose.settings["top"])

    @property
    def _bytes_per_position(self) -> int:
        """Bytes of a position."""
        return 4 * (2 * self.top_k + 1)

    def add_targets(self, key: str, targets: TeacherTargets) -> None:
        """What the teacher thinks of each position of one document."""
        numbers = torch.cat((targets.log_probs, targets.other_log_prob[:, None]), 1).float().cpu().numpy()
        ids = targets.ids.to(torch.int32).cpu().numpy()
        assert ids.shape[1] == self.top_k, "as many words as the settings say"
        block = np.ascontiguousarray(np.concatenate((ids.view(np.float32), numbers), axis=1)).tobytes()
        at = self._end
        path = self.folder / LOGITS_FILE
        with translate_disk_full_error(path), path.open("ab") as file:
            file.write(block)
        checksum = hashlib.sha256(block).hexdigest()
        line = schemas.LogitsBlockLine(key=key, offset=at, positions=len(ids), sha256=checksum)
        append_jsonl(self.folder / LOGITS_INDEX_FILE, _add_checksum(line))
        self.sums[key] = checksum
        self.places[key], self._end = (at, len(ids)), at + len(ids) * self._bytes_per_position
        self.__dict__.pop("_blocks", None)

    @cached_property
    def _blocks(self) -> np.ndarray[Any, np.dtype[np.float32]]:
        mapped = np.memmap(self.folder / LOGITS_FILE, dtype=np.float32, mode="r", shape=(self._end // 4,))
        return mapped.reshape(-1, self._bytes_per_position // 4)

    def _check_block(self, key: str) -> None:
        """A block against its checksum, when it is first used."""
        if key in self._sound:
            return
        start, there = self.places[key]
        rows = self._blocks[start // self._bytes_per_position : start // self._bytes_per_position + there]
        if key in self.sums and hashlib.sha256(np.ascontiguousarray(rows).tobytes()).hexdigest() != self.sums[key]:
            raise RunFolderError(
                f"{self.folder / LOGITS_FILE}: is damaged (the block of {key!r} is not what was written); remove the folder "  # noqa: E501
                "to have the work done anew"
            )
        self._sound.add(key)

    def targets(self, keys: Sequence[str], counts: Sequence[int]) -> TeacherTargets:
        """Of the first so many positions of each document, laid end to end."""
        at = []
        for key, count in zip(keys, counts, strict=True):
            start, there = self.places[key]
            self._check_block(key)
            assert count <= there, f"{count} positions asked for, {there} there"
            at.append(np.arange(start // self._bytes_per_position, start // self._bytes_per_position + count))
        block = self._blocks[np.concatenate(at)]
        ids = torch.from_numpy(block[:, : self.top_k].copy().view(np.int32)).long()
        numbers = torch.from_numpy(block[:, self.top_k :].copy())
        return TeacherTargets(ids, numbers[:, :-1].contiguous(), numbers[:, -1].contiguous())


def _add_checksum(line: schemas.Record) -> dict[str, JsonValue]:
    row = {name: value for name, value in line.to_json().items() if name != CHECKSUM_KEY}
    return {**row, CHECKSUM_KEY: compute_checksum(row)}


def _validate_lines(lines: Sequence[dict[str, Any]], schema: type[LineT], path: Path) -> list[LineT]:
    """Validate every line of a file, and its checksum."""
    records = schemas.validate_record(lines, list[schema], path)  # type: ignore[valid-type]
    for number, line in enumerate(lines, start=1):
        if not has_valid_checksum(line):
            raise RunFolderError(
                f"{path}, line {number}: is damaged (its checksum does not agree); remove the folder to have the work "
                "done anew"
            )
    return records


__all__ = [
    "CacheKey",
    "ProgressCallback",
    "ProgressReporter",
    "ProgressUpdate",
    "TeacherCache",
    "compute_hash",
    "get_cache_root",
    "lock_cache_folder",
]
