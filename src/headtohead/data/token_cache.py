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
    append_jsonl,
    compute_fingerprint,
    get_cache_folder,
    lock_cache_folder,
    read_json,
    repair_jsonl,
    translate_disk_full_error,
    truncate_file,
    write_bytes,
    write_json,
)
from headtohead.config.data import DataConfig
from headtohead.data.batches import EncodedSplit, TokenRows, TokenStream, encode_row_range, encode_split, is_stream
from headtohead.data.sources import loading
from headtohead.data.splits import Corpus, Split
from headtohead.data.text_store import DiskTextRows, memory_map, write_text_rows
from headtohead.data.tokenizers import TOKENIZER_FILE, CorpusTokenizer, train_tokenizer
from headtohead.errors import RunFolderError
from headtohead.progress import ProgressCallback, ProgressReporter, StderrProgress

SCHEMA_VERSION = 1
MANIFEST_FILE, TEXTS_FILE = "manifest.json", "texts.json"
SHARD_BYTES = 2**22
"""bytes of text that are cut into tokens at a time, and all that a kill costs each core"""
READ_CHUNK_BYTES = 2**22
MAX_UNUSED_DAYS = 60
CACHE_KEY_SETTINGS = ("source", "files", "columns", "tokens", "vocabulary", "rows", "validation", "test_rows")
"""of data: those that rows and tokens depend on"""


@dataclass(frozen=True)
class TokenizedCorpus:
    """A corpus, its tokenizer, and its splits as tokens."""

    corpus: Corpus
    tokenizer: CorpusTokenizer
    encoded: dict[str, EncodedSplit]


def load_tokenized_corpus(
    data: DataConfig, *, has_labels: bool, base_folder: Path = Path(), on_progress: ProgressCallback | None = None
) -> TokenizedCorpus:
    """The corpus that `data` asks for, as tokens on disk; made if it is not there yet. Where nothing can be written, it
    is made in memory."""
    whose = _build_cache_key(data, has_labels, base_folder)
    folder = get_cache_folder("corpora") / _hash_json(whose)[:24]
    if _find_cache_error(folder) is None:
        return _open_cache(folder, data, has_labels)
    try:
        return _build_cache(folder, whose, data, has_labels, base_folder, on_progress or StderrProgress())
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        return tokenize_in_memory(data, has_labels=has_labels, base_folder=base_folder)


def tokenize_in_memory(data: DataConfig, *, has_labels: bool, base_folder: Path = Path()) -> TokenizedCorpus:
    """The same without the disk: the slow, obvious twin."""
    texts = loading.load_corpus(data, has_labels=has_labels, base_folder=base_folder)
    tokenizer = train_tokenizer(data, texts, base_folder=base_folder)
    encoded = {
        name: encode_split(split, tokenizer, data, has_labels=has_labels) for name, split in texts.splits.items()
    }
    return TokenizedCorpus(texts, tokenizer, encoded)


# -- what it depends on


def _build_cache_key(data: DataConfig, has_labels: bool, base_folder: Path) -> dict[str, Any]:
    """Everything that the tokens depend on, as plain data."""
    files = loading.list_source_files(data, base_folder=base_folder)
    if "path" in data.tokens.options:
        tokenizer = base_folder / Path(str(data.tokens.options["path"])).expanduser()
        files |= {"tokenizer": tokenizer} if tokenizer.is_file() else {}
    return {
        "schema": SCHEMA_VERSION,
        "code": _hash_source_code(),
        "tokenizers": metadata.version("tokenizers"),
        "has_labels": has_labels,
        "data": data.model_dump(mode="json", include=set(CACHE_KEY_SETTINGS)),
        "files": {name: _fingerprint_file(path) for name, path in sorted(files.items())},
    }


def _fingerprint_file(path: Path) -> str:
    """The content of a file; of one that is too large to be read, also when it was changed."""
    about = path.stat()
    return (
        f"{compute_fingerprint(path)[:24]} {about.st_mtime_ns}"
        if about.st_size > 2**20
        else compute_fingerprint(path)[:24]
    )


