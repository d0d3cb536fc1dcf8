"""Baselines that only count: simple classifiers and language models, and the labels of lines of a corpus."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headtohead.audit.data_checks.leakage import compute_unseen_mask
from headtohead.audit.data_checks.overlap import normalize_text
from headtohead.audit.result import CheckResult, build_not_applicable
from headtohead.data.encoding import EncodedSplit, TokenRows
from headtohead.data.splits import Corpus

LABEL_CHECK_NAME = "label leaks"
MAX_COUNT_TABLE_SIZE = 2**27
"""naive Bayes is skipped if its table (classes, words) has more entries, to limit memory"""
MAX_COUNTED_TOKENS, NUM_CHUNKS = 2**22, 64
"""of longer splits, language models count that many tokens, in evenly spaced chunks"""
BIGRAM_PRIOR = 5.0
"""number of observations that the unigram distribution counts for, after MacKay and Peto 1995"""
MIN_MARKED_SHARE, MIN_MARK_PURITY, MAX_CLASS_SHARE = 0.1, 0.995, 0.8
"""a token marks a class if it is in that share of the rows, and these have one label, which fewer rows have overall"""
MAX_LEAK_ERROR, MAX_ERROR_RATIO = 0.02, 0.2
"""a feature predicts the label if its error rate is below both: absolute, and relative to the most common class"""


def score_simple_classifiers(
    corpus: Corpus, encoded_splits: dict[str, Any], vocab_size: int
) -> dict[str, dict[str, float]]:
    """Return the accuracy of simple classifiers on all rows and on the unseen rows of each held-out split.

    They predict the most common class; look up the text in train (the most common class if it does not occur there);
    look up its number of tokens, or its first and last token, in train; and count its tokens (naive Bayes).
    """
    scores: dict[str, dict[str, float]] = {}
    train = encoded_splits["train"]
    assert isinstance(train, TokenRows) and train.labels is not None and corpus.train.labels is not None
    longest = int(train.lengths.max())
    fits_memory = len(corpus.label_names) * max(vocab_size, longest) <= MAX_COUNT_TABLE_SIZE
    bayes = _NaiveBayes(train, len(corpus.label_names), vocab_size) if fits_memory else None
    table = {normalize_text(row): label for row, label in zip(corpus.train.rows, corpus.train.labels, strict=True)}
    most_common = Counter(corpus.train.labels).most_common(1)[0][0]
    label_of_length, label_of_ends = _find_labels_of_lengths(train), _EndTokens(train)
    for split in corpus.get_test_splits():
        assert split.labels is not None
        labels, is_unseen = np.array(split.labels), compute_unseen_mask(corpus, split.name)
        lengths = encoded_splits[split.name].lengths.numpy()
        predictions = {
            "most common class": np.full(len(labels), most_common),
            "number of tokens": label_of_length[np.minimum(lengths, len(label_of_length) - 1)],
            "first and last token": label_of_ends.predict(encoded_splits[split.name]),
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


def _find_labels_of_lengths(train: TokenRows) -> NDArray[np.int64]:
    """Return the most common class of the training rows by number of tokens; that of the next shorter rows if none."""
    assert train.labels is not None
    lengths = train.lengths.numpy()
    counts = np.zeros((int(lengths.max()) + 1, int(train.labels.max()) + 1), dtype=np.int64)
    np.add.at(counts, (lengths, train.labels.numpy()), 1)
    nearest_lengths = np.maximum.accumulate(np.where(counts.any(1), np.arange(len(counts)), lengths.min()))
    labels: NDArray[np.int64] = counts.argmax(1)[nearest_lengths]
    return labels


class _EndTokens:
    """The most common class of the training rows by their first and last token; by the last alone if none has both."""

    def __init__(self, rows: TokenRows) -> None:
        assert rows.labels is not None
        counts: defaultdict[tuple[int, int], Counter[int]] = defaultdict(Counter)
        for (first, last), label in zip(self._list_ends(rows), rows.labels.tolist(), strict=True):
            for key in ((first, last), (-1, last), (-1, -1)):
                counts[key][label] += 1
        self.labels = {key: counter.most_common(1)[0][0] for key, counter in counts.items()}

    @staticmethod
    def _list_ends(rows: TokenRows) -> list[tuple[int, int]]:
        return [(int(row[0]), int(row[-1])) if len(row) else (-1, -1) for row in _iterate_row_tokens(rows)]

    def predict(self, rows: TokenRows) -> NDArray[np.int64]:
        """Return the predicted class of each row, shape (rows,)."""
        keys = [
            next(key for key in (ends, (-1, ends[1]), (-1, -1)) if key in self.labels) for ends in self._list_ends(rows)
        ]
        return np.array([self.labels[key] for key in keys], dtype=np.int64)


def find_label_marks(train: TokenRows, num_classes: int, vocab_size: int) -> dict[int, float]:
    """Return the tokens that occur in many rows, all of one label, with the share of rows that contain them."""
    assert train.labels is not None
    if num_classes * vocab_size > MAX_COUNT_TABLE_SIZE:
        return {}
    rows = np.repeat(np.arange(len(train)), train.lengths.numpy())
    occurrences = np.unique(rows * vocab_size + train.tokens.numpy())  # once per row
    labels, tokens = train.labels.numpy()[occurrences // vocab_size], occurrences % vocab_size
    counts = np.bincount(labels * vocab_size + tokens, minlength=num_classes * vocab_size).reshape(num_classes, -1)
    totals, shares = counts.sum(0), np.bincount(train.labels.numpy(), minlength=num_classes) / len(train)
    is_mark = (totals >= MIN_MARKED_SHARE * len(train)) & (counts.max(0) >= MIN_MARK_PURITY * totals)
    is_mark &= shares[counts.argmax(0)] <= MAX_CLASS_SHARE
    return {token: float(totals[token] / len(train)) for token in np.flatnonzero(is_mark).tolist()}


def audit_label_leak(
    accuracies: Mapping[str, Mapping[str, float]], splits: Sequence[str], marks: Mapping[str, float]
) -> CheckResult:
    """Check that neither the number of tokens, nor its ends, nor single tokens of a text give away its label.

    `accuracies` are those of `score_simple_classifiers`; `marks` maps tokens that mark a class to their share of rows.
    """
    methods = [name for name in ("number of tokens", "first and last token", "naive Bayes") if name in accuracies]
    if not methods:
        return build_not_applicable(LABEL_CHECK_NAME, "the corpus has no labels")
    procedure = (
        "label predicted from the number of tokens, from the first and last token, from token counts (naive Bayes), "
        "and from single tokens"
    )
    observations, leaks = [], []
    for split in splits:
        chance = 1 - accuracies["most common class"][split]
        errors = {name: 1 - accuracies[name][split] for name in methods}
        correct = ", ".join(f"{name} {1 - error:.1%} correct" for name, error in errors.items())
        observations.append(f"{split}: {correct}")
        leaks += [name for name, error in errors.items() if error <= min(MAX_LEAK_ERROR, MAX_ERROR_RATIO * chance)]
    observations += [f"{token!r} is in {share:.0%} of the rows, all of one class" for token, share in marks.items()]
    if not leaks and not marks:
        return CheckResult(LABEL_CHECK_NAME, True, procedure, "; ".join(observations), "Labels need more than counts.")
    features = {"number of tokens": "the number of tokens", "naive Bayes": "tokens"}
    feature = next((text for name, text in features.items() if name in leaks), "the first and last token")
    feature = feature if leaks else "tokens"
    return CheckResult(
        LABEL_CHECK_NAME,
        False,
        procedure,
        "; ".join(observations),
        f"{'The label follows' if leaks else 'Many labels follow'} from {feature} alone. Check that the text does not "
        "contain the label or another mark of its class.",
        failure_reason="labels leak into the text",
    )


def score_count_models(encoded_splits: Mapping[str, EncodedSplit], vocab_size: int) -> dict[str, dict[str, float]]:
    """Return the mean loss of count-based language models on each split but train, in nats per token.

    The models are a uniform guess, and unigram and bigram counts of train with smoothing.
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
    """Return tokens and their successors in the same row, to count bigrams, of all or of evenly spaced chunks."""
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
