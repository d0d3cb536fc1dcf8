"""Label agreement: the labels of test must follow from its text as those of train do.

If labels were shifted by a row, swapped or sorted, training succeeds and every model is at chance on test.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from headtohead.audit.data_checks.count_baselines import MAX_COUNT_TABLE_SIZE, NaiveBayes
from headtohead.audit.data_checks.label_leaks import select_first_rows
from headtohead.audit.result import CheckResult
from headtohead.data.encoding import TokenRows
from headtohead.data.splits import Corpus

CHECK_NAME = "labels of test"
SMOOTHING = 0.5
MIN_TRAIN_GAIN = 0.1
"""naive Bayes must be this much more accurate on train than the most common class for test to be compared"""
MAX_GAIN_RATIO = 0.2
"""gain on test, relative to that on train, below which the labels of test do not follow from its text"""
MIN_STANDARD_ERRORS = 4.0
MIN_EXPECTED_ROWS = 10
"""a class is missing from test if at least this many of its rows were expected"""


def audit_label_agreement(corpus: Corpus, encoded: Mapping[str, TokenRows], vocab_size: int) -> CheckResult:
    """Check that token counts predict the labels of test about as well as those of train, and that no class is missing.

    Naive Bayes predicts each training row from the others.
    """
    train = select_first_rows(encoded["train"])
    assert train.labels is not None
    labels, num_classes = train.labels.numpy(), len(corpus.label_names)
    shares = np.bincount(labels, minlength=num_classes) / len(labels)
    naive_bayes = None
    if num_classes * vocab_size <= MAX_COUNT_TABLE_SIZE:
        naive_bayes = NaiveBayes(train, num_classes, vocab_size, smoothing=SMOOTHING)
    train_accuracy = naive_bayes.compute_leave_one_out_accuracy(train, SMOOTHING) if naive_bayes else 0.0
    train_gain = train_accuracy - float(shares.max())
    procedure = "classes of test, and accuracy of naive Bayes on test and on train (each row predicted from the others)"
    problems, observations = [], [f"train: {train_accuracy:.1%} correct"] if naive_bayes else []
    for split in corpus.get_test_splits():
        test = select_first_rows(encoded[split.name])
        assert test.labels is not None
        test_labels, num_rows = test.labels.numpy(), len(test)
        counts = np.bincount(test_labels, minlength=num_classes)
        missing = np.flatnonzero((counts == 0) & (shares * num_rows >= MIN_EXPECTED_ROWS))
        problems += [f"{split.name} has no row of {corpus.label_names[index]!r}" for index in missing]
        if naive_bayes is None:
            continue
        accuracy = float((naive_bayes.predict(test) == test_labels).mean())
        observations.append(f"{split.name}: {accuracy:.1%} correct")
        gain = accuracy - float(counts.max() / num_rows)
        lost_gain, standard_error = train_gain - gain, 0.5 / num_rows**0.5
        if (
            not len(missing)
            and train_gain >= MIN_TRAIN_GAIN
            and gain <= MAX_GAIN_RATIO * train_gain
            and lost_gain >= MIN_STANDARD_ERRORS * standard_error
        ):
            problems.append(f"the labels of {split.name} do not follow from its text")
    observation = "; ".join([*problems, *observations])
    if not problems:
        return CheckResult(CHECK_NAME, True, procedure, observation, "Labels of test follow from its text.")
    return CheckResult(
        CHECK_NAME,
        False,
        procedure,
        observation,
        "Check how the test file was made: rows and labels may be shifted or swapped, sorted by label before rows were "
        "selected, or its text may be written differently than that of train.",
        failure_reason="labels of test do not follow from its text",
    )
