"""A corpus as tokens on disk: made once, found again by content, mapped by every process that trains on it.

FOLDER (named by a hash of all that the tokens depend on: the files, the settings, the code of this room)
  manifest.json       what is there, with sizes and checksums; written last, so that a folder with it is whole
  tokenizer.json      the tokenizer
  splitN.tokens       the tokens of a split end to end, as uint16 or uint32
  splitN.offsets      where each row begins and the last one ends (int64), where examples are rows
  splitN.counts       how often each token of the vocabulary stands there (int64)
  splitN.labels       the class of each row (int64), of a classifier
  splitN.text, .ends  the rows as text (`texts`); vocabulary.* are those of the vocabulary, if they are not train's

It is made in three stages: texts, then the tokenizer, then tokens in shards, which all cores cut and which are added in
order. Each shard is a line of splitN.jsonl, written after its tokens. A kill loses the shards that were being cut: half
a line and tokens without a line are taken away, and the work goes on behind them.

A small corpus goes the same way as a large one: reading, counting and cutting the default corpus takes seconds, opening
it milliseconds, and every worker has to. The place is $XDG_CACHE_HOME/headtohead/corpora (~/.cache unless set). What
nobody opened for two months is removed; nothing but time is lost when all of it is.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from headtohead.atomic_io import (
    append_line,
    at_work,
    cache_folder,
    cut_to,
    disk_full_in_words,
    fingerprint,
    read_json,
    whole_lines,
    write_bytes,
    write_json,
)
from headtohead.config.data import Data
from headtohead.data.batches import Encoded, Rows, Stream, encode, encode_some, is_stream
from headtohead.data.sources import loading
from headtohead.data.splits import Corpus, Split, Task
from headtohead.data.text_store import Texts, mapped, write_texts
from headtohead.data.tokenizers import FILE, Tokenizer, train_tokenizer
from headtohead.errors import RunFolderError
from headtohead.progress import Clock, OnStderr, Tell

SCHEMA = 1
MANIFEST, TEXTS = "manifest.json", "texts.json"
SHARD = 2**22
"""bytes of text that are cut into tokens at a time, and all that a kill costs each core"""
READ_AT_ONCE = 2**22
UNUSED_DAYS = 60
SETTINGS = ("source", "files", "columns", "tokens", "vocabulary", "rows", "validation", "test_rows")
"""of data: those that rows and tokens depend on"""


@dataclass(frozen=True)
class Tokenised:
    """A corpus, its tokenizer, and its splits as tokens."""

    corpus: Corpus
    tokenizer: Tokenizer
    encoded: dict[str, Encoded]


def tokenised(data: Data, task: Task, *, base: Path = Path(), tell: Tell | None = None) -> Tokenised:
    """The corpus that `data` asks for, as tokens on disk; made if it is not there yet. Where nothing can be written, it
    is made in memory."""
    whose = _whose(data, task, base)
    folder = cache_folder("corpora") / _sum(whose)[:24]
    if _fault(folder) is None:
        return _open(folder, data, task)
    try:
        return _made(folder, whose, data, task, base, tell or OnStderr())
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        return in_memory(data, task, base=base)


def in_memory(data: Data, task: Task, *, base: Path = Path()) -> Tokenised:
    """The same without the disk: the slow, obvious twin."""
    texts = loading.load(data, task, base=base)
    tokenizer = train_tokenizer(data, texts, base=base)
    encoded = {name: encode(split, tokenizer, task, data) for name, split in texts.splits.items()}
    return Tokenised(texts, tokenizer, encoded)


# -- what it depends on


def _whose(data: Data, task: Task, base: Path) -> dict[str, Any]:
    """Everything that the tokens depend on, as plain data."""
    files = loading.files_of(data, base=base)
    if "path" in data.tokens.options:
        tokenizer = base / Path(str(data.tokens.options["path"])).expanduser()
        files |= {"tokenizer": tokenizer} if tokenizer.is_file() else {}
    return {
        "schema": SCHEMA,
        "code": _code(),
        "tokenizers": metadata.version("tokenizers"),
        "task": task,
        "data": data.model_dump(mode="json", include=set(SETTINGS)),
        "files": {name: _stamp(path) for name, path in sorted(files.items())},
    }


def _stamp(path: Path) -> str:
    """The content of a file; of one that is too large to be read, also when it was changed."""
    about = path.stat()
    return f"{fingerprint(path)[:24]} {about.st_mtime_ns}" if about.st_size > 2**20 else fingerprint(path)[:24]


def _code() -> str:
    """Other rules for rows, splits or words make other tokens."""
    made = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        made.update(path.read_bytes())
    return made.hexdigest()[:24]


def _sum(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


# -- a folder that is there


def _fault(folder: Path) -> str | None:
    """What keeps the folder from being used; None if nothing does."""
    if not (folder / MANIFEST).is_file():
        return "it is not finished"
    try:
        manifest = read_json(folder / MANIFEST)
        said = manifest.pop("sum")
        if said != _sum(manifest) or manifest["schema"] != SCHEMA or _sum(manifest["whose"])[:24] != folder.name:
            return f"{MANIFEST} is not what was written"
        for name, one in manifest["files"].items():
            if one != _about(folder / name):
                return f"{name} is not what was written"
    except (RunFolderError, OSError, LookupError, TypeError, ValueError, AttributeError) as error:
        return f"{type(error).__name__}: {error}"
    return None


def _about(path: Path) -> dict[str, Any]:
    return {"bytes": path.stat().st_size, "sum": fingerprint(path)}


def _open(folder: Path, data: Data, task: Task) -> Tokenised:
    with contextlib.suppress(OSError):
        os.utime(folder / MANIFEST)
    texts = _texts(folder, read_json(folder / MANIFEST)["texts"], task)
    tokenizer = Tokenizer.load(folder)
    encoded: dict[str, Encoded] = {}
    for at, split in enumerate(texts.splits.values()):
        tokens = torch.from_numpy(mapped(folder / f"split{at}.tokens", _type_of(tokenizer)))
        counts = torch.from_numpy(np.fromfile(folder / f"split{at}.counts", np.int64))
        if is_stream(task, data):
            encoded[split.name] = Stream(split.name, tokens, counts)
            continue
        offsets = torch.from_numpy(mapped(folder / f"split{at}.offsets", np.int64))
        labels = torch.tensor(split.labels) if task == "classify" and split.labels is not None else None
        encoded[split.name] = Rows(split.name, tokens, offsets, labels, counts=counts)
    return Tokenised(texts, tokenizer, encoded)


def _texts(folder: Path, said: Mapping[str, Any], task: Task) -> Corpus:
    """The corpus with its rows on disk."""
    splits = {}
    for at, one in enumerate(said["splits"]):
        labels = tuple(np.fromfile(folder / f"split{at}.labels", np.int64).tolist()) if one["labelled"] else None
        splits[one["name"]] = Split(one["name"], one["role"], Texts(folder, f"split{at}"), labels, one["joint"])
    vocabulary = splits["train"].rows if said["vocabulary"] == "train" else Texts(folder, said["vocabulary"])
    return Corpus(task, splits, tuple(said["labels"]), vocabulary, said["origin"], said["digest"])


def _type_of(tokenizer: Tokenizer) -> Any:
    return np.uint16 if tokenizer.vocab_size <= 2**16 else np.uint32


# -- a folder that is being made


def _made(folder: Path, whose: dict[str, Any], data: Data, task: Task, base: Path, tell: Tell) -> Tokenised:
    with at_work(folder):
        fault = _fault(folder)  # somebody else may have made it while we waited
        if fault is None:
            return _open(folder, data, task)
        if (folder / MANIFEST).is_file():
            sys.stderr.write(f"{folder}: damaged ({fault}); the tokens are made anew\n")
            _empty(folder)
        with disk_full_in_words(folder):
            corpus = _make_texts(folder, data, task, base, tell)
            tokenizer = _make_tokenizer(folder, data, corpus, base)
            for at, split in enumerate(corpus.splits.values()):
                _make_tokens(_Cutting(folder, f"split{at}", split, tokenizer, task, data), tell)
            _finish(folder, whose)
    _sweep(folder.parent)
    return _open(folder, data, task)


def _empty(folder: Path) -> None:
    """Files are removed and never cut short: somebody may have mapped them."""
    for path in folder.iterdir():
        if path.name != ".lock":
            path.unlink()


def _make_texts(folder: Path, data: Data, task: Task, base: Path, tell: Tell) -> Corpus:
    if (folder / TEXTS).is_file():
        said = read_json(folder / TEXTS)
        if all((folder / name).is_file() and _about(folder / name) == one for name, one in said["files"].items()):
            return _texts(folder, said, task)
    _empty(folder)
    corpus = loading.load(data, task, base=base, folder=folder, tell=tell)
    for at, split in enumerate(corpus.splits.values()):
        if not isinstance(split.rows, Texts):
            write_texts(folder, f"split{at}", split.rows)
        if split.labels is not None:
            write_bytes(folder / f"split{at}.labels", np.array(split.labels, np.int64).tobytes())
    own = corpus.vocabulary_rows is not corpus.train.rows
    if own:
        write_texts(folder, "vocabulary", corpus.vocabulary_rows)
    said = {
        "splits": [
            {"name": one.name, "role": one.role, "joint": one.joint, "labelled": one.labels is not None}
            for one in corpus.splits.values()
        ],
        "labels": list(corpus.label_names),
        "origin": corpus.origin,
        "digest": corpus.digest,
        "vocabulary": "vocabulary" if own else "train",
        "files": {path.name: _about(path) for path in sorted(folder.iterdir()) if path.name != ".lock"},
    }
    write_json(folder / TEXTS, said)
    return _texts(folder, said, task)


def _make_tokenizer(folder: Path, data: Data, corpus: Corpus, base: Path) -> Tokenizer:
    if not (folder / FILE).is_file():
        train_tokenizer(data, corpus, base=base).save(folder)
    return Tokenizer.load(folder)


@dataclass(frozen=True)
class _Cutting:
    """A split that is being cut into tokens."""

    folder: Path
    name: str
    split: Split
    tokenizer: Tokenizer
    task: Task
    data: Data

    def path(self, what: str) -> Path:
        return self.folder / f"{self.name}.{what}"

    @property
    def texts(self) -> Texts:
        assert isinstance(self.split.rows, Texts)
        return self.split.rows

    def shard(self, first: int, last: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """The tokens of some rows end to end, and how many each row has."""
        rows = list(self.texts.between(first, last))
        ids = encode_some(self.split, rows, first, self.tokenizer, self.task, self.data)
        lengths = np.fromiter(map(len, ids), np.int64, len(ids))
        return np.fromiter(chain.from_iterable(ids), _type_of(self.tokenizer), int(lengths.sum())), lengths


def _make_tokens(cutting: _Cutting, tell: Tell) -> None:
    """Tokens, offsets and counts of one split; goes on behind the last whole shard."""
    texts, stream = cutting.texts, is_stream(cutting.task, cutting.data)
    width = np.dtype(_type_of(cutting.tokenizer)).itemsize
    lines = whole_lines(cutting.path("jsonl"))
    row, token = (lines[-1]["rows"], lines[-1]["tokens"]) if lines else (0, 0)
    what = f"cutting {cutting.split.name} into tokens, in MB"
    clock = Clock(what, texts.megabytes(len(texts)), tell, texts.megabytes(row))
    with cutting.path("tokens").open("ab") as tokens, cutting.path("offsets").open("ab") as offsets:
        cut_to(cutting.path("tokens"), token * width)
        cut_to(cutting.path("offsets"), 8 * (row + 1) if row else 0)
        if not row:
            offsets.write(np.zeros(1, np.int64).tobytes())
        for last, (ids, lengths) in _shards(cutting, [cut for cut in texts.cuts(SHARD) if cut >= row]):
            tokens.write(ids.tobytes())
            tokens.flush()
            offsets.write((token + np.cumsum(lengths)).tobytes())
            offsets.flush()
            clock.step(texts.megabytes(last) - texts.megabytes(row))
            row, token = last, token + len(ids)
            append_line(cutting.path("jsonl"), {"rows": row, "tokens": token})
    if stream:
        cutting.path("offsets").unlink()
    write_bytes(cutting.path("counts"), _count(cutting.path("tokens"), cutting.tokenizer).tobytes())


def _shards(cutting: _Cutting, cuts: list[int]) -> Iterator[tuple[int, tuple[NDArray[Any], NDArray[np.int64]]]]:
    """Where each shard ends, and what is in it, in order. The library cuts outside Python's lock, so that threads are
    enough; two shards for each core are on their way at most."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    waiting: deque[tuple[int, Future[tuple[NDArray[Any], NDArray[np.int64]]]]] = deque()
    with ThreadPoolExecutor(cores) as pool:
        for first, last in pairwise(cuts):
            waiting.append((last, pool.submit(cutting.shard, first, last)))
            if len(waiting) > 2 * cores:
                end, shard = waiting.popleft()
                yield end, shard.result()
        for end, shard in waiting:
            yield end, shard.result()


