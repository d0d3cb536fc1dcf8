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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headtohead.atomic_io import (
    SEAL,
    append_line,
    at_work,
    cache_folder,
    check_seal,
    cut_to,
    disk_full_in_words,
    is_as_written,
    read_lines,
    seal_of,
    whole_lines,
    write_json,
)
from headtohead.errors import RunFolderError
from headtohead.experiment import schemas
from headtohead.progress import Clock, Pace, Tell
from headtohead.training.distillation_loss import Targets

SCHEMA = 1
ABOUT, TEXTS, INDEX, BLOCKS = "teacher.json", "texts.jsonl", "logits.jsonl", "logits.bin"


@dataclass(frozen=True)
class Whose:
    """Everything that a teacher's work depends on, but for the document."""

    name: str
    digest: str
    """of the teacher's weights"""
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return hash_of(self.digest, dict(self.settings))

    def as_row(self) -> dict[str, Any]:
        return {"name": self.name, "digest": self.digest, "settings": dict(self.settings)}


def hash_of(*parts: object) -> str:
    return hashlib.blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=12).hexdigest()


def root() -> Path:
    """Where teachers' work is kept on this machine."""
    return cache_folder("teachers")


@dataclass
class TeacherCache:
    """The work of one teacher with one choice of settings."""

    folder: Path
    whose: Whose
    texts: dict[str, dict[str, Any]] = field(default_factory=dict)
    places: dict[str, tuple[int, int]] = field(default_factory=dict)
    """key: where the block begins, in bytes, and its positions"""
    sums: dict[str, str] = field(default_factory=dict)
    """key: checksum of the block"""
    _sound: set[str] = field(default_factory=set)
    """blocks that have been held against it"""
    _end: int = 0
    """of the blocks, in bytes"""

    @classmethod
    def open(cls, whose: Whose, folder: Path | None = None, *, going_on: bool = False) -> TeacherCache:
        """The cache of this teacher. To write (`going_on`) is for one process at a time: see `at_work`."""
        place = folder or root() / whose.key
        with disk_full_in_words(place):
            place.mkdir(parents=True, exist_ok=True)
        made = cls(place, whose)
        made._check()
        read = whole_lines if going_on else read_lines
        texts = _sealed_lines(read(place / TEXTS), schemas.Text, place / TEXTS)
        blocks = _sealed_lines(read(place / INDEX), schemas.Block, place / INDEX)
        made.texts = {line["key"]: line for line in texts}
        made.places = {line["key"]: (line["at"], line["positions"]) for line in blocks}
        made.sums = {line["key"]: line["sum"] for line in blocks if "sum" in line}
        if wrong := [key for key, (at, _) in made.places.items() if at % made._row]:
            raise RunFolderError(f"{place / INDEX}: is damaged (no block begins where that of {wrong[0]!r} does)")
        made._end = max((at + count * made._row for at, count in made.places.values()), default=0)
        if going_on and (place / BLOCKS).is_file():
            cut_to(place / BLOCKS, made._end)
        made._check_size()
        return made

    def _check(self) -> None:
        path = self.folder / ABOUT
        if not path.is_file():
            write_json(path, {"schema": SCHEMA, **self.whose.as_row()}, sealed=True)
            return
        check_seal(path, "remove the folder to have the work done anew")
        there = schemas.read(path, schemas.Teacher)
        if there["digest"] != self.whose.digest:
            raise RunFolderError(
                f"{self.folder}: holds the work of another teacher, {there['name']} (weights {there['digest']}); this "
                f"one is {self.whose.name} (weights {self.whose.digest}). Remove the folder to have it done anew"
            )
        if there["settings"] != dict(self.whose.settings):
            differing = [k for k, v in self.whose.settings.items() if there["settings"].get(k) != v]
            raise RunFolderError(
                f"{self.folder}: was made with other settings ({', '.join(differing) or 'more of them'}); "
                "remove the folder to have it done anew"
            )

    def _check_size(self) -> None:
        size = (self.folder / BLOCKS).stat().st_size if (self.folder / BLOCKS).is_file() else 0
        if size < self._end:
            raise RunFolderError(
                f"{self.folder / BLOCKS}: is shorter than {INDEX} says ({size} bytes of {self._end}); "
                "remove the folder to have the work done anew"
            )

    # -- texts

    def add_text(self, key: str, line: Mapping[str, Any]) -> None:
        """What the teacher wrote of one document."""
        made = {"key": key, **line}
        made[SEAL] = seal_of(made)
        append_line(self.folder / TEXTS, made)
        self.texts[key] = made

    # -- logits

    @property
    def k(self) -> int:
        return int(self.whose.settings["top"])

    @property
    def _row(self) -> int:
        """Bytes of a position."""
        return 4 * (2 * self.k + 1)

    def add_targets(self, key: str, targets: Targets) -> None:
        """What the teacher thinks of each position of one document."""
        numbers = torch.cat((targets.shares, targets.rest[:, None]), 1).float().cpu().numpy()
        ids = targets.ids.to(torch.int32).cpu().numpy()
        assert ids.shape[1] == self.k, "as many words as the settings say"
        block = np.ascontiguousarray(np.concatenate((ids.view(np.float32), numbers), axis=1)).tobytes()
        at = self._end
        path = self.folder / BLOCKS
        with disk_full_in_words(path), path.open("ab") as file:
            file.write(block)
        line: dict[str, Any] = {"key": key, "at": at, "positions": len(ids), "sum": hashlib.sha256(block).hexdigest()}
        append_line(self.folder / INDEX, {**line, SEAL: seal_of(line)})
        self.sums[key] = line["sum"]
        self.places[key], self._end = (at, len(ids)), at + len(ids) * self._row
        self.__dict__.pop("_blocks", None)

    @cached_property
    def _blocks(self) -> np.ndarray[Any, np.dtype[np.float32]]:
        mapped = np.memmap(self.folder / BLOCKS, dtype=np.float32, mode="r", shape=(self._end // 4,))
        return mapped.reshape(-1, self._row // 4)

    def _check_block(self, key: str) -> None:
        """A block against its checksum, when it is first used."""
        if key in self._sound:
            return
        start, there = self.places[key]
        rows = self._blocks[start // self._row : start // self._row + there]
        if key in self.sums and hashlib.sha256(np.ascontiguousarray(rows).tobytes()).hexdigest() != self.sums[key]:
            raise RunFolderError(
                f"{self.folder / BLOCKS}: is damaged (the block of {key!r} is not what was written); remove the folder "
                "to have the work done anew"
            )
        self._sound.add(key)

    def targets(self, keys: Sequence[str], counts: Sequence[int]) -> Targets:
        """Of the first so many positions of each document, laid end to end."""
        at = []
        for key, count in zip(keys, counts, strict=True):
            start, there = self.places[key]
            self._check_block(key)
            assert count <= there, f"{count} positions asked for, {there} there"
            at.append(np.arange(start // self._row, start // self._row + count))
        block = self._blocks[np.concatenate(at)]
        ids = torch.from_numpy(block[:, : self.k].copy().view(np.int32)).long()
        numbers = torch.from_numpy(block[:, self.k :].copy())
        return Targets(ids, numbers[:, :-1].contiguous(), numbers[:, -1].contiguous())


def _sealed_lines(lines: Sequence[dict[str, Any]], shape: Any, path: Path) -> list[dict[str, Any]]:
    """The lines of a file, each of which is what was written."""
    for number, line in enumerate(lines, start=1):
        schemas.checked(line, shape, path)
        if not is_as_written(line):
            raise RunFolderError(
                f"{path}, line {number}: is damaged (its checksum does not agree); remove the folder to have the work "
                "done anew"
            )
    return list(lines)


__all__ = ["Clock", "Pace", "TeacherCache", "Tell", "Whose", "at_work", "hash_of", "root"]
