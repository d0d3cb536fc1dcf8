"""Count-based baselines that a trained model should beat: simple classifiers and language models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headtohead.audit.data_checks.split_leakage import compute_unseen_mask
from headtohead.audit.data_checks.word_hashing import normalize_text
from headtohead.data.encoding import EncodedSplit, TokenRows
from headtohead.data.splits import Corpus

MAX_COUNT_TABLE_SIZE = 2**27
"""naive Bayes is skipped if its table (classes, words) has more entries, to limit memory"""
MAX_COUNTED_TOKENS = 2**22
"""in longer splits, language models count this many tokens"""
NUM_CHUNKS = 64
"""number of evenly spaced chunks of tokens that are counted in longer splits"""
BIGRAM_PRIOR = 5.0
"""weight of the unigram distribution in observations, after MacKay and Peto 1995"""


def score_simple_classifiers(
    corpus: Corpus, encoded_splits: dict[str, Any], vocab_size: int
) -> dict[str, dict[str, float]]:
    """Return the accuracy of simple classifiers on all rows and on the unseen rows of each held-out split.

    There are three: always predict the most common class; look up the text in train, falling back to the most common
    class; and naive Bayes over token counts.
    """
    accuracies: dict[str, dict[str, float]] = {}
    train = encoded_splits["train"]
    assert isinstance(train, TokenRows) and train.labels is not None and corpus.train.labels is not None
    fits_memory = len(corpus.label_names) * vocab_size <= MAX_COUNT_TABLE_SIZE
    naive_bayes = NaiveBayes(train, len(corpus.label_names), vocab_size) if fits_memory else None
    label_by_text = {
        normalize_text(row): label for row, label in zip(corpus.train.rows, corpus.train.labels, strict=True)
    }
    most_common_label = Counter(corpus.train.labels).most_common(1)[0][0]
    for split in corpus.get_test_splits():
        assert split.labels is not None
        labels, is_unseen = np.array(split.labels), compute_unseen_mask(corpus, split.name)
        predictions = {
            "most common class": np.full(len(labels), most_common_label),
            "looked up in train": np.array(
                [label_by_text.get(normalize_text(row), most_common_label) for row in split.rows]
            ),
            **({"naive Bayes": naive_bayes.predict(encoded_splits[split.name])} if naive_bayes else {}),
        }
        for name, predicted_classes in predictions.items():
            is_correct = predicted_classes == labels
            accuracy_by_split = accuracies.setdefault(name, {})
            accuracy_by_split[split.name] = float(is_correct.mean())
            if 0 < is_unseen.sum() < len(is_unseen):
                accuracy_by_split[f"{split.name}, unseen rows"] = float(is_correct[is_unseen].mean())
    return accuracies


def score_count_models(encoded_splits: Mapping[str, EncodedSplit], vocab_size: int) -> dict[str, dict[str, float]]:
    """Return the mean loss of count-based language models on each split but train, in nats per token.

    The models are a uniform guess and smoothed unigram and bigram counts from train.
    """
    contexts, targets = _sample_bigrams(encoded_splits["train"])
    unigram_probabilities = (np.bincount(targets, minlength=vocab_size) + 1.0) / (len(targets) + vocab_size)
    context_counts = np.bincount(contexts, minlength=vocab_size)
    known_bigrams, known_counts = np.unique(contexts * vocab_size + targets, return_counts=True)
    losses: dict[str, dict[str, float]] = {"uniform": {}, "unigram": {}, "bigram": {}}
    for name, encoded in encoded_splits.items():
        if name == "train":
            continue
        contexts, targets = _sample_bigrams(encoded)
        if not len(targets):
            continue
        bigrams = contexts * vocab_size + targets
        indices = np.minimum(np.searchsorted(known_bigrams, bigrams), len(known_bigrams) - 1)
        bigram_counts = np.where(known_bigrams[indices] == bigrams, known_counts[indices], 0)
        unigram_prior = BIGRAM_PRIOR * unigram_probabilities[targets]
        bigram_probabilities = (bigram_counts + unigram_prior) / (context_counts[contexts] + BIGRAM_PRIOR)
        losses["uniform"][name] = float(np.log(vocab_size))
        losses["unigram"][name] = float(-np.log(unigram_probabilities[targets]).mean())
        losses["bigram"][name] = float(-np.log(bigram_probabilities).mean())
    return losses


def _sample_bigrams(encoded: EncodedSplit) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the bigrams within rows that a count baseline is fitted to: all, or those of evenly spaced chunks."""
    num_tokens = encoded.token_ids.numel()
    is_long = num_tokens > MAX_COUNTED_TOKENS
    length = MAX_COUNTED_TOKENS // NUM_CHUNKS if is_long else num_tokens
    chunk_starts = np.linspace(0, num_tokens - length, NUM_CHUNKS if is_long else 1).astype(np.int64)
    contexts, targets = [], []
    for chunk_start in chunk_starts.tolist():
        chunk = encoded.token_ids[chunk_start : chunk_start + length].long().numpy()
        row_ends = np.zeros(0, np.int64)  # positions in the chunk of the last tokens of rows
        if isinstance(encoded, TokenRows):
            row_starts = encoded.row_offsets.numpy()
            is_in_chunk = (row_starts > chunk_start) & (row_starts < chunk_start + length)
            row_ends = row_starts[is_in_chunk] - chunk_start - 1
        contexts.append(np.delete(chunk[:-1], row_ends))
        targets.append(np.delete(chunk[1:], row_ends))
    return np.concatenate(contexts), np.concatenate(targets)


