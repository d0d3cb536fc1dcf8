"""What a count can do: the figures that a trained classifier has to beat, and whose words a text is made of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headtohead.audit.data_checks.leakage import fold, unseen_rows
from headtohead.data.batches import Rows
from headtohead.data.splits import Corpus

MOST_COUNTS = 2**27
"""a table of classes by words with more entries than this would fill the memory: there is no naive Bayes then"""


def simple_answers(corpus: Corpus, encoded: dict[str, Any], vocab: int) -> dict[str, dict[str, float]]:
    """The accuracy of two classifiers without any weights, on all rows of each held-out text and on the unseen ones:
    looking the text up in train (the commonest class where it is not there), and naive Bayes."""
    found: dict[str, dict[str, float]] = {}
    train = encoded["train"]
    assert isinstance(train, Rows) and train.labels is not None and corpus.train.labels is not None
    longest = int(train.lengths.max())
    small = len(corpus.label_names) * max(vocab, longest) <= MOST_COUNTS
    bayes = _Bayes(train, len(corpus.label_names), vocab) if small else None
    table = {fold(row): label for row, label in zip(corpus.train.rows, corpus.train.labels, strict=True)}
    commonest = Counter(corpus.train.labels).most_common(1)[0][0]
    for split in corpus.held_out():
        assert split.labels is not None
        true, unseen = np.array(split.labels), unseen_rows(corpus, split.name)
        guesses = {
            "looked up in train": np.array([table.get(fold(row), commonest) for row in split.rows]),
            **({"naive Bayes": bayes.guess(encoded[split.name])} if bayes else {}),
        }
        for name, guessed in guesses.items():
            right = guessed == true
            row = found.setdefault(name, {})
            row[split.name] = float(right.mean())
            if 0 < unseen.sum() < len(unseen):
                row[f"{split.name}, unseen rows"] = float(right[unseen].mean())
    return found


class _Bayes:
    """Multinomial naive Bayes over tokens (Maron 1961). How much is added to every count is chosen by leaving out one
    training row at a time: held-out rows are not asked."""

    ADDED = (1.0, 0.5, 0.2, 0.1)

    def __init__(self, rows: Rows, classes: int, vocab: int) -> None:
        assert rows.labels is not None
        self.counts = np.zeros((classes, vocab))
        self.labels = rows.labels.numpy()
        np.add.at(self.counts, (np.repeat(self.labels, rows.lengths.numpy()), rows.tokens.numpy()), 1)
        self.totals = self.counts.sum(1)
        self.prior = np.log(np.bincount(self.labels, minlength=classes) / len(self.labels))
        self.added = max(self.ADDED, key=lambda added: self._left_out(rows, added))

    def _left_out(self, rows: Rows, added: float) -> float:
        right = 0
        for tokens, label in zip(_each(rows), self.labels, strict=True):
            others, totals = self.counts[:, tokens], self.totals.copy()
            _, place, often = np.unique(tokens, return_inverse=True, return_counts=True)
            others[label] -= often[place]
            totals[label] -= len(tokens)
            right += int(self._scores(others, totals, added).argmax() == label)
        return right / len(self.labels)

    def _scores(self, counts: NDArray[np.float64], totals: NDArray[np.float64], added: float) -> NDArray[np.float64]:
        whole = totals + added * self.counts.shape[1]
        scores: NDArray[np.float64] = self.prior + np.log((counts + added) / whole[:, None]).sum(1)
        return scores

    def guess(self, rows: Rows) -> NDArray[np.int64]:
        scores = [self._scores(self.counts[:, tokens], self.totals, self.added) for tokens in _each(rows)]
        best: NDArray[np.int64] = np.stack(scores).argmax(1)
        return best


def _each(rows: Rows) -> Iterator[NDArray[np.int64]]:
    """The tokens of one row after another."""
    tokens = rows.tokens.numpy()
    for start, end in zip(rows.offsets[:-1].tolist(), rows.offsets[1:].tolist(), strict=True):
        yield tokens[start:end]


def whose_words(corpus: Corpus, labelled: Corpus) -> dict[str, dict[str, int]]:
    """For each text of a language model: how many of its lines stand under which label in a labelled training text of
    the same source. It tells what share of the training text is whose."""
    assert labelled.train.labels is not None
    label_of = dict(zip(map(fold, labelled.train.rows), labelled.train.labels, strict=True))
    return {name: _count(split.rows, label_of, labelled.label_names) for name, split in corpus.splits.items()}


def _count(rows: Sequence[str], label_of: dict[str, int], names: Sequence[str]) -> dict[str, int]:
    counts = Counter(label_of.get(fold(row)) for row in rows)
    return {**{name: counts[i] for i, name in enumerate(names)}, "not traced": counts[None]}
