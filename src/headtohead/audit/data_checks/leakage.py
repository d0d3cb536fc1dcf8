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

from headtohead.audit.result import Finding, does_not_apply
from headtohead.data.splits import Corpus, Split
from headtohead.errors import CorpusError, nearest

CONFLICTS = "conflicting labels"
LOOKED_UP = 100_000
"""rows of a held-out text that are looked up in train; of more, so many spread evenly"""


def unseen_rows(corpus: Corpus, split_name: str) -> NDArray[np.bool_]:
    """For each row of the split: does it stand in train neither word for word nor nearly?"""
    if split_name not in corpus.splits:
        hint = nearest(split_name, corpus.splits)
        said = f", did you mean {hint!r}?" if hint else ""
        raise CorpusError(f"no split {split_name!r}{said} (there are: {', '.join(corpus.splits)})")
    rows = corpus.splits[split_name].rows
    seen = folds_in_train(corpus, rows)
    return np.array([fold(row) not in seen for row in rows], dtype=np.bool_)


def folds_in_train(corpus: Corpus, rows: Iterable[str]) -> set[str]:
    """Those of the rows, folded, that stand in train. Train is gone through and not held: it may be larger than memory,
    what is held out is not."""
    wanted = {fold(row) for row in rows}
    return {folded for row in corpus.train.rows if (folded := fold(row)) in wanted}


class _Letters(dict[int, int | None]):
    """For str.translate: punctuation and spaces fall away. Asked once for each character."""

    def __missing__(self, code: int) -> int | None:
        kind = unicodedata.category(chr(code))
        self[code] = None if kind[0] in "PZC" or kind == "Sk" else code
        return self[code]


_LETTERS = _Letters()


@lru_cache(maxsize=2**17)
def fold(text: str) -> str:
    """What is left of a text when case, punctuation and spaces are not looked at; a text of nothing else stays."""
    return unicodedata.normalize("NFKC", text).casefold().translate(_LETTERS) or text.strip()


def audit_rows(corpus: Corpus, split: Split) -> Finding:
    """How many rows of a held-out split stand in train."""
    noun = "rows" if corpus.task == "classify" else "lines"
    held = _some(split.rows)
    wanted, near, total = set(held), folds_in_train(corpus, held), len(held)
    exact = {row for row in corpus.train.rows if row in wanted}
    same = sum(row in exact for row in held)
    seen = sum(fold(row) in near for row in held)
    name = f"{noun} of {split.name} in train"
    tried = (
        f"{_of(total, len(split.rows))} {noun} of {split.name} looked up in the {len(corpus.train.rows):,} of train: "
        "word for word, and but for case, punctuation and spaces"
    )
    if not seen:
        return Finding(name, True, tried, f"none of {total} {noun} stands in train", "The score is on unseen text.")
    share = seen / total
    found = (
        f"{same} of {total} {noun} of {split.name} stand word for word in train ({same / total:.1%}), {seen - same} "
        f"more nearly; {total - seen} are unseen"
    )
    return Finding(name, False, tried, found, _memory(share, noun), reason=f"{noun} of {split.name} stand in train")


def _some(rows: Sequence[str]) -> Sequence[str]:
    """All of them; of very many, an even sample."""
    if len(rows) <= LOOKED_UP:
        return rows
    return [rows[at * len(rows) // LOOKED_UP] for at in range(LOOKED_UP)]


def _of(some: int, every: int) -> str:
    return f"{some:,}" if some == every else f"{some:,} of {every:,}, an even sample,"


def _memory(share: float, noun: str) -> str:
    unseen = f"read those on the unseen {noun}"
    if share > 0.5:
        return f"Scores on all {noun} mostly measure memory; {unseen}."
    if share > 0.05:
        return f"Scores on all {noun} are memory in part; {unseen}."
    return f"Too few to move a score by much; {unseen} where it is close."


def audit_labels(corpus: Corpus) -> Finding:
    """Texts that carry more than one label: within a split, and between train and what is held out."""
    if corpus.task != "classify":
        return does_not_apply(CONFLICTS, "a language model has no labels")
    train = _labels(corpus.train)
    said, examples = [], []
    for split in corpus.splits.values():
        own = train if split.role == "train" else _labels(split)
        inside = [text for text, labels in own.items() if len(labels) > 1]
        if inside:
            said.append(f"{_count(len(inside), 'text')} of {split.name} with more than one label")
            examples.append(_example(corpus, split, inside[0]))
        if split.role != "train":
            against = [text for text, labels in own.items() if text in train and not labels <= train[text]]
            if against:
                said.append(f"{_count(len(against), 'text')} of {split.name} with a label that train does not give it")
                examples.append(_example(corpus, split, against[0]))
    tried = "texts that are equal but for case, punctuation and spaces: whether they carry one label"
    if not said:
        return Finding(CONFLICTS, True, tried, "every text has one label", "No row asks for two answers.")
    meaning = "No model can be right about all of these rows: they cap the accuracy that can be reached."
    found = f"{'; '.join(said)} (such as {examples[0]})"
    return Finding(CONFLICTS, False, tried, found, meaning, reason="conflicting labels")


def _labels(split: Split) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    assert split.labels is not None, "a classifier's split has labels"
    for row, label in zip(split.rows, split.labels, strict=True):
        found.setdefault(fold(row), set()).add(label)
    return found


def _example(corpus: Corpus, split: Split, folded: str) -> str:
    row = next(row for row in split.rows if fold(row) == folded)
    both = set().union(*(_labels(one).get(folded, set()) for one in (corpus.train, split)))
    shown = row if len(row) <= 60 else f"{row[:57]}..."
    return f"{shown!r}: {', '.join(corpus.label_names[i] for i in sorted(both))}"


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
