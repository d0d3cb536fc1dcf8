"""Label leaks: simple features of a text that alone predict its label.

A feature maps each row to a number. A test row is assigned the most common class among the training rows with the
nearest number, so single values, sets of values and ranges are all detected.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from headtohead.audit.data_checks.count_baselines import MAX_COUNT_TABLE_SIZE, NaiveBayes
from headtohead.audit.result import CheckResult, build_not_applicable
from headtohead.data.encoding import TokenRows
from headtohead.data.splits import Corpus

LABEL_CHECK_NAME = "label leaks"
MIN_MARKED_SHARE, MIN_MARK_PURITY, MAX_CLASS_SHARE = 0.1, 0.995, 0.8
"""a token marks a class if it is in this share of the rows and they all have one label, which fewer rows have overall
"""
MAX_LEAK_ERROR, MAX_ERROR_RATIO = 0.02, 0.2
"""a feature predicts the label if its error rate is below both: absolute, and relative to the most common class"""
MAX_ROWS = 2**12
"""in longer splits, features are computed for the first rows only"""
MAX_ORDERED_TOKENS = 48
"""tokens that occur in most rows, whose order is compared"""
NUM_END_POSITIONS = 4
"""tokens at either end of a row that are features"""
NUM_PAIR_HASHES = 2**16
_NUMBER_PATTERN = re.compile(r"(?<!\w)\d+(?:\.\d+)?")

Values = NDArray[np.float64]


def find_leaking_features(
    corpus: Corpus, encoded_splits: Mapping[str, TokenRows], vocab_size: int, get_name: Callable[[int], str]
) -> dict[str, float]:
    """Return the features that predict the labels of a test split almost perfectly, with their accuracies."""
    train = _take_rows(encoded_splits["train"])
    assert train.labels is not None
    labels = train.labels.numpy()
    most_common = np.bincount(labels).argmax()
    first, second = _find_deciding_order(train, vocab_size)
    pairs = NaiveBayes(_hash_token_pairs(train), len(corpus.label_names), NUM_PAIR_HASHES, smoothing=0.1)
    leaking: dict[str, float] = {}
    for split in corpus.get_test_splits():
        test = _take_rows(encoded_splits[split.name])
        assert test.labels is not None
        test_labels = test.labels.numpy()
        train_features = _compute_token_features(train) | _compute_number_features(corpus.train.rows[: len(train)])
        test_features = _compute_token_features(test) | _compute_number_features(split.rows[: len(test)])
        name = f"the order of {get_name(first)!r} and {get_name(second)!r}"
        train_features[name], test_features[name] = (
            np.sign(np.subtract(*_find_first_positions(rows, [first, second]).T)) for rows in (train, test)
        )
        predictions = {
            name: _predict_from_nearest(train_features[name], labels, values) for name, values in test_features.items()
        }
        predictions["pairs of tokens"] = pairs.predict(_hash_token_pairs(test))
        chance = float((test_labels != most_common).mean())
        for name, predicted in predictions.items():
            if is_leak(float((predicted != test_labels).mean()), chance):
                leaking[name] = float((predicted == test_labels).mean())
    return leaking


def is_leak(error: float, chance: float) -> bool:
    """Return whether an error rate is suspiciously low for a simple feature.

    `chance` is the error rate of always predicting the most common class.
    """
    return error <= min(MAX_LEAK_ERROR, MAX_ERROR_RATIO * chance)


def _take_rows(rows: TokenRows) -> TokenRows:
    """Return a split's first rows."""
    count = min(len(rows), MAX_ROWS)
    assert rows.labels is not None
    return TokenRows(rows.name, rows.tokens[: rows.offsets[count]], rows.offsets[: count + 1], rows.labels[:count])


