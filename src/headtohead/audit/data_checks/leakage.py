"""Leakage: held-out rows that occur in train, and texts with conflicting labels.

A leak does not withhold the verdict, because verdicts use unseen rows only. A row is unseen if train contains it
neither verbatim nor up to case, punctuation and whitespace.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from headtohead.audit.result import CheckResult, build_not_applicable
from headtohead.data.splits import Corpus, Split
from headtohead.errors import DataError, suggest

LABEL_CHECK_NAME = "conflicting labels"
MAX_LOOKUP_ROWS = 100_000
"""maximum number of held-out rows to look up in train; larger splits are sampled evenly"""


def compute_unseen_mask(corpus: Corpus, split_name: str) -> NDArray[np.bool_]:
    """Return for each row of the split whether it is unseen, shape (rows,)."""
    if split_name not in corpus.splits:
        hint = suggest(split_name, corpus.splits)
        suggestion = f", did you mean {hint!r}?" if hint else ""
        raise DataError(f"no split {split_name!r}{suggestion} (there are: {', '.join(corpus.splits)})")
    rows = corpus.splits[split_name].rows
    train_rows = find_normalized_rows_in_train(corpus, rows)
    return np.array([normalize_text(row) not in train_rows for row in rows], dtype=np.bool_)


def find_normalized_rows_in_train(corpus: Corpus, rows: Iterable[str]) -> set[str]:
    """Return the normalized rows that occur in train. Iterates over train, which may not fit into memory."""
    normalized_rows = {normalize_text(row) for row in rows}
    return {normalized for row in corpus.train.rows if (normalized := normalize_text(row)) in normalized_rows}


class _PunctuationRemover(dict[int, int | None]):
    """Table for str.translate that removes punctuation and whitespace, and caches each character."""

    def __missing__(self, code: int) -> int | None:
        category = unicodedata.category(chr(code))
        self[code] = None if category[0] in "PZC" or category == "Sk" else code
        return self[code]


_REMOVE_PUNCTUATION = _PunctuationRemover()


@lru_cache(maxsize=2**17)
def normalize_text(text: str) -> str:
    """Return the text without case, punctuation and whitespace; unchanged if nothing else is left."""
    return unicodedata.normalize("NFKC", text).casefold().translate(_REMOVE_PUNCTUATION) or text.strip()


def audit_train_overlap(corpus: Corpus, split: Split) -> CheckResult:
    """Count the rows of a held-out split that occur in train."""
    noun = "rows" if corpus.has_labels else "lines"
    held_out_rows = _sample_rows_evenly(split.rows)
    held_out_set, normalized_in_train, total = (
        set(held_out_rows),
        find_normalized_rows_in_train(corpus, held_out_rows),
        len(held_out_rows),
    )
    rows_in_train = {row for row in corpus.train.rows if row in held_out_set}
    num_verbatim = sum(row in rows_in_train for row in held_out_rows)
    num_seen = sum(normalize_text(row) in normalized_in_train for row in held_out_rows)
    name = f"{noun} of {split.name} in train"
    procedure = (
        f"{_format_sample_size(total, len(split.rows))} {noun} of {split.name} looked up in the {len(corpus.train.rows):,} of train: "  # noqa: E501
        "verbatim, and up to case, punctuation and whitespace"
    )
    if not num_seen:
        return CheckResult(
            name, True, procedure, f"none of {total} {noun} occurs in train", "The score is on unseen text."
        )
    overlap = num_seen / total
    observation = (
        f"{num_verbatim} of {total} {noun} of {split.name} occur verbatim in train ({num_verbatim / total:.1%}), "
        f"{num_seen - num_verbatim} more up to case, punctuation and whitespace; {total - num_seen} are unseen"
    )
    return CheckResult(
        name,
        False,
        procedure,
        observation,
        _interpret_overlap(overlap, noun),
        failure_reason=f"{noun} of {split.name} occur in train",
    )


def _sample_rows_evenly(rows: Sequence[str]) -> Sequence[str]:
    """Return all rows, or an even sample of a large split."""
    if len(rows) <= MAX_LOOKUP_ROWS:
        return rows
    return [rows[index * len(rows) // MAX_LOOKUP_ROWS] for index in range(MAX_LOOKUP_ROWS)]


def _format_sample_size(sampled: int, total: int) -> str:
    return f"{sampled:,}" if sampled == total else f"{sampled:,} of {total:,} (sampled evenly)"


def _interpret_overlap(overlap: float, noun: str) -> str:
    """Return what the fraction of held-out rows that occur in train means for scores."""
    advice = f"use the scores on unseen {noun}"
    if overlap > 0.5:
        return f"Scores on all {noun} mostly measure memorization; {advice}."
    if overlap > 0.05:
        return f"Scores on all {noun} partly measure memorization; {advice}."
    return f"Too few to change scores by much; {advice} if the result is close."


def audit_label_conflicts(corpus: Corpus) -> CheckResult:
    """Check that no text has more than one label, within a split or between train and a held-out split."""
    if not corpus.has_labels:
        return build_not_applicable(LABEL_CHECK_NAME, "a language model has no labels")
    train_labels = _collect_labels(corpus.train)
    conflicts, examples = [], []
    for split in corpus.splits.values():
        labels_by_text = train_labels if split.role == "train" else _collect_labels(split)
        ambiguous_texts = [text for text, labels in labels_by_text.items() if len(labels) > 1]
        if ambiguous_texts:
            conflicts.append(f"{_format_count(len(ambiguous_texts), 'text')} of {split.name} with more than one label")
            examples.append(_format_conflict_example(corpus, split, ambiguous_texts[0]))
        if split.role != "train":
            contradicting_texts = [
                text
                for text, labels in labels_by_text.items()
                if text in train_labels and not labels <= train_labels[text]
            ]
            if contradicting_texts:
                conflicts.append(
                    f"{_format_count(len(contradicting_texts), 'text')} of {split.name} "
                    "with a label that it does not have in train"
                )
                examples.append(_format_conflict_example(corpus, split, contradicting_texts[0]))
    procedure = "labels of texts that are equal up to case, punctuation and whitespace"
    if not conflicts:
        return CheckResult(
            LABEL_CHECK_NAME,
            True,
            procedure,
            "every text has one label",
            "No two rows require different answers to the same text.",
        )
    interpretation = "No model can classify all of these rows correctly: they limit the attainable accuracy."
    observation = f"{'; '.join(conflicts)} (for example {examples[0]})"
    return CheckResult(
        LABEL_CHECK_NAME, False, procedure, observation, interpretation, failure_reason="conflicting labels"
    )


def _collect_labels(split: Split) -> dict[str, set[int]]:
    """Return the labels of each normalized text of a split."""
    labels_by_text: dict[str, set[int]] = {}
    assert split.labels is not None, "a classifier's split has labels"
    for row, label in zip(split.rows, split.labels, strict=True):
        labels_by_text.setdefault(normalize_text(row), set()).add(label)
    return labels_by_text


def _format_conflict_example(corpus: Corpus, split: Split, normalized_text: str) -> str:
    """Return the first row with this normalized text, and its labels."""
    row = next(row for row in split.rows if normalize_text(row) == normalized_text)
    labels = set().union(
        *(_collect_labels(labelled_split).get(normalized_text, set()) for labelled_split in (corpus.train, split))
    )
    excerpt = row if len(row) <= 60 else f"{row[:57]}..."
    return f"{excerpt!r}: {', '.join(corpus.label_names[label] for label in sorted(labels))}"


def _format_count(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
