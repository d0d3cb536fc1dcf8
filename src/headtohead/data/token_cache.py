"""Tokenized corpora on disk: built once, keyed by content, and memory-mapped by every training process.

FOLDER, named by a hash of everything the tokens depend on (files, settings, the code of this package)
  manifest.json       content and checksums; written last, so a folder that has it is complete
  tokenizer.json      the tokenizer
  splitN.tokens       the tokens of a split, concatenated, as uint16 or uint32
  splitN.offsets      where each row starts and the last one ends (int64)
  splitN.documents    the document of each row (int64), if rows name their documents
  splitN.counts       the frequency of each token of the vocabulary (int64)
  splitN.labels       the class of each row (int64), for classification
  splitN.text, .ends  the rows as text (`text_store`); vocabulary.* hold the vocabulary rows if they are not train's

A folder is built in three stages: text, tokenizer, then tokens in shards, which all cores encode and which are appended
in order. Each shard adds a line to splitN.jsonl after its tokens. After an interruption, the part already written is
verified against its checksums, and the build continues after it.

Checksums are computed while writing. Opening a folder verifies every file against its checksum. A large file's checksum
is kept in $XDG_CACHE_HOME/headtohead/checksums with the file's identity (size, inode, mtime and ctime), so an unchanged
file is not reread; `h2h doctor --deep` reads every byte.

Small corpora are cached too: reading and tokenizing the default corpus takes seconds and opening it milliseconds, in
every worker. The cache is in $XDG_CACHE_HOME/headtohead/corpora (~/.cache unless set). Folders unused for two months
are removed; deleting the cache loses nothing but time.
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
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headtohead.atomic_io import (
    compute_sha256,
    get_cache_folder,
    has_valid_checksum,
    lock_cache_folder,
    read_json,
    read_json_object,
    translate_disk_full_error,
    write_bytes,
    write_json,
)
from headtohead.config.data import DataConfig
from headtohead.data.encoding import EncodedSplit, TokenRows, TokenStream, encode_split, is_stream, number_documents
from headtohead.data.sources import loading
from headtohead.data.sources.registry import compute_code_digest
from headtohead.data.splits import Corpus, Split
from headtohead.data.text_store import DiskTextRows, memory_map, write_text_rows
from headtohead.data.token_shards import SplitTokenization, get_token_dtype, write_tokens
from headtohead.data.tokenizers import TOKENIZER_FILE, CorpusTokenizer, train_tokenizer
from headtohead.errors import DiskFullError, RunFolderError, escape_control_characters
from headtohead.progress import ProgressCallback, StderrProgress

SCHEMA_VERSION = 4
MANIFEST_FILE, TEXTS_FILE = "manifest.json", "texts.json"
MAX_UNUSED_DAYS = 60
LARGE_FILE_BYTES = 2**20
"""size above which a file's checksum is kept, because rereading it takes long"""
TIMESTAMP_NANOSECONDS = 2 * 10**9
"""a file that changed more recently may change again without changing its timestamps"""
UNUSABLE_CACHE_ERRORS = (
    *(errno.EACCES, errno.EPERM, errno.EROFS),
    *(errno.ENOTDIR, errno.EEXIST, errno.ELOOP, errno.ENAMETOOLONG, errno.ENODEV),
    *(errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP),
)
"""no permission, a path that cannot be created, no file locks"""
SETTINGS_OUTSIDE_CACHE_KEY = {"word_dropout", "rare_words", "allow_overlap", "monitor"}
"""the `data` settings that neither rows nor tokens depend on"""


@dataclass(frozen=True)
class TokenizedCorpus:
    """A corpus, its tokenizer, and its splits as tokens."""

    corpus: Corpus
    tokenizer: CorpusTokenizer
    encoded: dict[str, EncodedSplit]


def load_tokenized_corpus(
    data: DataConfig, *, has_labels: bool, base_folder: Path = Path(), on_progress: ProgressCallback | None = None
) -> TokenizedCorpus:
    """Return the corpus that `data` describes with its tokens mapped from disk; build it if it is not cached.

    Falls back to memory if the cache folder cannot be created, written or locked.
    """
    cache_key = build_cache_key(data, has_labels, base_folder)
    folder = get_cache_folder("corpora") / _hash_json(cache_key)[:24]
    if _find_cache_error(folder) is None:
        return _open_cache(folder, data, has_labels)
    try:
        return _build_cache(folder, cache_key, data, has_labels, base_folder, on_progress or StderrProgress())
    except OSError as error:
        if error.errno not in UNUSABLE_CACHE_ERRORS:
            raise
        return tokenize_in_memory(data, has_labels=has_labels, base_folder=base_folder)