class NaiveBayes:
    """Multinomial naive Bayes over tokens (Maron 1961).

    Unless the smoothing strength is given, it is chosen by leave-one-out accuracy on train.
    """

    SMOOTHING_CANDIDATES = (1.0, 0.5, 0.2, 0.1)

    def __init__(self, train: TokenRows, num_classes: int, vocab_size: int, *, smoothing: float | None = None) -> None:
        """Count the tokens of each class in the training rows."""
        assert train.labels is not None
        self.counts = np.zeros((num_classes, vocab_size))
        self.labels = train.labels.numpy()
        np.add.at(self.counts, (np.repeat(self.labels, train.row_lengths.numpy()), train.token_ids.numpy()), 1)
        self.class_totals = self.counts.sum(1)
        self.log_prior = np.log(np.bincount(self.labels, minlength=num_classes) / len(self.labels))
        self.smoothing = smoothing or max(
            self.SMOOTHING_CANDIDATES, key=lambda smoothing: self.compute_leave_one_out_accuracy(train, smoothing)
        )

    def compute_leave_one_out_accuracy(self, train: TokenRows, smoothing: float) -> float:
        """Return the training accuracy when each row is excluded from the counts before it is predicted."""
        num_correct = 0
        for token_ids, label in zip(_iter_row_token_ids(train), self.labels, strict=True):
            remaining_counts, remaining_totals = self.counts[:, token_ids], self.class_totals.copy()
            _, inverse, token_counts = np.unique(token_ids, return_inverse=True, return_counts=True)
            remaining_counts[label] -= token_counts[inverse]
            remaining_totals[label] -= len(token_ids)
            log_scores = self._compute_log_scores(remaining_counts, remaining_totals, smoothing)
            num_correct += int(log_scores.argmax() == label)
        return num_correct / len(self.labels)

    def _compute_log_scores(
        self, token_counts: NDArray[np.float64], class_totals: NDArray[np.float64], smoothing: float
    ) -> NDArray[np.float64]:
        """Return each class's log score for a row, given the counts of its tokens in each class (classes, tokens)."""
        denominators = class_totals + smoothing * self.counts.shape[1]
        log_likelihoods = np.log((token_counts + smoothing) / denominators[:, None]).sum(1)
        log_scores: NDArray[np.float64] = self.log_prior + log_likelihoods
        return log_scores

    def predict(self, token_rows: TokenRows) -> NDArray[np.int64]:
        """Return each row's class as predicted by the naive Bayes baseline, shape (rows,)."""
        log_scores = [
            self._compute_log_scores(self.counts[:, token_ids], self.class_totals, self.smoothing)
            for token_ids in _iter_row_token_ids(token_rows)
        ]
        predicted_classes: NDArray[np.int64] = np.stack(log_scores).argmax(1)
        return predicted_classes


def _iter_row_token_ids(token_rows: TokenRows) -> Iterator[NDArray[np.int64]]:
    """Yield the token ids of each row, shape (length,)."""
    token_ids = token_rows.token_ids.numpy()
    for start, end in zip(token_rows.row_offsets[:-1].tolist(), token_rows.row_offsets[1:].tolist(), strict=True):
        yield token_ids[start:end]
