"""Count-based baselines: simple classifiers and language models, and label counts for a corpus's lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headtohead.audit.data_checks.leakage import compute_unseen_mask
from headtohead.audit.data_checks.overlap import normalize_text
from headtohead.data.encoding import EncodedSplit, TokenRows
from headtohead.data.splits import Corpus

MAX_COUNT_TABLE_SIZE = 2**27
"""naive Bayes is skipped if its table (classes, words) has more entries, to limit memory"""
MAX_COUNTED_TOKENS, NUM_CHUNKS = 2**22, 64
"""in longer splits, language models count this many tokens, in evenly spaced chunks"""
BIGRAM_PRIOR = 5.0
"""weight of the unigram distribution in observations, after MacKay and Peto 1995"""


def score_simple_classifiers(
    corpus: Corpus, encoded_splits: dict[str, Any], vocab_size: int
) -> dict[str, dict[str, float]]:
    """Return the accuracy of simple classifiers on all rows and on the unseen rows of each held-out split.

    There are three: always predict the most common class; look up the text in train, falling back to the most common
    class; and naive Bayes over token counts.
    """
    scores: dict[str, dict[str, float]] = {}
    train = encoded_splits["train"]
    assert isinstance(train, TokenRows) and train.labels is not None and corpus.train.labels is not None
    fits_memory = len(corpus.label_names) * vocab_size <= MAX_COUNT_TABLE_SIZE
    bayes = NaiveBayes(train, len(corpus.label_names), vocab_size) if fits_memory else None
    table = {normalize_text(row): label for row, label in zip(corpus.train.rows, corpus.train.labels, strict=True)}
    most_common = Counter(corpus.train.labels).most_common(1)[0][0]
    for split in corpus.get_test_splits():
        assert split.labels is not None
        labels, is_unseen = np.array(split.labels), compute_unseen_mask(corpus, split.name)
        predictions = {
            "most common class": np.full(len(labels), most_common),
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


def score_count_models(encoded_splits: Mapping[str, EncodedSplit], vocab_size: int) -> dict[str, dict[str, float]]:
    """Return the mean loss of count-based language models on each split but train, in nats per token.

    The models are a uniform guess and smoothed unigram and bigram counts from train.
    """
    contexts, tokens = _sample_token_pairs(encoded_splits["train"])
    unigram = (np.bincount(tokens, minlength=vocab_size) + 1.0) / (len(tokens) + vocab_size)
    context_counts = np.bincount(contexts, minlength=vocab_size)
    pairs, pair_counts = np.unique(contexts * vocab_size + tokens, return_counts=True)
    losses: dict[str, dict[str, float]] = {"uniform": {}, "unigram": {}, "bigram": {}}
    for name, encoded in encoded_splits.items():
        if name == "train":
            continue
        contexts, tokens = _sample_token_pairs(encoded)
        if not len(tokens):
            continue
        keys = contexts * vocab_size + tokens
        index = np.minimum(np.searchsorted(pairs, keys), len(pairs) - 1)
        counts = np.where(pairs[index] == keys, pair_counts[index], 0)
        bigram = (counts + BIGRAM_PRIOR * unigram[tokens]) / (context_counts[contexts] + BIGRAM_PRIOR)
        losses["uniform"][name] = float(np.log(vocab_size))
        losses["unigram"][name] = float(-np.log(unigram[tokens]).mean())
        losses["bigram"][name] = float(-np.log(bigram).mean())
    return losses


def _sample_token_pairs(encoded: EncodedSplit) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return tokens and their successors in the same row, to count bigrams, from all or evenly spaced chunks."""
    num_tokens = encoded.tokens.numel()
    is_long = num_tokens > MAX_COUNTED_TOKENS
    length = MAX_COUNTED_TOKENS // NUM_CHUNKS if is_long else num_tokens
    starts = np.linspace(0, num_tokens - length, NUM_CHUNKS if is_long else 1).astype(np.int64)
    chunks = [encoded.tokens[start : start + length].long().numpy() for start in starts.tolist()]
    pairs = [(chunk[:-1], chunk[1:]) for chunk in chunks]
    if isinstance(encoded, TokenRows):
        row_starts = encoded.offsets.numpy()
        ends = [row_starts[(row_starts > start) & (row_starts < start + length)] - start - 1 for start in starts]
        pairs = [(np.delete(a, end), np.delete(b, end)) for (a, b), end in zip(pairs, ends, strict=True)]
    contexts, tokens = (np.concatenate(side) for side in zip(*pairs, strict=True))
    return contexts, tokens


class NaiveBayes:
    """Multinomial naive Bayes over tokens (Maron 1961).

    Unless the smoothing strength is given, it is chosen by leave-one-out accuracy on train.
    """

    SMOOTHING_CANDIDATES = (1.0, 0.5, 0.2, 0.1)

    def __init__(self, rows: TokenRows, num_classes: int, vocab_size: int, *, smoothing: float | None = None) -> None:
        assert rows.labels is not None
        self.counts = np.zeros((num_classes, vocab_size))
        self.labels = rows.labels.numpy()
        np.add.at(self.counts, (np.repeat(self.labels, rows.lengths.numpy()), rows.tokens.numpy()), 1)
        self.class_totals = self.counts.sum(1)
        self.log_prior = np.log(np.bincount(self.labels, minlength=num_classes) / len(self.labels))
        self.smoothing = smoothing or max(
            self.SMOOTHING_CANDIDATES, key=lambda smoothing: self._compute_leave_one_out_accuracy(rows, smoothing)
        )

    def _compute_leave_one_out_accuracy(self, rows: TokenRows, smoothing: float) -> float:
        """Return the training accuracy when each row is excluded from the counts before it is predicted."""
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
        """Return each class's log score for a row, given the class counts of its tokens, shape (classes, tokens)."""
        denominator = class_totals + smoothing * self.counts.shape[1]
        scores: NDArray[np.float64] = self.log_prior + np.log((token_counts + smoothing) / denominator[:, None]).sum(1)
        return scores

    def predict(self, rows: TokenRows) -> NDArray[np.int64]:
        """Return each row's predicted class, shape (rows,)."""
        scores = [
            self._compute_log_scores(self.counts[:, tokens], self.class_totals, self.smoothing)
            for tokens in _iterate_row_tokens(rows)
        ]
        predicted: NDArray[np.int64] = np.stack(scores).argmax(1)
        return predicted


def _iterate_row_tokens(rows: TokenRows) -> Iterator[NDArray[np.int64]]:
    """Yield each row's token ids."""
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
    """Return the number of rows per label; rows whose label is unknown are counted as "not traced"."""
    counts = Counter(label_of.get(normalize_text(row)) for row in rows)
    return {**{name: counts[index] for index, name in enumerate(label_names)}, "not traced": counts[None]}
