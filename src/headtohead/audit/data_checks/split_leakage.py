"""Leakage between splits: held-out text that occurs in train or validation, and repeated test rows.

Verdicts use unseen rows only. A row is unseen if train contains no copy of it, either verbatim or ignoring case,
punctuation and whitespace. If there are more near copies than in ordinary text, near copies do not count as unseen
either. A leak withholds the verdict only if excluding seen rows is not enough: when almost no row is unseen, when
copies are so much changed that some are missed, or when the split is scored as a stream, so that individual rows cannot
be excluded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headtohead.audit.data_checks.text_overlap import (
    MAX_ORDINARY_SHARE,
    TextOverlap,
    find_overlap,
    group_repeated_rows,
    select_counted_rows,
)
from headtohead.audit.data_checks.word_hashing import count_words
from headtohead.audit.result import CheckResult, build_inapplicable_result
from headtohead.data.splits import HELD_OUT_TEST_ORIGIN, HELD_OUT_VALIDATION_ORIGIN, Corpus, Split
from headtohead.errors import DataError, suggest

MIN_UNSEEN_SHARE = 0.1
"""share of unseen rows below which the verdict is withheld"""
MAX_CACHED_OVERLAPS = 16
_overlap_cache: dict[tuple[str, str, str], TextOverlap] = {}


@dataclass(frozen=True)
class DataUse:
    """How an experiment uses a corpus, which determines whether a leak withholds the verdict."""

    judged_splits: frozenset[str] | None = None
    """test splits that the verdict is based on; None for all"""
    is_scored_by_row: bool = True
    """whether every row is one example, so that rows can be excluded; False for a stream"""
    selects_on_validation: bool = False
    """whether steps, weights or settings are chosen by the score on validation data"""
    allow_overlap: bool = False
    """whether the experiment file allows overlap, so that no leak withholds the verdict"""
    is_tokenizer_given: bool = False
    """whether the tokenizer is read from a file instead of being fitted on train"""
    unknown_rate: float = 0.0
    """share of training words that are replaced by the unknown token (data.word_dropout)"""

    def is_blocked_by(self, split: Split) -> bool:
        """Return whether a leak in this split may withhold the verdict."""
        is_judged = self.judged_splits is None or split.name in self.judged_splits
        return split.role == "test" and is_judged and not self.allow_overlap


def get_split_overlap(corpus: Corpus, split_name: str, source_name: str = "train") -> TextOverlap:
    """Look up the rows of one split in a second split, for the leakage audits. Results are cached by corpus digest."""
    if split_name not in corpus.splits:
        hint = suggest(split_name, corpus.splits)
        suggestion = f", did you mean {hint!r}?" if hint else ""
        raise DataError(f"no split {split_name!r}{suggestion} (available: {', '.join(corpus.splits)})")
    key = corpus.digest, split_name, source_name
    if not corpus.digest or key not in _overlap_cache:
        while len(_overlap_cache) >= MAX_CACHED_OVERLAPS:
            del _overlap_cache[next(iter(_overlap_cache))]
        _overlap_cache[key] = find_overlap(corpus.splits[split_name].rows, corpus.splits[source_name].rows)
    return _overlap_cache[key]


def compute_unseen_mask(corpus: Corpus, split_name: str, *, allow_overlap: bool = False) -> NDArray[np.bool_]:
    """Return for each row of a split whether it is unseen, shape (rows,).

    With `allow_overlap`, near copies count as unseen.
    """
    overlap = get_split_overlap(corpus, split_name)
    return ~(overlap.is_copy if allow_overlap else overlap.is_seen)


def audit_train_overlap(corpus: Corpus, split: Split, use: DataUse) -> CheckResult:
    """Count the rows of a held-out split that occur in train, verbatim or nearly."""
    noun = get_row_noun(corpus)
    overlap = get_split_overlap(corpus, split.name)
    is_unseen = compute_unseen_mask(corpus, split.name, allow_overlap=use.allow_overlap)
    num_rows, num_seen = len(split.rows), int((~is_unseen).sum())
    name, procedure = f"{noun} of {split.name} in train", _describe_leak_search(corpus, split, "train", overlap)
    observation = _describe_leak(overlap, num_seen, noun, split.name, "train")
    if not use.is_scored_by_row and overlap.copied_words > MAX_ORDINARY_SHARE:
        reason = f"was trained on text of {split.name}: {overlap.copied_words:.0%} of its words occur in train"
        interpretation = (
            f"{split.name} is scored as one stream, so text that occurs in train cannot be left out, and its score "
            "mostly measures memorization."
        )
        is_blocking = use.is_blocked_by(split)
    elif num_seen:
        reason = f"was trained on {num_seen} of {num_rows} {noun} of {split.name}"
        interpretation = _interpret_leak(num_seen / num_rows, noun)
        if overlap.is_incomplete:
            interpretation += (
                f" Many copies are so much changed that not all are found: other {noun} may be copies, too."
            )
        is_blocking = use.is_blocked_by(split) and (
            overlap.is_incomplete or num_rows - num_seen < MIN_UNSEEN_SHARE * num_rows
        )
    else:
        return CheckResult(name, True, procedure, observation, "The score is on unseen text.")
    if is_blocking:
        interpretation += (
            f" Remove the text of {split.name} from train, or set data.allow_overlap if the corpus is generated and "
            "repeats itself by design."
        )
    return CheckResult(name, False, procedure, observation, interpretation, is_blocking, reason)


def audit_validation_overlap(corpus: Corpus, split: Split, use: DataUse) -> CheckResult:
    """Count the rows of a test split that occur in validation."""
    noun = get_row_noun(corpus)
    name = f"{noun} of {split.name} in validation"
    overlap = get_split_overlap(corpus, split.name, "validation")
    procedure = _describe_leak_search(corpus, split, "validation", overlap)
    observation = _describe_leak(overlap, int(overlap.is_seen.sum()), noun, split.name, "validation")
    if overlap.copied_words <= MAX_ORDINARY_SHARE:
        return CheckResult(name, True, procedure, observation, "Choices on validation data use no test text.")
    is_blocking = use.selects_on_validation and use.is_blocked_by(split)
    interpretation = (
        f"The weights that are tested were chosen on text of {split.name}. Use other text for validation."
        if use.selects_on_validation
        else "Nothing is chosen on validation data here, so the verdict is not affected."
    )
    reason = f"was chosen on text of {split.name}: {overlap.copied_words:.0%} of its words occur in validation"
    return CheckResult(name, False, procedure, observation, interpretation, is_blocking, reason)


def audit_repeats(corpus: Corpus, split: Split, use: DataUse) -> CheckResult:
    """Measure how much of a test split repeats its own earlier rows, as a leak within the split."""
    noun = get_row_noun(corpus)
    name = f"repeated {noun} of {split.name}"
    group_ids = group_repeated_rows(split.rows)
    is_repeat = group_ids != np.arange(len(group_ids))
    if not use.is_scored_by_row and len(split.document_ids):  # documents are the examples of a stream
        documents = np.array(split.document_ids)
        is_repeat &= documents != documents[group_ids]
    word_counts = count_words(split.rows)
    num_repeated_words = word_counts[is_repeat & select_counted_rows(word_counts)].sum()
    repeated_share = float(num_repeated_words / max(1, word_counts.sum()))
    procedure = f"{noun} of {split.name} that copy or nearly copy an earlier one"
    observation = (
        f"{int(is_repeat.sum())} of {len(group_ids)} {noun} repeat an earlier one ({repeated_share:.1%} of the words)"
    )
    if repeated_share <= MAX_ORDINARY_SHARE:
        return CheckResult(name, True, procedure, observation, "Almost every example is new.")
    if use.is_scored_by_row:
        interpretation = "Repeats count as one example in the verdict; the scores by split count each of them."
        return CheckResult(name, False, procedure, observation, interpretation, failure_reason="repeats in test")
    interpretation = (
        f"{split.name} is scored as one stream, so its examples repeat each other and the interval would be too "
        f"narrow. Remove the repeats, or set data.allow_overlap if the corpus is generated."
    )
    reason = f"is scored on text that repeats itself: {repeated_share:.0%} of the words of {split.name}"
    return CheckResult(name, False, procedure, observation, interpretation, use.is_blocked_by(split), reason)


def audit_shared_documents(corpus: Corpus, split: Split) -> CheckResult:
    """Check that no document (such as an article or a speaker) contributes rows to both train and a test split."""
    name = f"documents of {split.name} in train"
    documents, train_documents = set(split.documents), set(corpus.train.documents)
    if len(documents) < 2 or len(train_documents) < 2:
        return build_inapplicable_result(name, "the rows do not name their documents")
    if all(_are_consecutive_numbers(names) for names in (split.documents, corpus.train.documents)):
        return build_inapplicable_result(name, "the documents of each split are numbered from the start")
    shared_documents = sorted(documents & train_documents)
    procedure = (
        f"{len(documents):,} documents of {split.name} looked up by name in the {len(train_documents):,} of train"
    )
    if not shared_documents:
        return CheckResult(name, True, procedure, "none has rows in train", "The score is on new documents.")
    observation = f"{len(shared_documents):,} have rows in train, such as {shared_documents[0]!r}"
    interpretation = (
        "Rows of one document resemble each other, so the score is better than on new documents. Split by document."
    )
    return CheckResult(name, False, procedure, observation, interpretation, failure_reason="documents of test in train")


def _are_consecutive_numbers(document_names: Sequence[str]) -> bool:
    """Return whether splits only number their documents, from 0 or 1: equal names are then no shared documents."""
    numbers = sorted({int(name) for name in document_names if name.isdecimal()})
    return len(numbers) == len(set(document_names)) and numbers in (
        [*range(len(numbers))],
        [*range(1, len(numbers) + 1)],
    )


def audit_held_out_splits(corpus: Corpus) -> CheckResult:
    """Check whether test was taken from the training file although the source provides a validation split."""
    name, procedure = "held-out splits", "splits that the source does not have"
    if HELD_OUT_TEST_ORIGIN not in corpus.origin:
        return CheckResult(name, True, procedure, "the source has a test split")
    (test,) = corpus.get_test_splits()
    num_rows = len(corpus.train.rows) + len(test.rows)
    if corpus.validation is None or HELD_OUT_VALIDATION_ORIGIN in corpus.origin:
        return CheckResult(name, True, procedure, f"held out from {num_rows:,} or more rows: {corpus.origin}")
    observation = f"{len(test.rows):,} of {num_rows:,} rows of train were held out as test"
    interpretation = (
        "The source has train and validation files but no test file, so models are trained on less than its train "
        "file. Name a test file with data.files to train on all of it."
    )
    return CheckResult(name, False, procedure, observation, interpretation, failure_reason="test cut from train")


def get_row_noun(corpus: Corpus) -> str:
    """Return what check results call the rows of a corpus: lines, unless they have labels."""
    return "rows" if corpus.has_labels else "lines"


def _describe_leak_search(corpus: Corpus, split: Split, source_name: str, overlap: TextOverlap) -> str:
    """Describe how a split was searched for leaks: how many rows were looked up, and by which kinds of match."""
    num_rows, num_compared = len(split.rows), overlap.num_compared
    num_source_rows = len(corpus.splits[source_name].rows)
    near = "nearly" if num_compared == num_rows else f"for {num_compared:,} of them (sampled evenly) nearly"
    return (
        f"{num_rows:,} {get_row_noun(corpus)} of {split.name} looked up in the {num_source_rows:,} of {source_name}: "
        f" verbatim, up to case, punctuation and whitespace, and {near}, by word n-grams"
    )


def _describe_leak(overlap: TextOverlap, num_seen: int, noun: str, split_name: str, source_name: str) -> str:
    """Describe the extent of a leak: how many rows occur in the second split, and the share of copied words."""
    num_verbatim, num_copies = int(overlap.is_verbatim.sum()), int(overlap.is_copy.sum())
    num_near_copies, num_rows = int(overlap.is_near_copy.sum()), len(overlap.is_copy)
    copied_words = f"{overlap.copied_words:.1%} of the words are copied"
    if overlap.has_near_copies:
        near_copies = f", {num_near_copies} more as near copies"
    else:
        near_copies = f" ({num_near_copies} nearly do, as in ordinary text)" if num_near_copies else ""
    if not num_seen:
        return f"none of {num_rows} {noun} occurs in {source_name}{near_copies}; {copied_words}"
    return (
        f"{num_verbatim} of {num_rows} {noun} of {split_name} occur verbatim in {source_name} "
        f"({num_verbatim / num_rows:.1%}), {num_copies - num_verbatim} more up to case, punctuation and "
        f"whitespace{near_copies}; {num_rows - num_seen} are unseen; {copied_words}"
    )


def _interpret_leak(seen_share: float, noun: str) -> str:
    """Explain how the share of held-out rows that were seen in train affects the scores."""
    advice = f"use the scores on unseen {noun}"
    if seen_share > 0.5:
        return f"Scores on all {noun} mostly measure memorization; {advice}."
    if seen_share > 0.05:
        return f"Scores on all {noun} partly measure memorization; {advice}."
    return f"Too few to change scores by much; {advice} if the result is close."