def _predict_from_nearest(train_values: Values, labels: NDArray[np.int64], values: Values) -> NDArray[np.int64]:
    """Return the most common class among the training rows with the nearest value, shape (rows,)."""
    known, inverse = np.unique(train_values, return_inverse=True)
    counts = np.zeros((len(known), labels.max() + 1), np.int64)
    np.add.at(counts, (inverse, labels), 1)
    upper = np.searchsorted(known, values).clip(0, len(known) - 1)
    lower = (upper - 1).clip(0)
    is_lower_nearer = np.abs(values - known[lower]) <= np.abs(known[upper] - values)
    predicted: NDArray[np.int64] = counts.argmax(1)[np.where(is_lower_nearer, lower, upper)]
    return predicted


def _compute_token_features(rows: TokenRows) -> dict[str, Values]:
    """Return each row's token count and its first and last tokens, with -1 where a row is too short."""
    starts, ends, tokens = rows.offsets[:-1].numpy(), rows.offsets[1:].numpy(), rows.tokens.numpy()
    end_tokens = {}
    for index in range(NUM_END_POSITIONS):
        for name, positions in ((f"token {index + 1}", starts + index), (f"token {-index - 1}", ends - 1 - index)):
            is_inside = (positions >= starts) & (positions < ends)
            end_tokens[name] = np.where(is_inside, tokens[np.where(is_inside, positions, 0)], -1).astype(np.float64)
    return {
        "the number of tokens": rows.lengths.numpy().astype(np.float64),
        "the first and last token": end_tokens["token 1"] * 2**24 + end_tokens["token -1"],
        **end_tokens,
    }


def _compute_number_features(rows: Sequence[str]) -> dict[str, Values]:
    """Return the first, last and largest number in each text, their sum, and the last digits; -1 if there is none."""
    numbers = [[float(match) for match in _NUMBER_PATTERN.findall(row)[:64]] or [-1.0] for row in rows]
    values = {
        "the first number": np.array([row[0] for row in numbers]),
        "the last number": np.array([row[-1] for row in numbers]),
        "the largest number": np.array([max(row) for row in numbers]),
        "the sum of the numbers": np.array([sum(row) for row in numbers]),
    }
    return values | {f"the last digit of {name}": column % 10 for name, column in values.items()}


def _find_deciding_order(train: TokenRows, vocab_size: int) -> tuple[int, int]:
    """Return the two frequent tokens whose relative order best predicts the training labels."""
    assert train.labels is not None
    row_counts = np.bincount(_list_occurrences(train, vocab_size)[1])
    frequent = np.argsort(-row_counts, kind="stable")[:MAX_ORDERED_TOKENS]
    positions, labels = _find_first_positions(train, frequent.tolist()), train.labels.numpy()
    counts = np.zeros((3, labels.max() + 1, len(frequent), len(frequent)), np.int64)
    for label in np.unique(labels):
        rows = positions[labels == label]
        for index, column in enumerate(rows.T):
            counts[0, label, index] = (column[:, None] < rows).sum(0)
            counts[1, label, index] = (column[:, None] > rows).sum(0)
        counts[2, label] = len(rows) - counts[:2, label].sum(0)
    num_correct = counts.max(1).sum(0)
    first, second = np.unravel_index(num_correct.argmax(), num_correct.shape)
    return int(frequent[first]), int(frequent[second])


