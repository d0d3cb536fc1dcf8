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
from headtohead.audit.result import CheckResult, build_inapplicable_result
from headtohead.data.encoding import TokenRows
from headtohead.data.splits import Corpus

CHECK_NAME = "label leaks"
MIN_MARKED_SHARE = 0.1
"""smallest share of the rows that must contain a token for it to mark a class"""
MIN_MARK_PURITY = 0.995
"""smallest share of the rows with such a token that must have the same label"""
MAX_CLASS_SHARE = 0.8
"""largest share of all rows that may have that label; if more have it, many tokens mark it by chance"""
MAX_LEAK_ERROR = 0.02
"""largest error rate at which a feature leaks the label"""
MAX_ERROR_RATIO = 0.2
"""largest error rate at which a feature leaks the label, relative to that of the most common class"""
MIN_TEST_ROWS = 30
"""in this many rows, a classifier with an error rate of 10 % makes no error in 4 % of the cases"""
MAX_ROWS = 2**12
"""in longer splits, features are computed for the first rows only"""
MAX_ORDERED_TOKENS = 48
"""number of the tokens that occur in most rows, whose order is compared"""
NUM_END_POSITIONS = 4
"""number of tokens at either end of a row that are features"""
NUM_PAIR_HASHES = 2**16
_NUMBER_PATTERN = re.compile(r"(?<!\w)\d+(?:\.\d+)?")

FeatureValues = NDArray[np.float64]
"""one feature of each row, shape (rows,)"""


def find_leaking_features(
    corpus: Corpus, encoded_splits: Mapping[str, TokenRows], vocab_size: int, get_token_name: Callable[[int], str]
) -> dict[str, float]:
    """Return the features that predict the labels of a test split almost perfectly, with their accuracies."""
    train = select_first_rows(encoded_splits["train"])
    assert train.labels is not None
    labels = train.labels.numpy()
    most_common_label = np.bincount(labels).argmax()
    ordered_tokens = _find_tokens_with_informative_order(train, vocab_size)
    pair_classifier = NaiveBayes(_hash_token_pairs(train), len(corpus.label_names), NUM_PAIR_HASHES, smoothing=0.1)
    leaking: dict[str, float] = {}
    for split in corpus.get_test_splits():
        test = select_first_rows(encoded_splits[split.name])
        assert test.labels is not None
        test_labels = test.labels.numpy()
        train_features = _compute_token_features(train) | _compute_number_features(corpus.train.rows[: len(train)])
        test_features = _compute_token_features(test) | _compute_number_features(split.rows[: len(test)])
        first_name, second_name = map(get_token_name, ordered_tokens)
        name = f"the order of {first_name!r} and {second_name!r}"
        train_features[name], test_features[name] = (
            np.sign(np.subtract(*_find_first_positions(token_rows, ordered_tokens).T)) for token_rows in (train, test)
        )
        predictions = {
            name: _predict_from_nearest(train_features[name], labels, values) for name, values in test_features.items()
        }
        predictions["pairs of tokens"] = pair_classifier.predict(_hash_token_pairs(test))
        chance_error = float((test_labels != most_common_label).mean())
        for name, predicted_classes in predictions.items():
            if is_label_leak(float((predicted_classes != test_labels).mean()), chance_error, len(test_labels)):
                leaking[name] = float((predicted_classes == test_labels).mean())
    return leaking


def is_label_leak(error_rate: float, chance_error_rate: float, num_rows: int) -> bool:
    """Return whether an error rate is suspiciously low for predictions from a simple feature.

    `chance_error_rate` is that of always predicting the most common class. In a few rows, any classifier may make no
    error.
    """
    return num_rows >= MIN_TEST_ROWS and error_rate <= min(MAX_LEAK_ERROR, MAX_ERROR_RATIO * chance_error_rate)


def select_first_rows(token_rows: TokenRows) -> TokenRows:
    """Return the first `MAX_ROWS` rows of a split, to limit the cost of checks of its labels."""
    num_rows = min(len(token_rows), MAX_ROWS)
    assert token_rows.labels is not None
    num_tokens = token_rows.row_offsets[num_rows]
    return TokenRows(
        token_rows.name,
        token_rows.token_ids[:num_tokens],
        token_rows.row_offsets[: num_rows + 1],
        token_rows.labels[:num_rows],
    )