def _count(path: Path, tokenizer: Tokenizer) -> NDArray[np.int64]:
    """How often each token stands there, read block by block."""
    dtype = np.dtype(_type_of(tokenizer))
    counts = np.zeros(tokenizer.vocab_size, np.int64)
    with path.open("rb") as file:
        while block := file.read(READ_AT_ONCE):
            counts += np.bincount(np.frombuffer(block, dtype), minlength=tokenizer.vocab_size)
    return counts


def _finish(folder: Path, whose: dict[str, Any]) -> None:
    """What was needed on the way goes, and the manifest says that the rest is whole."""
    said = read_json(folder / TEXTS)
    for path in [*folder.glob("*.jsonl"), *folder.glob(".*.part")]:
        path.unlink()
    kept = sorted(path for path in folder.iterdir() if path.name not in (".lock", TEXTS, MANIFEST))
    manifest = {"schema": SCHEMA, "whose": whose, "texts": said, "files": {path.name: _about(path) for path in kept}}
    write_json(folder / MANIFEST, {**manifest, "sum": _sum(manifest)}, durable=True)
    (folder / TEXTS).unlink()


def _sweep(root: Path) -> None:
    """Remove what nobody has opened for a long time; a process that has it mapped keeps what it has."""
    for folder in root.iterdir():
        newest = folder / MANIFEST if (folder / MANIFEST).is_file() else folder
        with contextlib.suppress(OSError):
            if time.time() - newest.stat().st_mtime > UNUSED_DAYS * 86400:
                shutil.rmtree(folder)


__all__ = ["Tokenised", "in_memory", "tokenised"]