def tokenize_in_memory(data: DataConfig, *, has_labels: bool, base_folder: Path = Path()) -> TokenizedCorpus:
    """Return the same corpus without using the disk. The reference implementation for the cache."""
    corpus = loading.load_corpus(data, has_labels=has_labels, base_folder=base_folder)
    tokenizer = train_tokenizer(data, corpus, base_folder=base_folder)
    encoded = {
        name: encode_split(split, tokenizer, data, has_labels=has_labels) for name, split in corpus.splits.items()
    }
    return TokenizedCorpus(corpus, tokenizer, encoded)


# -- cache key


def build_cache_key(data: DataConfig, has_labels: bool, base_folder: Path) -> dict[str, Any]:
    """Return everything that the tokens depend on as JSON values."""
    source, request = loading.resolve_source(data, base_folder, has_labels=has_labels)
    files = source.list_files(request)
    if "path" in data.tokenizer.options:
        tokenizer_path = base_folder / Path(str(data.tokenizer.options["path"])).expanduser()
        files |= {"tokenizer": tokenizer_path} if tokenizer_path.is_file() else {}
    return {
        "schema": SCHEMA_VERSION,
        "code": [_hash_source_code(), compute_code_digest(source.name)],
        "tokenizers": metadata.version("tokenizers"),
        "has_labels": has_labels,
        "data": data.model_dump(mode="json", exclude=SETTINGS_OUTSIDE_CACHE_KEY),
        "files": {name: get_checksum(path) for name, path in sorted(files.items())},
    }


def get_checksum(path: Path) -> str:
    """Return the SHA-256 of a cached file. A large file is reread only if it has changed."""
    identity = _identify_file(path)
    if identity["size"] < LARGE_FILE_BYTES:
        return compute_sha256(path)
    record_path = get_cache_folder("checksums") / f"{_hash_json(str(path.resolve()))[:24]}.json"
    with contextlib.suppress(RunFolderError, OSError):
        record = read_json_object(record_path)
        if has_valid_checksum(record) and record["file"] == identity:
            return str(record["sha256"])
    now, sha256 = time.time_ns(), compute_sha256(path)
    if now - identity["status_changed"] > TIMESTAMP_NANOSECONDS and _identify_file(path) == identity:
        with contextlib.suppress(OSError, DiskFullError):
            record_path.parent.mkdir(parents=True, exist_ok=True)
            write_json(record_path, {"file": identity, "sha256": sha256}, with_checksum=True)
    return sha256


def _identify_file(path: Path) -> dict[str, int]:
    """Return the identity of a cached file, which changes with every write.

    It includes the ctime, which a program cannot set.
    """
    stat = path.stat()
    return {
        "device": stat.st_dev,
        "inode": stat.st_ino,
        "size": stat.st_size,
        "content_changed": stat.st_mtime_ns,
        "status_changed": stat.st_ctime_ns,
    }


