"""Tokenized corpora on disk: built once, keyed by content, and memory-mapped by every training process.

FOLDER, named by a hash of all inputs that determine the tokens (files, settings, the code of this package)
  manifest.json       content and checksums; written last, so a folder that has it is complete
  tokenizer.json      the tokenizer
  splitN.tokens       the token ids of a split, concatenated, as uint16 or uint32
  splitN.offsets      where each row starts and the last one ends (int64)
  splitN.documents    the document index of each row (int64), if rows name their documents
  splitN.counts       the frequency of each token of the vocabulary (int64)
  splitN.labels       the class index of each row (int64), for classification
  splitN.text, .ends  the rows as text (`text_store`); vocabulary.* contain the vocabulary rows if they are not train's

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

from headtohead.atomic_io import compute_sha256, translate_disk_full_error, write_bytes
from headtohead.cache_folders import get_cache_folder, lock_cache_folder
from headtohead.config.tables.data import DataConfig
from headtohead.control_characters import escape_control_characters
from headtohead.data.encoding import (
    EncodedSplit,
    TokenRows,
    TokenStream,
    encode_split,
    get_row_documents,
    uses_token_stream,
)
from headtohead.data.mapped_arrays import memory_map_array
from headtohead.data.sources import loading
from headtohead.data.sources.registry import compute_source_code_digest
from headtohead.data.splits import Corpus, Split
from headtohead.data.text_store import DiskTextRows, write_text_rows
from headtohead.data.token_shards import SplitTokenization, get_token_dtype, write_tokens
from headtohead.data.tokenization.tokenizers import TOKENIZER_FILE, CorpusTokenizer, train_tokenizer
from headtohead.errors import DiskFullError, RunFolderError
from headtohead.json_files import has_valid_json_checksum, read_json, read_json_object, write_json
from headtohead.progress import ProgressCallback, StderrProgress

SCHEMA_VERSION = 4
MANIFEST_FILE = "manifest.json"
"""describes a complete cache folder"""
TEXTS_FILE = "texts.json"
"""describes the texts and the tokenizer of a folder that is being built"""
MAX_UNUSED_DAYS = 60
LARGE_FILE_BYTES = 2**20
"""size above which a file's checksum is stored, because rereading the file takes long"""
TIMESTAMP_RESOLUTION_NANOSECONDS = 2 * 10**9
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
    """A corpus, its tokenizer, and its splits as token ids."""

    corpus: Corpus
    tokenizer: CorpusTokenizer
    encoded: dict[str, EncodedSplit]