def _predict_from_nearest(
    train_values: FeatureValues, labels: NDArray[np.int64], values: FeatureValues
) -> NDArray[np.int64]:
    """Return for each row the most common class among the training rows with the nearest feature value."""
    known_values, inverse = np.unique(train_values, return_inverse=True)
    counts = np.zeros((len(known_values), labels.max() + 1), np.int64)
    np.add.at(counts, (inverse, labels), 1)
    upper = np.searchsorted(known_values, values).clip(0, len(known_values) - 1)
    lower = (upper - 1).clip(0)
    is_lower_nearer = np.abs(values - known_values[lower]) <= np.abs(known_values[upper] - values)
    predicted_classes: NDArray[np.int64] = counts.argmax(1)[np.where(is_lower_nearer, lower, upper)]
    return predicted_classes


def _compute_token_features(token_rows: TokenRows) -> dict[str, FeatureValues]:
    """Return features that may leak a label: token count, first and last token of each row; -1 if it is too short."""
    row_starts, row_ends = token_rows.row_offsets[:-1].numpy(), token_rows.row_offsets[1:].numpy()
    token_ids = token_rows.token_ids.numpy()
    end_tokens = {}
    for index in range(NUM_END_POSITIONS):
        for name, positions in (
            (f"token {index + 1}", row_starts + index),
            (f"token {-index - 1}", row_ends - 1 - index),
        ):
            is_inside = (positions >= row_starts) & (positions < row_ends)
            end_tokens[name] = np.where(is_inside, token_ids[np.where(is_inside, positions, 0)], -1).astype(np.float64)
    return {
        "the number of tokens": token_rows.row_lengths.numpy().astype(np.float64),
        "the first and last token": end_tokens["token 1"] * 2**24 + end_tokens["token -1"],
        **end_tokens,
    }


def _compute_number_features(rows: Sequence[str]) -> dict[str, FeatureValues]:
    """Return features that may leak a label: numbers in each text, such as the first, last and largest; -1 if none."""
    numbers = [[float(match) for match in _NUMBER_PATTERN.findall(row)[:64]] or [-1.0] for row in rows]
    features = {
        "the first number": np.array([row_numbers[0] for row_numbers in numbers]),
        "the last number": np.array([row_numbers[-1] for row_numbers in numbers]),
        "the largest number": np.array([max(row_numbers) for row_numbers in numbers]),
        "the sum of the numbers": np.array([sum(row_numbers) for row_numbers in numbers]),
    }
    return features | {f"the last digit of {name}": values % 10 for name, values in features.items()}


def _find_tokens_with_informative_order(train: TokenRows, vocab_size: int) -> tuple[int, int]:
    """Return the two frequent tokens whose relative order best predicts the training labels."""
    assert train.labels is not None
    row_counts = np.bincount(_list_row_token_pairs(train, vocab_size)[1])
    frequent_ids = np.argsort(-row_counts, kind="stable")[:MAX_ORDERED_TOKENS]
    positions, labels = _find_first_positions(train, frequent_ids.tolist()), train.labels.numpy()
    # Number of rows by order (before, after, neither), label, and pair of tokens.
    order_counts = np.zeros((3, labels.max() + 1, len(frequent_ids), len(frequent_ids)), np.int64)
    for label in np.unique(labels):
        label_positions = positions[labels == label]
        for index, token_positions in enumerate(label_positions.T):
            order_counts[0, label, index] = (token_positions[:, None] < label_positions).sum(0)
            order_counts[1, label, index] = (token_positions[:, None] > label_positions).sum(0)
        order_counts[2, label] = len(label_positions) - order_counts[:2, label].sum(0)
    num_correct = order_counts.max(1).sum(0)
    first, second = np.unravel_index(num_correct.argmax(), num_correct.shape)
    return int(frequent_ids[first]), int(frequent_ids[second])