def _hash_source_code() -> str:
    """Return a hash of this package's code: changing the rules for rows, splits or words changes the tokens."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:24]


def _hash_json(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


# -- opening


def find_damaged_caches() -> dict[Path, str | None]:
    """Read every byte of every complete cache folder; return each folder with its error or None."""
    folders = sorted(path.parent for path in get_cache_folder("corpora").glob(f"*/{MANIFEST_FILE}"))
    return {folder: _find_cache_error(folder, compute_sha256) for folder in folders}


def _find_cache_error(folder: Path, hash_file: Callable[[Path], str] = get_checksum) -> str | None:
    """Return why a folder cannot be used, or None if it can."""
    if not (folder / MANIFEST_FILE).is_file():
        return "incomplete"
    try:
        manifest = read_json(folder / MANIFEST_FILE)
        checksum = manifest.pop("checksum")
        if (
            checksum != _hash_json(manifest)
            or manifest["schema"] != SCHEMA_VERSION
            or _hash_json(manifest["cache_key"])[:24] != folder.name
        ):
            return f"{MANIFEST_FILE} has changed"
        for name, expected in manifest["files"].items():
            if hash_file(folder / name) != expected:
                return f"{name} has changed"
    except (RunFolderError, OSError, LookupError, TypeError, ValueError, AttributeError) as error:
        return f"{type(error).__name__}: {error}"
    return None


def _open_cache(folder: Path, data: DataConfig, has_labels: bool) -> TokenizedCorpus:
    """Open a complete cache folder. Tokens are memory-mapped."""
    with contextlib.suppress(OSError):
        os.utime(folder / MANIFEST_FILE)
    corpus = _open_corpus(folder, read_json(folder / MANIFEST_FILE)["texts"], has_labels)
    tokenizer = CorpusTokenizer.load(folder)
    encoded: dict[str, EncodedSplit] = {}
    for i, split in enumerate(corpus.splits.values()):
        tokens = torch.from_numpy(memory_map(folder / f"split{i}.tokens", get_token_dtype(tokenizer)))
        counts = torch.from_numpy(np.fromfile(folder / f"split{i}.counts", np.int64))
        offsets = torch.from_numpy(memory_map(folder / f"split{i}.offsets", np.int64))
        documents = number_documents(split)
        if is_stream(data, has_labels=has_labels):
            encoded[split.name] = TokenStream(split.name, tokens, counts, offsets, documents)
            continue
        labels = torch.tensor(split.labels) if has_labels and split.labels is not None else None
        encoded[split.name] = TokenRows(split.name, tokens, offsets, labels, counts=counts, documents=documents)
    return TokenizedCorpus(corpus, tokenizer, encoded)


def _open_corpus(folder: Path, texts: Mapping[str, Any], has_labels: bool) -> Corpus:
    """Return the corpus with its rows on disk. `texts` is the description that `_write_corpus_texts` wrote."""
    splits = {}
    for i, split in enumerate(texts["splits"]):
        labels = tuple(np.fromfile(folder / f"split{i}.labels", np.int64).tolist()) if split["has_labels"] else None
        rows = DiskTextRows(folder, f"split{i}")
        path = folder / f"split{i}.documents"
        splits[split["name"]] = Split(
            split["name"],
            split["role"],
            rows,
            labels,
            split["separator"],
            tuple(split["documents"]),
            tuple(np.fromfile(path, np.int64).tolist()) if path.is_file() else (),
        )
    name = texts["vocabulary"]
    vocabulary_rows = splits["train"].rows if name == "train" else DiskTextRows(folder, name)
    return Corpus(has_labels, splits, tuple(texts["label_names"]), vocabulary_rows, texts["origin"], texts["digest"])


# -- building


def _build_cache(
    folder: Path,
    cache_key: dict[str, Any],
    data: DataConfig,
    has_labels: bool,
    base_folder: Path,
    on_progress: ProgressCallback,
) -> TokenizedCorpus:
    """Read, tokenize and store a corpus in a cache folder, under a lock; return the opened cache.

    A corrupted cache is removed first. The texts and the tokenizer of an interrupted build are reused.
    """
    with lock_cache_folder(folder):
        error_message = _find_cache_error(folder)  # another process may have built it while this one waited
        if error_message is None:
            return _open_cache(folder, data, has_labels)
        if (folder / MANIFEST_FILE).is_file():
            message = escape_control_characters(f"{folder} is corrupted ({error_message})")
            sys.stderr.write(f"{message}; building it again\n")
            _clear_folder(folder)
        with translate_disk_full_error(folder):
            corpus = _write_corpus_texts(folder, data, has_labels, base_folder, on_progress)
            tokenizer = _load_or_train_tokenizer(folder, data, corpus, base_folder)
            checksums: dict[str, str] = {}
            for i, split in enumerate(corpus.splits.values()):
                job = SplitTokenization(folder, f"split{i}", split, tokenizer, has_labels, data)
                checksums |= write_tokens(job, on_progress)
            _write_manifest(folder, cache_key, checksums)
        error_message = _find_cache_error(folder)
        if error_message is not None:
            raise RunFolderError(f"{folder}: {error_message} while it was built; check the disk and run again")
    _remove_unused_caches(folder.parent)
    return _open_cache(folder, data, has_labels)


def _clear_folder(folder: Path) -> None:
    """Remove a folder's files. They are not truncated, because another process may have mapped them."""
    for path in folder.iterdir():
        if path.name != ".lock":
            path.unlink()


