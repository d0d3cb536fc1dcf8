"""The splits that a corpus source returns, before missing splits are held out and labels become indices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from headtohead.errors import DataError


@dataclass(frozen=True)
class RawSplit:
    """The rows of one split as returned by a source, with labels and document names as text."""

    rows: Sequence[str]
    labels: tuple[str, ...] | None = None
    """one per row, for classification"""
    lines: tuple[int, ...] = ()
    """the line number of each row, for error messages"""
    path: str = ""
    """file or folder that the rows come from, for error messages"""
    separator: str = "\n"
    """text between two rows when the split is read as one stream"""
    documents: Sequence[str] = ()
    """the name of each row's document, or one name for all rows; empty if each row is its own document"""

    @property
    def has_named_rows(self) -> bool:
        """Whether each row has a document name."""
        return len(self.documents) > 1

    def pick_rows(self, row_mask: Iterable[bool]) -> RawSplit:
        """Return a split of the rows for which the mask is True."""
        indices = [i for i, is_selected in enumerate(row_mask) if is_selected]
        return RawSplit(
            tuple(self.rows[i] for i in indices),
            tuple(self.labels[i] for i in indices) if self.labels is not None else None,
            tuple(self.lines[i] for i in indices) if self.lines else (),
            self.path,
            self.separator,
            tuple(self.documents[i] for i in indices) if self.has_named_rows else self.documents,
        )


@dataclass(frozen=True)
class RawCorpus:
    """The splits provided by a source. Missing splits are held out from train."""

    train: RawSplit
    origin: str
    """where the text comes from and, if known, its license"""
    validation: RawSplit | None = None
    tests: Mapping[str, RawSplit] = field(default_factory=dict)
    """test splits by name"""
    course_rows: tuple[str, ...] = ()
    """rows of all training files, those for other tasks included, for `vocabulary = "folder"`"""

    def list_splits(self) -> dict[str, RawSplit]:
        """Return all splits by name."""
        validation = {} if self.validation is None else {"validation": self.validation}
        return {"train": self.train, **validation, **self.tests}


def check_raw_corpus(raw_corpus: object, source: str, *, has_labels: bool) -> None:
    """Raise `DataError` if a source did not return a `RawCorpus`, or if its labels or documents are incomplete."""
    if not isinstance(raw_corpus, RawCorpus):
        raise DataError(f"source {source!r} must return a RawCorpus, got {type(raw_corpus).__name__}")
    for name in ("train", "validation"):
        if name in raw_corpus.tests:
            raise DataError(f"a test split cannot be named {name!r}: the name is reserved")
    for name, split in raw_corpus.list_splits().items():
        if not isinstance(split, RawSplit):
            raise DataError(f"source {source!r}: split {name!r} must be a RawSplit, got {type(split).__name__}")
        if has_labels and (split.labels is None or len(split.labels) != len(split.rows)):
            label_count = "no labels" if split.labels is None else f"{len(split.labels)} labels"
            raise DataError(f"source {source!r}: split {name!r} has {len(split.rows)} rows and {label_count}")
        if split.has_named_rows and len(split.documents) != len(split.rows):
            raise DataError(
                f"source {source!r}: split {name!r} has {len(split.rows)} rows and {len(split.documents)} documents; "
                "name the document of each row, one document for all rows, or none"
            )
    if not any(True for _ in raw_corpus.train.rows):
        raise DataError(f"source {source!r}: train has no rows")
