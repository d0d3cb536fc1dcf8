"""A conformance suite that checks custom corpus sources in the user's tests.

class TestPoems(SourceConformanceSuite):
    source = "poems:tests/poems.json"
    plugin = "poems.py"
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from headtohead.config.tables.data import DataConfig
from headtohead.data.raw_corpus import RawCorpus, check_raw_corpus
from headtohead.data.sources.file_formats import has_lone_surrogate
from headtohead.data.sources.loading import load_corpus
from headtohead.data.sources.registry import resolve_source
from headtohead.errors import HeadToHeadError
from headtohead.nn.parts.registry import load_plugin


def find_source_violations(
    source: str, *, has_labels: bool = False, plugin: str | Path | None = None, data: DataConfig | None = None
) -> list[str]:
    """Check that a corpus source conforms: read it and return what is wrong with it, one sentence each.

    Args:
        source: The source, written as in `data.source`.
        has_labels: Whether to read the source for classification.
        plugin: The file that defines the source.
        data: Further `[data]` settings that the source needs.
    """
    if plugin is not None:
        load_plugin(plugin)
    settings = (data or DataConfig()).model_copy(update={"source": source})
    try:
        reader, request = resolve_source(settings, Path(), has_labels=has_labels)
        raw_corpus = reader.read(request)
        check_raw_corpus(raw_corpus, reader.name, has_labels=has_labels)
        violations = _find_row_violations(raw_corpus)
        violations += _find_label_violations(raw_corpus) if has_labels else []
        if not raw_corpus.origin.strip():
            violations.append("origin is empty; it should say where the text comes from")
        paths = reader.list_files(request).values()
        violations += [f"list_files names {path}, which is not a file" for path in paths if not path.is_file()]
        if not violations and _collect_rows(reader.read(request)) != _collect_rows(raw_corpus):
            violations.append("reading it twice returns different rows; a corpus must not depend on chance or time")
        if not violations:
            load_corpus(settings, has_labels=has_labels)
    except HeadToHeadError as error:
        return [str(error)]
    return violations


def _collect_rows(raw_corpus: RawCorpus) -> dict[str, tuple[tuple[str, ...], tuple[str, ...] | None]]:
    """Return the rows and labels of each split, to compare two reads of a source."""
    return {name: (tuple(split.rows), split.labels) for name, split in raw_corpus.list_splits().items()}


def _find_row_violations(raw_corpus: RawCorpus) -> list[str]:
    """Check conformance of rows: return a message for each that is not a non-empty string of valid Unicode."""
    violations = []
    for name, split in raw_corpus.list_splits().items():
        rows: Sequence[object] = split.rows
        for number, row in enumerate(rows, start=1):
            if not isinstance(row, str):
                violations.append(f"{name}: row {number} is a {type(row).__name__}, not a string")
            elif not row.strip():
                violations.append(f"{name}: row {number} is empty")
            elif has_lone_surrogate(row):
                violations.append(f"{name}: row {number} contains a lone surrogate")
        if split.lines and len(split.lines) != len(split.rows):
            violations.append(f"{name}: {len(split.rows)} rows and {len(split.lines)} line numbers")
    return violations


def _find_label_violations(raw_corpus: RawCorpus) -> list[str]:
    """Check conformance of labels: return a message for each label of a held-out split that train does not have."""
    labels_by_split = {name: set(split.labels or ()) for name, split in raw_corpus.list_splits().items()}
    return [
        f"{name}: label {label!r} does not occur in train"
        for name, labels in labels_by_split.items()
        for label in sorted(labels - labels_by_split["train"])
    ]


class SourceConformanceSuite:
    """Base class of a test of a corpus source: subclass it in a test file and name the source; pytest checks it."""

    source: ClassVar[str]
    """the source, written as in `data.source`"""
    has_labels: ClassVar[bool] = False
    """whether the source is read for classification"""
    plugin: ClassVar[str | Path | None] = None
    """the file that defines the source, unless the test file does"""
    data: ClassVar[DataConfig | None] = None
    """further `[data]` settings that the source needs"""

    def test_source_conforms(self) -> None:
        violations = find_source_violations(self.source, has_labels=self.has_labels, plugin=self.plugin, data=self.data)
        if violations:
            raise AssertionError("\n".join(violations))


__all__ = ["SourceConformanceSuite", "find_source_violations"]