def _write_corpus_texts(
    folder: Path, data: DataConfig, has_labels: bool, base_folder: Path, on_progress: ProgressCallback
) -> Corpus:
    """Write the rows, labels and documents of all splits.

    Files from an interrupted build are reused if their checksums match.
    """
    if (folder / TEXTS_FILE).is_file():
        texts = read_json(folder / TEXTS_FILE)
        files = texts["files"].items()
        if all((folder / name).is_file() and get_checksum(folder / name) == expected for name, expected in files):
            return _open_corpus(folder, texts, has_labels)
    _clear_folder(folder)
    corpus = loading.load_corpus(
        data, has_labels=has_labels, base_folder=base_folder, rows_folder=folder, on_progress=on_progress
    )
    checksums: dict[str, str] = {}
    for i, split in enumerate(corpus.splits.values()):
        rows = split.rows if isinstance(split.rows, DiskTextRows) else write_text_rows(folder, f"split{i}", split.rows)
        checksums |= rows.checksums
        # Labels and document ids are stored as int64, one value per row.
        for suffix, values in (("labels", split.labels), ("documents", split.document_ids)):
            if values is not None and len(values):
                content = np.array(values, np.int64).tobytes()
                write_bytes(folder / f"split{i}.{suffix}", content)
                checksums[f"split{i}.{suffix}"] = hashlib.sha256(content).hexdigest()
    has_vocabulary_rows = corpus.vocabulary_rows is not corpus.train.rows
    if has_vocabulary_rows:
        checksums |= write_text_rows(folder, "vocabulary", corpus.vocabulary_rows).checksums
    texts = {
        "splits": [
            {
                "name": s.name,
                "role": s.role,
                "separator": s.separator,
                "has_labels": s.labels is not None,
                "documents": s.documents,
            }
            for s in corpus.splits.values()
        ],
        "label_names": list(corpus.label_names),
        "origin": corpus.origin,
        "digest": corpus.digest,
        "vocabulary": "vocabulary" if has_vocabulary_rows else "train",
        "files": checksums,
    }
    write_json(folder / TEXTS_FILE, texts)
    return _open_corpus(folder, texts, has_labels)


def _load_or_train_tokenizer(folder: Path, data: DataConfig, corpus: Corpus, base_folder: Path) -> CorpusTokenizer:
    """Return the cache folder's tokenizer; train and save it first if it is missing."""
    texts = read_json(folder / TEXTS_FILE)
    if TOKENIZER_FILE not in texts["files"]:  # `_write_corpus_texts` has verified its checksum
        train_tokenizer(data, corpus, base_folder=base_folder).save(folder)
        texts["files"][TOKENIZER_FILE] = compute_sha256(folder / TOKENIZER_FILE)
        write_json(folder / TEXTS_FILE, texts)
    return CorpusTokenizer.load(folder)


def _write_manifest(folder: Path, cache_key: dict[str, Any], checksums: dict[str, str]) -> None:
    """Remove intermediate files, then write the manifest that marks the folder as complete."""
    texts = read_json(folder / TEXTS_FILE)
    files = {**texts.pop("files"), **checksums}
    for path in folder.iterdir():
        if path.name not in (".lock", TEXTS_FILE, *files):
            path.unlink()
    manifest = {"schema": SCHEMA_VERSION, "cache_key": cache_key, "texts": texts, "files": files}
    write_json(folder / MANIFEST_FILE, {**manifest, "checksum": _hash_json(manifest)}, fsync=True)
    (folder / TEXTS_FILE).unlink()


def _remove_unused_caches(root: Path) -> None:
    """Remove folders that have not been opened for a long time. Processes that have mapped one keep their pages."""
    for folder in [*root.iterdir(), *get_cache_folder("checksums").glob("*.json")]:
        path = folder / MANIFEST_FILE if (folder / MANIFEST_FILE).is_file() else folder
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > MAX_UNUSED_DAYS * 86400:
                shutil.rmtree(folder) if folder.is_dir() else folder.unlink()
