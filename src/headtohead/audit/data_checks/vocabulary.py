"""Leakage through the vocabulary: tokens that are known only because held-out text was used to build it.

A word that never occurs in train cannot be learned, but a model that reserves probability for such words is rewarded
for it. The first check finds held-out tokens that are in the vocabulary but not in train, and determines whether they
come from held-out rows. A second check reports the fraction of out-of-vocabulary tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from headtohead.audit.data_checks.word_hashing import normalize_text
from headtohead.audit.result import CheckResult, build_inapplicable_result
from headtohead.data.splits import Corpus, Split
from headtohead.data.tokenization.tokenizers import TokenizerProtocol

VOCABULARY_CHECK_NAME = "vocabulary"
UNKNOWN_CHECK_NAME = "unknown tokens"

SplitTokenCounts = Mapping[str, NDArray[np.int64]]
"""count of each vocabulary token, by split"""
ROWS_PER_BLOCK = 2**14
MIN_TEST_TOKENS = 10
"""number of the longest tokens outside train that must occur in test before a given vocabulary is suspected"""
MIN_UNKNOWN_TOKENS = 100
"""number of unknown tokens in a test split from which its text may be written differently than that of train"""
MAX_UNKNOWN_SHARE, MAX_UNKNOWN_RATIO = 0.3, 3.0
"""largest share of unknown tokens in test: absolute, and relative to that in train"""
MAX_TEST_SHARE = 0.5
"""share of the longest tokens outside train that occur in test above which a given vocabulary was fitted on test"""


@dataclass(frozen=True)
class _TextOutsideTrain:
    """Text outside the train split that was used to build the vocabulary."""

    num_rows: int
    normalized_rows: frozenset[str]
    """rows outside train, by which copies are recognized"""
    train_rows: Sequence[str]
    joined_text: str
    """all rows outside train, in lower case"""
    joined_text_without_held_out: str
    """rows outside train that are not held-out rows, in lower case"""


@dataclass(frozen=True)
class _SplitCoverage:
    """Token counts for one held-out split, grouped by how each token entered the vocabulary."""

    split_name: str
    num_tokens: int
    tokens_outside_train: int
    """known tokens that do not occur in train"""
    tokens_in_held_out_rows: int
    """of those, tokens that occur outside train in held-out rows only"""
    tokens_in_no_text: int
    """of those, tokens that occur in no text for the vocabulary"""
    num_rows: int
    num_leaked_rows: int
    """rows of the split that the vocabulary was built from"""


def audit_vocabulary(
    corpus: Corpus, tokenizer: TokenizerProtocol, token_counts: SplitTokenCounts, *, is_given: bool = False
) -> CheckResult:
    """Measure the fraction of held-out tokens that are in the vocabulary only because of text outside train.

    `is_given` means that the tokenizer was read from a file, so its training text is unknown.
    """
    if tokenizer.kind == "bytes":
        return build_inapplicable_result(VOCABULARY_CHECK_NAME, "bytes need no vocabulary")
    if is_given or tokenizer.kind in ("file", "pretrained"):
        return _audit_given_vocabulary(corpus, tokenizer, token_counts)
    outside = _collect_text_outside_train(corpus)
    coverages = [_measure_split_coverage(split, tokenizer, token_counts, outside) for split in corpus.get_test_splits()]
    noun = "rows" if corpus.has_labels else "lines"
    num_unused = tokenizer.vocab_size - int(np.count_nonzero(token_counts["train"]))
    procedure = (
        f"known held-out tokens that do not occur in train ({num_unused:,} of {tokenizer.vocab_size:,} entries), "
        f"looked up in the {outside.num_rows:,} {noun} outside train that the vocabulary was built from"
    )
    observation = "; ".join(_describe_coverage(coverage, noun) for coverage in coverages)
    if not any(coverage.tokens_outside_train for coverage in coverages):
        interpretation = "The vocabulary contains no information on held-out text."
        return CheckResult(
            VOCABULARY_CHECK_NAME, True, procedure, "every known held-out token occurs in train", interpretation
        )
    if any(coverage.tokens_in_no_text for coverage in coverages):
        interpretation = "The vocabulary has words that occur in held-out text only: it was built from held-out text."
        return CheckResult(
            VOCABULARY_CHECK_NAME,
            False,
            procedure,
            observation,
            interpretation,
            failure_reason="vocabulary from held-out text",
        )
    if any(coverage.tokens_in_held_out_rows for coverage in coverages):
        interpretation = (
            "The vocabulary was built from a training file that contains held-out text. A model that reserves "
            "probability for words it was not trained on gains from that."
        )
        return CheckResult(
            VOCABULARY_CHECK_NAME,
            False,
            procedure,
            observation,
            interpretation,
            failure_reason="vocabulary from held-out text",
        )
    interpretation = "These words occur in other training text as well: no leak."
    return CheckResult(VOCABULARY_CHECK_NAME, True, procedure, observation, interpretation)


def _audit_given_vocabulary(
    corpus: Corpus, tokenizer: TokenizerProtocol, token_counts: SplitTokenCounts
) -> CheckResult:
    """Check that a tokenizer from a file was not fitted on test text.

    Among a general vocabulary's longest tokens that train does not contain, few occur in test. If most of them do, the
    vocabulary was fitted on test.
    """
    test_counts = np.sum([token_counts[split.name] for split in corpus.get_test_splits()], axis=0)
    if int(test_counts.sum()) > int(token_counts["train"].sum()):
        return build_inapplicable_result(
            VOCABULARY_CHECK_NAME, "test is longer than train, so it has tokens of its own"
        )
    unused_ids = [token_id for token_id in _find_longest_tokens(tokenizer) if token_counts["train"][token_id] == 0]
    num_in_test = int((test_counts[unused_ids] > 0).sum())
    procedure = f"the {len(unused_ids):,} longest tokens that do not occur in train, looked up in test"
    observation = f"{num_in_test:,} of {len(unused_ids):,} occur in test"
    if num_in_test < MIN_TEST_TOKENS or num_in_test <= MAX_TEST_SHARE * len(unused_ids):
        interpretation = "The vocabulary is not that of the test text."
        return CheckResult(VOCABULARY_CHECK_NAME, True, procedure, observation, interpretation)
    return CheckResult(
        VOCABULARY_CHECK_NAME,
        False,
        procedure,
        observation,
        "The tokenizer was fitted on test text: its tokens are words of that text. Fit it on train only.",
        failure_reason="vocabulary from held-out text",
    )


def _find_longest_tokens(tokenizer: TokenizerProtocol) -> list[int]:
    """Return the vocabulary's tokens of at least 3 characters that are no prefix or suffix of others, such as words."""
    tokens = [tokenizer.id_to_token(token_id) for token_id in range(tokenizer.vocab_size)]
    affixes = {token[:end] for token in tokens for end in range(3, len(token))}
    affixes |= {token[start:] for token in tokens for start in range(1, len(token) - 2)}
    return [token_id for token_id, token in enumerate(tokens) if len(token) >= 3 and token not in affixes]