def load_tokenized_corpus(
    data: DataConfig, *, has_labels: bool, base_folder: Path = Path(), on_progress: ProgressCallback | None = None
) -> TokenizedCorpus:
    """Return the corpus that `data` describes with its token ids mapped from disk; build it if it is not cached.

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
    """Return what `load_tokenized_corpus` returns, without the cache on disk. The reference implementation."""
    corpus = loading.load_corpus(data, has_labels=has_labels, base_folder=base_folder)
    tokenizer = train_tokenizer(data, corpus, base_folder=base_folder)
    encoded = {
        name: encode_split(split, tokenizer, data, has_labels=has_labels) for name, split in corpus.splits.items()
    }
    return TokenizedCorpus(corpus, tokenizer, encoded)


# -- cache key


def build_cache_key(data: DataConfig, has_labels: bool, base_folder: Path) -> dict[str, Any]:
    """Return all inputs that determine the tokens, as JSON values."""
    source, request = loading.resolve_source(data, base_folder, has_labels=has_labels)
    files = source.list_files(request)
    if "path" in data.tokenizer.options:
        tokenizer_path = base_folder / Path(str(data.tokenizer.options["path"])).expanduser()
        files |= {"tokenizer": tokenizer_path} if tokenizer_path.is_file() else {}
    return {
        "schema": SCHEMA_VERSION,
        "code": [_hash_source_code(), compute_source_code_digest(source.name)],
        "tokenizers": metadata.version("tokenizers"),
        "has_labels": has_labels,
        "data": data.model_dump(mode="json", exclude=SETTINGS_OUTSIDE_CACHE_KEY),
        "files": {name: get_file_checksum(path) for name, path in sorted(files.items())},
    }


def get_file_checksum(path: Path) -> str:
    """Return the SHA-256 of a corpus file or a file in the token cache. A large file is reread only if it changed."""
    identity = _identify_file(path)
    if identity["size"] < LARGE_FILE_BYTES:
        return compute_sha256(path)
    record_path = get_cache_folder("checksums") / f"{_hash_json(str(path.resolve()))[:24]}.json"
    with contextlib.suppress(RunFolderError, OSError):
        record = read_json_object(record_path)
        if has_valid_json_checksum(record) and record["file"] == identity:
            return str(record["sha256"])
    now, sha256 = time.time_ns(), compute_sha256(path)
    if now - identity["status_changed"] > TIMESTAMP_RESOLUTION_NANOSECONDS and _identify_file(path) == identity:
        with contextlib.suppress(OSError, DiskFullError):
            record_path.parent.mkdir(parents=True, exist_ok=True)
            write_json(record_path, {"file": identity, "sha256": sha256}, with_checksum=True)
    return sha256


def _identify_file(path: Path) -> dict[str, int]:
    """Return what changes with every write to a cached file: size, inode and timestamps.

    The timestamps include the ctime, which a program cannot set.
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
    """Return a hash of this package's code for the cache key: changed rules for rows or words change the token ids."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:24]


def _hash_json(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


# -- opening


def find_damaged_caches() -> dict[Path, str | None]:
    """Read every byte of every complete cache folder; return the error of each folder, or None if it is intact."""
    folders = sorted(path.parent for path in get_cache_folder("corpora").glob(f"*/{MANIFEST_FILE}"))
    return {folder: _find_cache_error(folder, compute_sha256) for folder in folders}


def _find_cache_error(folder: Path, hash_file: Callable[[Path], str] = get_file_checksum) -> str | None:
    """Return the reason why a cache folder is unusable, or None if it is valid."""
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
        token_ids = torch.from_numpy(memory_map_array(folder / f"split{i}.tokens", get_token_dtype(tokenizer)))
        token_counts = torch.from_numpy(np.fromfile(folder / f"split{i}.counts", np.int64))
        row_offsets = torch.from_numpy(memory_map_array(folder / f"split{i}.offsets", np.int64))
        row_documents = get_row_documents(split)
        if uses_token_stream(data, has_labels=has_labels):
            encoded[split.name] = TokenStream(split.name, token_ids, token_counts, row_offsets, row_documents)
            continue
        labels = torch.tensor(split.labels) if has_labels and split.labels is not None else None
        encoded[split.name] = TokenRows(
            split.name, token_ids, row_offsets, labels, token_counts=token_counts, row_documents=row_documents
        )
    return TokenizedCorpus(corpus, tokenizer, encoded)


def _open_corpus(folder: Path, description: Mapping[str, Any], has_labels: bool) -> Corpus:
    """Return the corpus of a cache folder, with its rows on disk.

    `description` is what `_write_corpus_texts` wrote: the names and properties of the splits, labels and origin.
    """
    splits = {}
    for i, split in enumerate(description["splits"]):
        labels_path, documents_path = folder / f"split{i}.labels", folder / f"split{i}.documents"
        splits[split["name"]] = Split(
            split["name"],
            split["role"],
            DiskTextRows(folder, f"split{i}"),
            tuple(np.fromfile(labels_path, np.int64).tolist()) if split["has_labels"] else None,
            split["separator"],
            tuple(split["documents"]),
            tuple(np.fromfile(documents_path, np.int64).tolist()) if documents_path.is_file() else (),
        )
    vocabulary = description["vocabulary"]
    vocabulary_rows = splits["train"].rows if vocabulary == "train" else DiskTextRows(folder, vocabulary)
    label_names = tuple(description["label_names"])
    return Corpus(has_labels, splits, label_names, vocabulary_rows, description["origin"], description["digest"])


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
            _clear_cache_folder(folder)
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


def _clear_cache_folder(folder: Path) -> None:
    """Remove the files of a cache folder. They are not truncated, because another process may have mapped them."""
    for path in folder.iterdir():
        if path.name != ".lock":
            path.unlink()


def _write_corpus_texts(
    folder: Path, data: DataConfig, has_labels: bool, base_folder: Path, on_progress: ProgressCallback
) -> Corpus:
    """Write the rows, labels and documents of all splits to a cache folder; return the corpus with its rows on disk.

    Files from an interrupted build are reused if their checksums match.
    """
    if (folder / TEXTS_FILE).is_file():
        description = read_json(folder / TEXTS_FILE)
        expected_checksums = description["files"].items()
        if all(
            (folder / name).is_file() and get_file_checksum(folder / name) == sha256
            for name, sha256 in expected_checksums
        ):
            return _open_corpus(folder, description, has_labels)
    _clear_cache_folder(folder)
    corpus = loading.load_corpus(
        data, has_labels=has_labels, base_folder=base_folder, rows_folder=folder, on_progress=on_progress
    )
    checksums: dict[str, str] = {}
    for i, split in enumerate(corpus.splits.values()):
        rows = split.rows if isinstance(split.rows, DiskTextRows) else write_text_rows(folder, f"split{i}", split.rows)
        checksums |= rows.checksums
        # Labels and document ids are stored as int64, one per row.
        for suffix, row_indices in (("labels", split.labels), ("documents", split.document_ids)):
            if row_indices is not None and len(row_indices):
                content = np.array(row_indices, np.int64).tobytes()
                write_bytes(folder / f"split{i}.{suffix}", content)
                checksums[f"split{i}.{suffix}"] = hashlib.sha256(content).hexdigest()
    has_vocabulary_rows = corpus.vocabulary_rows is not corpus.train.rows
    if has_vocabulary_rows:
        checksums |= write_text_rows(folder, "vocabulary", corpus.vocabulary_rows).checksums
    description = {
        "splits": [
            {
                "name": split.name,
                "role": split.role,
                "separator": split.separator,
                "has_labels": split.labels is not None,
                "documents": split.documents,
            }
            for split in corpus.splits.values()
        ],
        "label_names": list(corpus.label_names),
        "origin": corpus.origin,
        "digest": corpus.digest,
        "vocabulary": "vocabulary" if has_vocabulary_rows else "train",
        "files": checksums,
    }
    write_json(folder / TEXTS_FILE, description)
    return _open_corpus(folder, description, has_labels)


def _load_or_train_tokenizer(folder: Path, data: DataConfig, corpus: Corpus, base_folder: Path) -> CorpusTokenizer:
    """Return the cache folder's tokenizer; train and save it first if it is missing."""
    description = read_json(folder / TEXTS_FILE)
    if TOKENIZER_FILE not in description["files"]:  # `_write_corpus_texts` has verified its checksum
        train_tokenizer(data, corpus, base_folder=base_folder).save(folder)
        description["files"][TOKENIZER_FILE] = compute_sha256(folder / TOKENIZER_FILE)
        write_json(folder / TEXTS_FILE, description)
    return CorpusTokenizer.load(folder)


def _write_manifest(folder: Path, cache_key: dict[str, Any], checksums: dict[str, str]) -> None:
    """Remove intermediate files, then write the manifest that marks the folder as complete."""
    description = read_json(folder / TEXTS_FILE)
    all_checksums = {**description.pop("files"), **checksums}
    for path in folder.iterdir():
        if path.name not in (".lock", TEXTS_FILE, *all_checksums):
            path.unlink()
    manifest = {"schema": SCHEMA_VERSION, "cache_key": cache_key, "texts": description, "files": all_checksums}
    write_json(folder / MANIFEST_FILE, {**manifest, "checksum": _hash_json(manifest)}, fsync=True)
    (folder / TEXTS_FILE).unlink()


def _remove_unused_caches(corpora_folder: Path) -> None:
    """Remove what has not been used for a long time: cached corpora and checksums of files.

    Processes that have mapped a removed file keep its pages.
    """
    for path in [*corpora_folder.iterdir(), *get_cache_folder("checksums").glob("*.json")]:
        dated_path = path / MANIFEST_FILE if (path / MANIFEST_FILE).is_file() else path
        with contextlib.suppress(OSError):
            if time.time() - dated_path.stat().st_mtime > MAX_UNUSED_DAYS * 86400:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
