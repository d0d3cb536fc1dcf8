"""Load the corpus that an experiment names: read its source, hold out missing splits, and keep large texts on disk."""

from __future__ import annotations

from pathlib import Path

from headtohead.config.data import DataConfig
from headtohead.data.sources import files as _files  # noqa: F401  registers folder and file
from headtohead.data.sources import hub as _hub  # noqa: F401  registers hub
from headtohead.data.sources import sotu as _sotu  # noqa: F401  registers sotu
from headtohead.data.sources.registry import (
    CorpusSource,
    SourceRequest,
    check_source,
    get_source,
    resolve_source_path,
    split_source,
)
from headtohead.data.sources.streaming import build_corpus_on_disk, has_streamed_rows, load_into_memory
from headtohead.data.splits import Corpus, build_corpus, check_raw_corpus
from headtohead.errors import DataError
from headtohead.progress import ProgressCallback, ignore_progress


def load_corpus(
    data: DataConfig,
    *,
    has_labels: bool,
    base_folder: Path = Path(),
    rows_folder: Path | None = None,
    on_progress: ProgressCallback = ignore_progress,
) -> Corpus:
    """Return the corpus that `data` describes. Relative paths start at `base_folder`.

    With `rows_folder`, the rows of large plain-text files are written there instead of being held in memory.
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


def resolve_source(data: DataConfig, base_folder: Path, *, has_labels: bool) -> tuple[CorpusSource, SourceRequest]:
    """Return the source that `data.source` names and the request to read it with."""
    if issues := check_source(data.source, base_folder):
        raise DataError(str(issues[0]))
    name, argument = split_source(data.source, base_folder)
    return get_source(name), SourceRequest(argument, has_labels, data, base_folder)


__all__ = ["check_source", "load_corpus", "resolve_source", "resolve_source_path"]