def _describe_coverage(coverage: _SplitCoverage, noun: str) -> str:
    """Return a sentence about the tokens in a split that are in the vocabulary only because of text outside train."""
    percent = _format_percentage(coverage.tokens_outside_train, coverage.num_tokens)
    description = (
        f"{coverage.split_name}: {percent} of {coverage.num_tokens:,} tokens are known only through text outside train"
    )
    if coverage.num_leaked_rows:
        percent = _format_percentage(coverage.tokens_in_held_out_rows, coverage.num_tokens)
        leaked_rows = f"{coverage.num_leaked_rows} of its {coverage.num_rows} {noun}"
        description += f", which contains {leaked_rows} ({percent} occur there in held-out {noun} only)"
    if coverage.tokens_in_no_text:
        description += f"; {coverage.tokens_in_no_text} of them occur in no training text"
    return description


def _collect_text_outside_train(corpus: Corpus) -> _TextOutsideTrain:
    """Return the text outside train that the vocabulary was built from, without labels at the start of table lines."""
    if corpus.vocabulary_rows is corpus.train.rows:
        return _TextOutsideTrain(0, frozenset(), corpus.train.rows, "", "")
    train_rows = set(corpus.train.rows)
    rows = [row for line in corpus.vocabulary_rows if (row := line.rpartition("\t")[2]) not in train_rows]
    normalized_rows = [normalize_text(row) for row in rows]
    held_out_rows = {normalize_text(row) for split in corpus.get_test_splits() for row in split.rows}
    rows_not_held_out = [
        row for row, normalized in zip(rows, normalized_rows, strict=True) if normalized not in held_out_rows
    ]
    text, text_not_held_out = ("\n".join(selected).casefold() for selected in (rows, rows_not_held_out))
    return _TextOutsideTrain(len(rows), frozenset(normalized_rows), corpus.train.rows, text, text_not_held_out)