def _list_row_token_pairs(token_rows: TokenRows, vocab_size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the row index and the token id of each token that a row contains, once per row."""
    row_indices = np.repeat(np.arange(len(token_rows)), token_rows.row_lengths.numpy())
    occurrences = np.unique(row_indices * vocab_size + token_rows.token_ids.numpy())
    return occurrences // vocab_size, occurrences % vocab_size


def _find_first_positions(token_rows: TokenRows, token_ids: Sequence[int]) -> NDArray[np.float64]:
    """Return a feature that may leak a label: where each token first occurs in each row, shape (rows, tokens).

    Tokens that do not occur get a large number.
    """
    row_indices = np.repeat(np.arange(len(token_rows)), token_rows.row_lengths.numpy())
    positions = np.arange(len(row_indices)) - token_rows.row_offsets.numpy()[row_indices]
    first_positions = np.full((len(token_rows), len(token_ids)), float(2**40))
    for column, token_id in enumerate(token_ids):
        is_token = token_rows.token_ids.numpy() == token_id
        np.minimum.at(first_positions[:, column], row_indices[is_token], positions[is_token])
    return first_positions


def _hash_token_pairs(token_rows: TokenRows) -> TokenRows:
    """Return the pairs of adjacent tokens in each row as hashes, in which naive Bayes looks for a label leak."""
    token_ids = token_rows.token_ids.long()
    hashes = (token_ids[:-1] * 1_000_003 + token_ids[1:]) % NUM_PAIR_HASHES
    is_inside_row = torch.ones(len(hashes), dtype=torch.bool)
    row_starts = token_rows.row_offsets[(token_rows.row_offsets > 0) & (token_rows.row_offsets < len(token_ids))]
    is_inside_row[row_starts - 1] = False
    lengths = (token_rows.row_lengths - 1).clamp_min(0)
    offsets = torch.cat((torch.zeros(1, dtype=torch.long), lengths.cumsum(0)))
    return TokenRows(token_rows.name, hashes[is_inside_row], offsets, token_rows.labels)


def find_label_marks(train: TokenRows, num_classes: int, vocab_size: int) -> dict[int, float]:
    """Return the tokens that leak a label: they occur in many rows, nearly all with that label.

    The values are the shares of the rows that contain them.
    """
    assert train.labels is not None
    if num_classes * vocab_size > MAX_COUNT_TABLE_SIZE:
        return {}
    row_indices, token_ids = _list_row_token_pairs(train, vocab_size)
    labels = train.labels.numpy()[row_indices]
    counts = np.bincount(labels * vocab_size + token_ids, minlength=num_classes * vocab_size)
    counts = counts.reshape(num_classes, -1)  # number of rows with each label that contain each token
    row_counts, class_shares = counts.sum(0), np.bincount(train.labels.numpy(), minlength=num_classes) / len(train)
    is_mark = (row_counts >= MIN_MARKED_SHARE * len(train)) & (counts.max(0) >= MIN_MARK_PURITY * row_counts)
    is_mark &= class_shares[counts.argmax(0)] <= MAX_CLASS_SHARE
    return {token_id: float(row_counts[token_id] / len(train)) for token_id in np.flatnonzero(is_mark).tolist()}


def audit_label_leak(
    accuracies: Mapping[str, Mapping[str, float]],
    split_sizes: Mapping[str, int],
    features: Mapping[str, float],
    marks: Mapping[str, float],
) -> CheckResult:
    """Check that neither token counts, nor a simple feature, nor single tokens in a text give away its label.

    `accuracies` are those of `score_simple_classifiers`, `features` those of `find_leaking_features`; `split_sizes`
    maps the test splits to their numbers of rows, and `marks` maps tokens that mark a class to their share of rows.
    """
    if not accuracies:
        return build_inapplicable_result(CHECK_NAME, "the corpus has no labels")
    procedure = (
        "label predicted from token counts (naive Bayes), pairs of tokens, single tokens, the number of tokens, the "
        "tokens at the ends, the order of two tokens, and numbers"
    )
    observations, leaks = [], dict(features)
    for split, num_rows in split_sizes.items() if "naive Bayes" in accuracies else ():
        accuracy = accuracies["naive Bayes"][split]
        observations.append(f"{split}: naive Bayes {accuracy:.1%} correct")
        if is_label_leak(1 - accuracy, 1 - accuracies["most common class"][split], num_rows):
            leaks["tokens"] = accuracy
    observations += [f"{name} {accuracy:.1%} correct" for name, accuracy in features.items()]
    observations += [f"{token!r} is in {share:.0%} of the rows, all of one class" for token, share in marks.items()]
    if not leaks and not marks:
        return CheckResult(CHECK_NAME, True, procedure, "; ".join(observations), "Labels need more than counts.")
    feature = next((name for name in ("the number of tokens", "tokens", *leaks) if name in leaks), "tokens")
    return CheckResult(
        CHECK_NAME,
        False,
        procedure,
        "; ".join(observations),
        f"{'The label follows' if leaks else 'Many labels follow'} from {feature} alone. Check that the text does not "
        "contain the label or another mark of its class.",
        failure_reason="labels leak into the text",
    )