def _hash_source_code() -> str:
    """Other rules for rows, splits or words make other tokens."""
    made = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        made.update(path.read_bytes())
    return made.hexdigest()[:24]


def _hash_json(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


# -- a folder that is there


def _find_cache_error(folder: Path) -> str | None:
    """What keeps the folder from being used; None if nothing does."""
    if not (folder / MANIFEST_FILE).is_file():
        return "it is not finished"
    try:
        manifest = read_json(folder / MANIFEST_FILE)
        said = manifest.pop("sum")
        if (
            said != _hash_json(manifest)
            or manifest["schema"] != SCHEMA_VERSION
            or _hash_json(manifest["whose"])[:24] != folder.name
        ):
            return f"{MANIFEST_FILE} is not what was written"
        for name, one in manifest["files"].items():
            if one != _describe_file(folder / name):
                return f"{name} is not what was written"
    except (RunFolderError, OSError, LookupError, TypeError, ValueError, AttributeError) as error:
        return f"{type(error).__name__}: {error}"
    return None


def _describe_file(path: Path) -> dict[str, Any]:
    return {"bytes": path.stat().st_size, "sum": compute_fingerprint(path)}


def _open_cache(folder: Path, data: DataConfig, has_labels: bool) -> TokenizedCorpus:
    with contextlib.suppress(OSError):
        os.utime(folder / MANIFEST_FILE)
    texts = _open_corpus(folder, read_json(folder / MANIFEST_FILE)["texts"], has_labels)
    tokenizer = CorpusTokenizer.load(folder)
    encoded: dict[str, EncodedSplit] = {}
    for at, split in enumerate(texts.splits.values()):
        tokens = torch.from_numpy(memory_map(folder / f"split{at}.tokens", _get_token_dtype(tokenizer)))
        counts = torch.from_numpy(np.fromfile(folder / f"split{at}.counts", np.int64))
        if is_stream(data, has_labels=has_labels):
            encoded[split.name] = TokenStream(split.name, tokens, counts)
            continue
        offsets = torch.from_numpy(memory_map(folder / f"split{at}.offsets", np.int64))
        labels = torch.tensor(split.labels) if has_labels and split.labels is not None else None
        encoded[split.name] = TokenRows(split.name, tokens, offsets, labels, counts=counts)
    return TokenizedCorpus(texts, tokenizer, encoded)


def _open_corpus(folder: Path, texts_manifest: Mapping[str, Any], has_labels: bool) -> Corpus:
    """The corpus with its rows on disk."""
    splits = {}
    for at, one in enumerate(texts_manifest["splits"]):
        labels = tuple(np.fromfile(folder / f"split{at}.labels", np.int64).tolist()) if one["labelled"] else None
        splits[one["name"]] = Split(one["name"], one["role"], DiskTextRows(folder, f"split{at}"), labels, one["joint"])
    vocabulary = (
        splits["train"].rows
        if texts_manifest["vocabulary"] == "train"
        else DiskTextRows(folder, texts_manifest["vocabulary"])
    )
    return Corpus(
        has_labels,
        splits,
        tuple(texts_manifest["labels"]),
        vocabulary,
        texts_manifest["origin"],
        texts_manifest["digest"],
    )


def _get_token_dtype(tokenizer: CorpusTokenizer) -> Any:
    return np.uint16 if tokenizer.vocab_size <= 2**16 else np.uint32


# -- a folder that is being made


def _build_cache(
    folder: Path,
    cache_key: dict[str, Any],
    data: DataConfig,
    has_labels: bool,
    base_folder: Path,
    on_progress: ProgressCallback,
) -> TokenizedCorpus:
    with lock_cache_folder(folder):
        fault = _find_cache_error(folder)  # somebody else may have made it while we waited
        if fault is None:
            return _open_cache(folder, data, has_labels)
        if (folder / MANIFEST_FILE).is_file():
            sys.stderr.write(f"{folder}: damaged ({fault}); the tokens are made anew\n")
            _clear_folder(folder)
        with translate_disk_full_error(folder):
            corpus = _write_corpus_texts(folder, data, has_labels, base_folder, on_progress)
            tokenizer = _load_or_train_tokenizer(folder, data, corpus, base_folder)
            for at, split in enumerate(corpus.splits.values()):
                _write_tokens(_SplitTokenization(folder, f"split{at}", split, tokenizer, has_labels, data), on_progress)
            _write_manifest(folder, cache_key)
    _remove_unused_caches(folder.parent)
    return _open_cache(folder, data, has_labels)


def _clear_folder(folder: Path) -> None:
    """Files are removed and never cut short: somebody may have mapped them."""
    for path in folder.iterdir():
        if path.name != ".lock":
            path.unlink()


def _write_corpus_texts(
    folder: Path, data: DataConfig, has_labels: bool, base_folder: Path, on_progress: ProgressCallback
) -> Corpus:
    if (folder / TEXTS_FILE).is_file():
        said = read_json(folder / TEXTS_FILE)
        if all(
            (folder / name).is_file() and _describe_file(folder / name) == one for name, one in said["files"].items()
        ):
            return _open_corpus(folder, said, has_labels)
    _clear_folder(folder)
    corpus = loading.load_corpus(
        data, has_labels=has_labels, base_folder=base_folder, rows_folder=folder, on_progress=on_progress
    )
    for at, split in enumerate(corpus.splits.values()):
        if not isinstance(split.rows, DiskTextRows):
            write_text_rows(folder, f"split{at}", split.rows)
        if split.labels is not None:
            write_bytes(folder / f"split{at}.labels", np.array(split.labels, np.int64).tobytes())
    own = corpus.vocabulary_rows is not corpus.train.rows
    if own:
        write_text_rows(folder, "vocabulary", corpus.vocabulary_rows)
    said = {
        "splits": [
            {"name": one.name, "role": one.role, "joint": one.separator, "labelled": one.labels is not None}
            for one in corpus.splits.values()
        ],
        "labels": list(corpus.label_names),
        "origin": corpus.origin,
        "digest": corpus.digest,
        "vocabulary": "vocabulary" if own else "train",
        "files": {path.name: _describe_file(path) for path in sorted(folder.iterdir()) if path.name != ".lock"},
    }
    write_json(folder / TEXTS_FILE, said)
    return _open_corpus(folder, said, has_labels)


def _load_or_train_tokenizer(folder: Path, data: DataConfig, corpus: Corpus, base_folder: Path) -> CorpusTokenizer:
    if not (folder / TOKENIZER_FILE).is_file():
        train_tokenizer(data, corpus, base_folder=base_folder).save(folder)
    return CorpusTokenizer.load(folder)


@dataclass(frozen=True)
class _SplitTokenization:
    """A split that is being cut into tokens."""

    folder: Path
    name: str
    split: Split
    tokenizer: CorpusTokenizer
    has_labels: bool
    data: DataConfig

    def path(self, suffix: str) -> Path:
        return self.folder / f"{self.name}.{suffix}"

    @property
    def texts(self) -> DiskTextRows:
        assert isinstance(self.split.rows, DiskTextRows)
        return self.split.rows

    def encode_shard(self, start: int, stop: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """The tokens of some rows end to end, and how many each row has."""
        rows = list(self.texts.between(start, stop))
        ids = encode_row_range(self.split, rows, start, self.tokenizer, self.data, has_labels=self.has_labels)
        lengths = np.fromiter(map(len, ids), np.int64, len(ids))
        return np.fromiter(chain.from_iterable(ids), _get_token_dtype(self.tokenizer), int(lengths.sum())), lengths


def _write_tokens(tokenization: _SplitTokenization, on_progress: ProgressCallback) -> None:
    """Tokens, offsets and counts of one split; goes on behind the last whole shard."""
    texts, stream = tokenization.texts, is_stream(tokenization.data, has_labels=tokenization.has_labels)
    width = np.dtype(_get_token_dtype(tokenization.tokenizer)).itemsize
    lines = repair_jsonl(tokenization.path("jsonl"))
    row, token = (lines[-1]["rows"], lines[-1]["tokens"]) if lines else (0, 0)
    what = f"cutting {tokenization.split.name} into tokens, in MB"
    clock = ProgressReporter(
        what, texts.count_megabytes_before(len(texts)), on_progress, texts.count_megabytes_before(row)
    )
    with tokenization.path("tokens").open("ab") as tokens, tokenization.path("offsets").open("ab") as offsets:
        truncate_file(tokenization.path("tokens"), token * width)
        truncate_file(tokenization.path("offsets"), 8 * (row + 1) if row else 0)
        if not row:
            offsets.write(np.zeros(1, np.int64).tobytes())
        for last, (ids, lengths) in _iter_encoded_shards(
            tokenization, [cut for cut in texts.compute_shard_boundaries(SHARD_BYTES) if cut >= row]
        ):
            tokens.write(ids.tobytes())
            tokens.flush()
            offsets.write((token + np.cumsum(lengths)).tobytes())
            offsets.flush()
            clock.step(texts.count_megabytes_before(last) - texts.count_megabytes_before(row))
            row, token = last, token + len(ids)
            append_jsonl(tokenization.path("jsonl"), {"rows": row, "tokens": token})
    if stream:
        tokenization.path("offsets").unlink()
    write_bytes(
        tokenization.path("counts"), _count_tokens(tokenization.path("tokens"), tokenization.tokenizer).tobytes()
    )


def _iter_encoded_shards(
    tokenization: _SplitTokenization, boundaries: list[int]
) -> Iterator[tuple[int, tuple[NDArray[Any], NDArray[np.int64]]]]:
    """Where each shard ends, and what is in it, in order. The library cuts outside Python's lock, so that threads are
    enough; two shards for each core are on their way at most."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    waiting: deque[tuple[int, Future[tuple[NDArray[Any], NDArray[np.int64]]]]] = deque()
    with ThreadPoolExecutor(cores) as pool:
        for first, last in pairwise(boundaries):
            waiting.append((last, pool.submit(tokenization.encode_shard, first, last)))
            if len(waiting) > 2 * cores:
                end, shard = waiting.popleft()
                yield end, shard.result()
        for end, shard in waiting:
            yield end, shard.result()


def _count_tokens(path: Path, tokenizer: CorpusTokenizer) -> NDArray[np.int64]:
    """How often each token stands there, read block by block."""
    dtype = np.dtype(_get_token_dtype(tokenizer))
    counts = np.zeros(tokenizer.vocab_size, np.int64)
    with path.open("rb") as file:
        while block := file.read(READ_CHUNK_BYTES):
            counts += np.bincount(np.frombuffer(block, dtype), minlength=tokenizer.vocab_size)
    return counts


def _write_manifest(folder: Path, cache_key: dict[str, Any]) -> None:
    """What was needed on the way goes, and the manifest says that the rest is whole."""
    said = read_json(folder / TEXTS_FILE)
    for path in [*folder.glob("*.jsonl"), *folder.glob(".*.part")]:
        path.unlink()
    kept = sorted(path for path in folder.iterdir() if path.name not in (".lock", TEXTS_FILE, MANIFEST_FILE))
    manifest = {
        "schema": SCHEMA_VERSION,
        "whose": cache_key,
        "texts": said,
        "files": {path.name: _describe_file(path) for path in kept},
    }
    write_json(folder / MANIFEST_FILE, {**manifest, "sum": _hash_json(manifest)}, fsync=True)
    (folder / TEXTS_FILE).unlink()


def _remove_unused_caches(root: Path) -> None:
    """Remove what nobody has opened for a long time; a process that has it mapped keeps what it has."""
    for folder in root.iterdir():
        newest = folder / MANIFEST_FILE if (folder / MANIFEST_FILE).is_file() else folder
        with contextlib.suppress(OSError):
            if time.time() - newest.stat().st_mtime > MAX_UNUSED_DAYS * 86400:
                shutil.rmtree(folder)


__all__ = ["TokenizedCorpus", "load_tokenized_corpus", "tokenize_in_memory"]