def _list_occurrences(rows: TokenRows, vocab_size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the row and token of each occurrence, counting a token once per row."""
    row_indices = np.repeat(np.arange(len(rows)), rows.lengths.numpy())
    occurrences = np.unique(row_indices * vocab_size + rows.tokens.numpy())
    return occurrences // vocab_size, occurrences % vocab_size


def _find_first_positions(rows: TokenRows, tokens: Sequence[int]) -> Values:
    """Return the position at which each token first occurs in each row, shape (rows, tokens).

    Tokens that do not occur get a large number.
    """
    row_indices = np.repeat(np.arange(len(rows)), rows.lengths.numpy())
    positions = np.arange(len(row_indices)) - rows.offsets.numpy()[row_indices]
    first = np.full((len(rows), len(tokens)), float(2**40))
    for index, token in enumerate(tokens):
        is_token = rows.tokens.numpy() == token
        np.minimum.at(first[:, index], row_indices[is_token], positions[is_token])
    return first


def _hash_token_pairs(rows: TokenRows) -> TokenRows:
    """Return, for each row, the hashes of all pairs of adjacent tokens."""
    tokens = rows.tokens.long()
    hashes = (tokens[:-1] * 1_000_003 + tokens[1:]) % NUM_PAIR_HASHES
    is_inside = torch.ones(len(hashes), dtype=torch.bool)
    starts = rows.offsets[(rows.offsets > 0) & (rows.offsets < len(tokens))]
    is_inside[starts - 1] = False
    lengths = (rows.lengths - 1).clamp_min(0)
    offsets = torch.cat((torch.zeros(1, dtype=torch.long), lengths.cumsum(0)))
    return TokenRows(rows.name, hashes[is_inside], offsets, rows.labels)


def find_label_marks(train: TokenRows, num_classes: int, vocab_size: int) -> dict[int, float]:
    """Return tokens that occur in many rows, all with the same label, and the fraction of rows that contain them."""
    assert train.labels is not None
    if num_classes * vocab_size > MAX_COUNT_TABLE_SIZE:
        return {}
    rows, tokens = _list_occurrences(train, vocab_size)
    labels = train.labels.numpy()[rows]
    counts = np.bincount(labels * vocab_size + tokens, minlength=num_classes * vocab_size).reshape(num_classes, -1)
    totals, shares = counts.sum(0), np.bincount(train.labels.numpy(), minlength=num_classes) / len(train)
    is_mark = (totals >= MIN_MARKED_SHARE * len(train)) & (counts.max(0) >= MIN_MARK_PURITY * totals)
    is_mark &= shares[counts.argmax(0)] <= MAX_CLASS_SHARE
    return {token: float(totals[token] / len(train)) for token in np.flatnonzero(is_mark).tolist()}


def audit_label_leak(
    accuracies: Mapping[str, Mapping[str, float]],
    splits: Sequence[str],
    features: Mapping[str, float],
    marks: Mapping[str, float],
) -> CheckResult:
    """Check that neither token counts, nor a simple feature, nor single tokens in a text give away its label.

    `accuracies` are those of `score_simple_classifiers`, `features` those of `find_leaking_features`; `marks` maps
    tokens that mark a class to their share of rows.
    """
    if not accuracies:
        return build_not_applicable(LABEL_CHECK_NAME, "the corpus has no labels")
    procedure = (
        "label predicted from token counts (naive Bayes), pairs of tokens, single tokens, the number of tokens, the "
        "tokens at the ends, the order of two tokens, and numbers"
    )
    observations, leaks = [], dict(features)
    for split in splits if "naive Bayes" in accuracies else ():
        accuracy = accuracies["naive Bayes"][split]
        observations.append(f"{split}: naive Bayes {accuracy:.1%} correct")
        if is_leak(1 - accuracy, 1 - accuracies["most common class"][split]):
            leaks["tokens"] = accuracy
    observations += [f"{name} {accuracy:.1%} correct" for name, accuracy in features.items()]
    observations += [f"{token!r} is in {share:.0%} of the rows, all of one class" for token, share in marks.items()]
    if not leaks and not marks:
        return CheckResult(LABEL_CHECK_NAME, True, procedure, "; ".join(observations), "Labels need more than counts.")
    feature = next((name for name in ("the number of tokens", "tokens", *leaks) if name in leaks), "tokens")
    return CheckResult(
        LABEL_CHECK_NAME,
        False,
        procedure,
        "; ".join(observations),
        f"{'The label follows' if leaks else 'Many labels follow'} from {feature} alone. Check that the text does not "
        "contain the label or another mark of its class.",
        failure_reason="labels leak into the text",
    )
