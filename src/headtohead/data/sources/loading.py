"""Load the corpus of an experiment: read its source, hold out missing splits, and keep large texts on disk."""

from __future__ import annotations

from pathlib import Path

from headtohead.config.tables.data import DataConfig
from headtohead.data.raw_corpus import check_raw_corpus
from headtohead.data.sources import folders_and_files as _files  # noqa: F401  registers folder and file
from headtohead.data.sources import hub as _hub  # noqa: F401  registers hub
from headtohead.data.sources import sotu as _sotu  # noqa: F401  registers sotu
from headtohead.data.sources.registry import (
    check_source,
    resolve_source,
    resolve_source_path,
)
from headtohead.data.sources.streaming import build_corpus_on_disk, has_streamed_rows, load_into_memory
from headtohead.data.splits import Corpus, build_corpus
from headtohead.progress import ProgressCallback, ignore_progress


def load_corpus(
    data: DataConfig,
    *,
    has_labels: bool,
    base_folder: Path = Path(),
    rows_folder: Path | None = None,
    on_progress: ProgressCallback = ignore_progress,
) -> Corpus:
    """Read the corpus that `data` describes and return its splits.

    Args:
        data: Settings of the corpus.
        has_labels: Whether the task requires labels.
        base_folder: Folder that relative paths start from.
        rows_folder: If given, rows of large plain-text files are written here instead of being kept in memory.
        on_progress: Called with progress updates.
    """
    source, request = resolve_source(data, base_folder, has_labels=has_labels)
    raw_corpus = source.read(request)
    check_raw_corpus(raw_corpus, source.name, has_labels=has_labels)
    if has_streamed_rows(raw_corpus):
        if rows_folder is not None and data.vocabulary == "train":
            corpus = build_corpus_on_disk(
                raw_corpus,
                validation_fraction=data.validation_fraction,
                row_limits=data.row_limits,
                folder=rows_folder,
                on_progress=on_progress,
            )
            if corpus is not None:
                return corpus
        raw_corpus = load_into_memory(raw_corpus)
    return build_corpus(
        raw_corpus,
        has_labels=has_labels,
        validation_fraction=data.validation_fraction,
        vocabulary_source=data.vocabulary,
        row_limits=data.row_limits,
    )


__all__ = ["check_source", "load_corpus", "resolve_source", "resolve_source_path"]
