"""Leaks in the data: rows that are held out and stand in train all the same, and texts whose labels contradict.

A leak takes no verdict away by itself: verdicts use the rows that are unseen. A row is unseen if it stands in train
neither word for word nor nearly, that is but for case, punctuation and spaces.
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
"""rows of a held-out text that are looked up in train; of more, so many spread evenly"""


def compute_unseen_mask(corpus: Corpus, split_name: str) -> NDArray[np.bool_]:
    """For each row of the split: does it stand in train neither word for word nor nearly?"""
    if split_name not in corpus.splits:
        hint = suggest(split_name, corpus.splits)
        said = f", did you mean {hint!r}?" if hint else ""
        raise DataError(f"no split {split_name!r}{said} (there are: {', '.join(corpus.splits)})")
    rows = corpus.splits[split_name].rows
    seen = find_normalized_rows_in_train(corpus, rows)
    return np.array([normalize_text(row) not in seen for row in rows], dtype=np.bool_)


def find_normalized_rows_in_train(corpus: Corpus, rows: Iterable[str]) -> set[str]:
    """Those of the rows, folded, that stand in train. Train is gone through and not held: it may be larger than memory,
    what is held out is not."""
    wanted = {normalize_text(row) for row in rows}
    return {folded for row in corpus.train.rows if (folded := normalize_text(row)) in wanted}


class _PunctuationRemover(dict[int, int | None]):
    """For str.translate: punctuation and spaces fall away. Asked once for each character."""

    def __missing__(self, code: int) -> int | None:
        kind = unicodedata.category(chr(code))
        self[code] = None if kind[0] in "PZC" or kind == "Sk" else code
        return self[code]


_REMOVE_PUNCTUATION = _PunctuationRemover()


@lru_cache(maxsize=2**17)
def normalize_text(text: str) -> str:
    """What is left of a text when case, punctuation and spaces are not looked at; a text of nothing else stays."""
    return unicodedata.normalize("NFKC", text).casefold().translate(_REMOVE_PUNCTUATION) or text.strip()


def audit_train_overlap(corpus: Corpus, split: Split) -> CheckResult:
    """How many rows of a held-out split stand in train."""
    noun = "rows" if corpus.has_labels else "lines"
    held = _sample_rows_evenly(split.rows)
    wanted, near, total = set(held), find_normalized_rows_in_train(corpus, held), len(held)
    exact = {row for row in corpus.train.rows if row in wanted}
    same = sum(row in exact for row in held)
    seen = sum(normalize_text(row) in near for row in held)
    name = f"{noun} of {split.name} in train"
    tried = (
        f"{_format_sample_size(total, len(split.rows))} {noun} of {split.name} looked up in the {len(corpus.train.rows):,} of train: "  # noqa: E501
        "word for word, and but for case, punctuation and spaces"
    )
    if not seen:
        return CheckResult(name, True, tried, f"none of {total} {noun} stands in train", "The score is on unseen text.")
    share = seen / total
    found = (
        f"{same} of {total} {noun} of {split.name} stand word for word in train ({same / total:.1%}), {seen - same} "
        f"more nearly; {total - seen} are unseen"
    )
    return CheckResult(
        name,
        False,
        tried,
        found,
        _interpret_overlap(share, noun),
        failure_reason=f"{noun} of {split.name} stand in train",
    )


def _sample_rows_evenly(rows: Sequence[str]) -> Sequence[str]:
    """All of them; of very many, an even sample."""
    if len(rows) <= MAX_LOOKUP_ROWS:
        return rows
    return [rows[at * len(rows) // MAX_LOOKUP_ROWS] for at in range(MAX_LOOKUP_ROWS)]


def _format_sample_size(sampled: int, total: int) -> str:
    return f"{sampled:,}" if sampled == total else f"{sampled:,} of {total:,}, an even sample,"


def _interpret_overlap(overlap_share: float, noun: str) -> str:
    unseen = f"read those on the unseen {noun}"
    if overlap_share > 0.5:
        return f"Scores on all {noun} mostly measure memory; {unseen}."
    if overlap_share > 0.05:
        return f"Scores on all {noun} are memory in part; {unseen}."
    return f"Too few to move a score by much; {unseen} where it is close."


def audit_label_conflicts(corpus: Corpus) -> CheckResult:
    """Texts that carry more than one label: within a split, and between train and what is held out."""
    if not corpus.has_labels:
        return build_not_applicable(LABEL_CHECK_NAME, "a language model has no labels")
    train = _collect_labels(corpus.train)
    said, examples = [], []
    for split in corpus.splits.values():
        own = train if split.role == "train" else _collect_labels(split)
        inside = [text for text, labels in own.items() if len(labels) > 1]
        if inside:
            said.append(f"{_format_count(len(inside), 'text')} of {split.name} with more than one label")
            examples.append(_format_conflict_example(corpus, split, inside[0]))
        if split.role != "train":
            against = [text for text, labels in own.items() if text in train and not labels <= train[text]]
            if against:
                said.append(
                    f"{_format_count(len(against), 'text')} of {split.name} with a label that train does not give it"
                )
                examples.append(_format_conflict_example(corpus, split, against[0]))
    tried = "texts that are equal but for case, punctuation and spaces: whether they carry one label"
    if not said:
        return CheckResult(LABEL_CHECK_NAME, True, tried, "every text has one label", "No row asks for two answers.")
    meaning = "No model can be right about all of these rows: they cap the accuracy that can be reached."
    found = f"{'; '.join(said)} (such as {examples[0]})"
    return CheckResult(LABEL_CHECK_NAME, False, tried, found, meaning, failure_reason="conflicting labels")


def _collect_labels(split: Split) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    assert split.labels is not None, "a classifier's split has labels"
    for row, label in zip(split.rows, split.labels, strict=True):
        found.setdefault(normalize_text(row), set()).add(label)
    return found


def _format_conflict_example(corpus: Corpus, split: Split, normalized_text: str) -> str:
    row = next(row for row in split.rows if normalize_text(row) == normalized_text)
    both = set().union(*(_collect_labels(one).get(normalized_text, set()) for one in (corpus.train, split)))
    shown = row if len(row) <= 60 else f"{row[:57]}..."
    return f"{shown!r}: {', '.join(corpus.label_names[i] for i in sorted(both))}"


def _format_count(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