def _measure_split_coverage(
    split: Split, tokenizer: TokenizerProtocol, token_counts: SplitTokenCounts, text_outside_train: _TextOutsideTrain
) -> _SplitCoverage:
    """Count the vocabulary's tokens of a held-out split that do not occur in train, grouped by where they do occur."""
    counts = token_counts[split.name]
    is_not_in_train = (counts > 0) & (token_counts["train"] == 0)
    special_ids = {tokenizer.unk_id, tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id}
    is_not_in_train[[token_id for token_id in special_ids if token_id is not None]] = False
    ids_outside_train = np.flatnonzero(is_not_in_train)
    is_whole_word = tokenizer.kind == "words"
    outside_train = in_held_out = in_no_text = 0
    for token_id, count in zip(ids_outside_train.tolist(), counts[ids_outside_train].tolist(), strict=True):
        word = tokenizer.decode([token_id]).strip().casefold()
        # A subword may occur in train only inside longer subwords; single bytes always do.
        if tokenizer.kind == "bpe" and (
            len(tokenizer.id_to_token(token_id)) == 1 or _is_word_in_rows(word, text_outside_train.train_rows)
        ):
            continue
        outside_train += count
        if contains_word(word, text_outside_train.joined_text_without_held_out, match_whole_word=is_whole_word):
            continue
        if contains_word(word, text_outside_train.joined_text, match_whole_word=is_whole_word):
            in_held_out += count
        else:
            in_no_text += count
    num_leaked = sum(normalize_text(row) in text_outside_train.normalized_rows for row in split.rows)
    return _SplitCoverage(
        split.name, int(counts.sum()), outside_train, in_held_out, in_no_text, len(split.rows), num_leaked
    )


def _is_word_in_rows(word: str, rows: Sequence[str]) -> bool:
    """Return whether a vocabulary's word occurs in `rows`, read in blocks because they may not fit into memory."""
    row_iterator = iter(rows)
    while block := list(islice(row_iterator, ROWS_PER_BLOCK)):
        if contains_word(word, "\n".join(block).casefold(), match_whole_word=False):
            return True
    return False


def contains_word(word: str, text: str, *, match_whole_word: bool) -> bool:
    """Return whether a text contains a word of the vocabulary; with `match_whole_word`, not only inside longer words.

    Punctuation is always considered present, because tokenizers rewrite it.
    """
    if not any(character.isalnum() for character in word):
        return True
    start = text.find(word)
    while start >= 0:
        end = start + len(word)
        is_inside = (start > 0 and text[start - 1].isalnum()) or (end < len(text) and text[end].isalnum())
        if not (match_whole_word and is_inside):
            return True
        start = text.find(word, start + 1)
    return False


def audit_unknown_tokens(
    corpus: Corpus, tokenizer: TokenizerProtocol, token_counts: SplitTokenCounts, unknown_rate: float = 0.0
) -> CheckResult:
    """Measure the fraction of out-of-vocabulary tokens in each split.

    Fails if a large part of a test split is out of vocabulary, or if out-of-vocabulary tokens occur in the held-out
    text of a language model but never in training.
    """
    if tokenizer.unk_id is None:
        return build_inapplicable_result(UNKNOWN_CHECK_NAME, f"a tokenizer of {tokenizer.kind} has no unknown tokens")
    counts = {name: int(split_counts[tokenizer.unk_id]) for name, split_counts in token_counts.items()}
    observation = ", ".join(
        f"{name} {_format_percentage(count, int(token_counts[name].sum()))}" for name, count in counts.items()
    )
    procedure = "share of tokens outside the vocabulary in each split"
    if unknown_rate:
        observation += f"; {unknown_rate:.1%} of training words are replaced by the unknown token"
    shares = {name: count / max(1, int(token_counts[name].sum())) for name, count in counts.items()}
    different_splits = [
        split.name
        for split in corpus.get_test_splits()
        if counts[split.name] >= MIN_UNKNOWN_TOKENS
        and shares[split.name] > max(MAX_UNKNOWN_SHARE, MAX_UNKNOWN_RATIO * shares["train"])
    ]
    if different_splits:
        return CheckResult(
            UNKNOWN_CHECK_NAME,
            False,
            procedure,
            observation,
            f"A large part of {' and '.join(different_splits)} is unknown to the tokenizer: check whether its text is "
            "written differently than that of train, such as in capitals or with markup.",
            failure_reason="test text is unknown to the tokenizer",
        )
    if counts["train"] or unknown_rate:
        return CheckResult(UNKNOWN_CHECK_NAME, True, procedure, observation, "The unknown token is trained.")
    if not any(counts[split.name] for split in corpus.get_test_splits()):
        return CheckResult(UNKNOWN_CHECK_NAME, True, procedure, observation, "There are no unknown tokens.")
    if corpus.has_labels:
        interpretation = "The unknown token never occurs in training: its embedding stays random."
        return CheckResult(UNKNOWN_CHECK_NAME, True, procedure, observation, interpretation)
    interpretation = (
        "The unknown token never occurs in training, so the model gives it almost no probability, which alone causes "
        "a large part of the held-out perplexity. Set data.word_dropout."
    )
    return CheckResult(
        UNKNOWN_CHECK_NAME, False, procedure, observation, interpretation, failure_reason="unknown tokens never trained"
    )


def _format_percentage(count: int, total: int) -> str:
    """Return a share of tokens as a percentage."""
    return f"{count / max(1, total):.1%}"
