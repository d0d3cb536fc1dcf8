"""Baselines that only count: naive Bayes and other simple classifiers, and the labels of lines of a corpus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headtohead.audit.data_checks.leakage import compute_unseen_mask
from headtohead.audit.data_checks.overlap import normalize_text
from headtohead.data.batches import TokenRows
from headtohead.data.splits import Corpus

MAX_COUNT_TABLE_SIZE = 2**27
"""naive Bayes is skipped if its table (classes, words) has more entries, to limit memory"""


def score_simple_classifiers(
    corpus: Corpus, encoded_splits: dict[str, Any], vocab_size: int
) -> dict[str, dict[str, float]]:
    """Return the accuracy of two simple classifiers on all rows and on the unseen rows of each held-out split: looking
    up the text in train (the most common class if it does not occur there), and naive Bayes."""
    scores: dict[str, dict[str, float]] = {}
    train = encoded_splits["train"]
    assert isinstance(train, TokenRows) and train.labels is not None and corpus.train.labels is not None
    longest = int(train.lengths.max())
    fits_memory = len(corpus.label_names) * max(vocab_size, longest) <= MAX_COUNT_TABLE_SIZE
    bayes = _NaiveBayes(train, len(corpus.label_names), vocab_size) if fits_memory else None
    table = {normalize_text(row): label for row, label in zip(corpus.train.rows, corpus.train.labels, strict=True)}
    most_common = Counter(corpus.train.labels).most_common(1)[0][0]
    for split in corpus.get_test_splits():
        assert split.labels is not None
        labels, is_unseen = np.array(split.labels), compute_unseen_mask(corpus, split.name)
        predictions = {
            "looked up in train": np.array([table.get(normalize_text(row), most_common) for row in split.rows]),
            **({"naive Bayes": bayes.predict(encoded_splits[split.name])} if bayes else {}),
        }
        for name, predicted in predictions.items():
            is_correct = predicted == labels
            row = scores.setdefault(name, {})
            row[split.name] = float(is_correct.mean())
            if 0 < is_unseen.sum() < len(is_unseen):
                row[f"{split.name}, unseen rows"] = float(is_correct[is_unseen].mean())
    return scores


class _NaiveBayes:
    """Multinomial naive Bayes over tokens (Maron 1961), with smoothing chosen by leave-one-out accuracy on train."""

    SMOOTHING_CANDIDATES = (1.0, 0.5, 0.2, 0.1)

    def __init__(self, rows: TokenRows, num_classes: int, vocab_size: int) -> None:
        assert rows.labels is not None
        self.counts = np.zeros((num_classes, vocab_size))
        self.labels = rows.labels.numpy()
        np.add.at(self.counts, (np.repeat(self.labels, rows.lengths.numpy()), rows.tokens.numpy()), 1)
        self.class_totals = self.counts.sum(1)
        self.log_prior = np.log(np.bincount(self.labels, minlength=num_classes) / len(self.labels))
        self.smoothing = max(
            self.SMOOTHING_CANDIDATES, key=lambda smoothing: self._compute_leave_one_out_accuracy(rows, smoothing)
        )

    def _compute_leave_one_out_accuracy(self, rows: TokenRows, smoothing: float) -> float:
        """Return the training accuracy when each row is removed from the counts before it is predicted."""
        num_correct = 0
        for tokens, label in zip(_iterate_row_tokens(rows), self.labels, strict=True):
            remaining_counts, remaining_totals = self.counts[:, tokens], self.class_totals.copy()
            _, inverse, counts = np.unique(tokens, return_inverse=True, return_counts=True)
            remaining_counts[label] -= counts[inverse]
            remaining_totals[label] -= len(tokens)
            num_correct += int(
                self._compute_log_scores(remaining_counts, remaining_totals, smoothing).argmax() == label
            )
        return num_correct / len(self.labels)

    def _compute_log_scores(
        self, token_counts: NDArray[np.float64], class_totals: NDArray[np.float64], smoothing: float
    ) -> NDArray[np.float64]:
        """Return the log score of each class for a row, from the counts (classes, tokens) of its tokens."""
        denominator = class_totals + smoothing * self.counts.shape[1]
        scores: NDArray[np.float64] = self.log_prior + np.log((token_counts + smoothing) / denominator[:, None]).sum(1)
        return scores

    def predict(self, rows: TokenRows) -> NDArray[np.int64]:
        """Return the predicted class of each row, shape (rows,)."""
        scores = [
            self._compute_log_scores(self.counts[:, tokens], self.class_totals, self.smoothing)
            for tokens in _iterate_row_tokens(rows)
        ]
        predicted: NDArray[np.int64] = np.stack(scores).argmax(1)
        return predicted


def _iterate_row_tokens(rows: TokenRows) -> Iterator[NDArray[np.int64]]:
    """Yield the token ids of each row."""
    tokens = rows.tokens.numpy()
    for start, end in zip(rows.offsets[:-1].tolist(), rows.offsets[1:].tolist(), strict=True):
        yield tokens[start:end]


def count_lines_by_label(corpus: Corpus, labelled_corpus: Corpus) -> dict[str, dict[str, int]]:
    """Return {split: {label: number of lines}} for a corpus without labels.

    Labels are looked up in the train split of `labelled_corpus`, which comes from the same source.
    """
    assert labelled_corpus.train.labels is not None
    label_of = dict(zip(map(normalize_text, labelled_corpus.train.rows), labelled_corpus.train.labels, strict=True))
    return {
        name: _count_rows_by_label(split.rows, label_of, labelled_corpus.label_names)
        for name, split in corpus.splits.items()
    }


def _count_rows_by_label(rows: Sequence[str], label_of: dict[str, int], label_names: Sequence[str]) -> dict[str, int]:
    """Return the number of rows with each label; rows without a known label count as "not traced"."""
    counts = Counter(label_of.get(normalize_text(row)) for row in rows)
    return {**{name: counts[index] for index, name in enumerate(label_names)}, "not traced": counts[None]}
