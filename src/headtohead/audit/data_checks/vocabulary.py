"""Leaks through the vocabulary: tokens that a model can name only because held-out text was read when they were listed.

A word that never occurs in train cannot be learned, but a model that keeps a share of its mass for such words is
rewarded for them. So: which held-out tokens are known and do not occur in train, where were they read, and does that
text hold held-out rows? Beside it, the share of tokens that are unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from headtohead.audit.data_checks.leakage import normalize_text
from headtohead.audit.result import CheckResult, build_not_applicable
from headtohead.data.splits import Corpus, Split
from headtohead.data.tokenizers import TokenizerProtocol

VOCABULARY_CHECK_NAME, UNKNOWN_CHECK_NAME = "vocabulary", "unknown tokens"

SplitTokenCounts = Mapping[str, NDArray[np.int64]]
"""of each split, how often each token of the vocabulary stands there"""
ROWS_PER_BLOCK = 2**14


@dataclass(frozen=True)
class _TextOutsideTrain:
    """What the vocabulary was made from besides train."""

    rows: int
    folded: frozenset[str]
    train: Sequence[str]
    """the rows of train itself, to look pieces of words up in"""
    text: str
    """all text outside train"""
    text_without_held_out: str
    """what of that is no held-out row"""


@dataclass(frozen=True)
class _SplitCoverage:
    """One held-out split, held against the vocabulary."""

    name: str
    tokens: int
    tokens_outside_train: int
    """tokens that are known and do not occur in train"""
    tokens_in_held_out_rows: int
    """of those, tokens that outside train stand in held-out rows only"""
    tokens_in_no_text: int
    """of those, tokens that stand in no text which the vocabulary was to be made from"""
    rows: int
    num_leaked_rows: int
    """rows of the split that the vocabulary was made from"""


def audit_vocabulary(corpus: Corpus, tokenizer: TokenizerProtocol, token_counts: SplitTokenCounts) -> CheckResult:
    """What share of the held-out tokens is known only through text outside train."""
    if tokenizer.kind in ("bytes", "file", "pretrained"):
        why = "bytes are learned from no text" if tokenizer.kind == "bytes" else "the tokenizer was made elsewhere"
        return build_not_applicable(VOCABULARY_CHECK_NAME, why)
    outside = _collect_text_outside_train(corpus)
    readings = [_measure_split_coverage(split, tokenizer, token_counts, outside) for split in corpus.get_test_splits()]
    noun = "rows" if corpus.has_labels else "lines"
    listed = tokenizer.vocab_size - int(np.count_nonzero(token_counts["train"]))
    tried = (
        f"held-out tokens that are known and do not occur in train ({listed:,} of {tokenizer.vocab_size:,} entries), "
        f"looked up in the {outside.rows:,} {noun} outside train that the vocabulary was made from"
    )
    found = "; ".join(_describe_coverage(one, noun) for one in readings)
    if not any(one.tokens_outside_train for one in readings):
        meaning = "The vocabulary knows nothing of the held-out text that train does not."
        return CheckResult(
            VOCABULARY_CHECK_NAME, True, tried, "every held-out token that is known occurs in train", meaning
        )
    if any(one.tokens_in_no_text for one in readings):
        meaning = "The vocabulary holds words of held-out text that stand in no training text: it was made from it."
        return CheckResult(
            VOCABULARY_CHECK_NAME, False, tried, found, meaning, failure_reason="vocabulary from held-out text"
        )
    if any(one.tokens_in_held_out_rows for one in readings):
        meaning = (
            "The vocabulary was made from a training file that holds held-out text: it names words that nobody could "
            "have known. A model that keeps some mass for words it was not trained on gains by that."
        )
        return CheckResult(
            VOCABULARY_CHECK_NAME, False, tried, found, meaning, failure_reason="vocabulary from held-out text"
        )
    meaning = "These words stand in other training text too, beside any held-out row that it holds: no leak."
    return CheckResult(VOCABULARY_CHECK_NAME, True, tried, found, meaning)


def _describe_coverage(coverage: _SplitCoverage, noun: str) -> str:
    known = f"{_format_percentage(coverage.tokens_outside_train, coverage.tokens)} of {coverage.tokens:,} tokens"
    said = f"{coverage.name}: {known} are known only through text outside train"
    if coverage.num_leaked_rows:
        said += (
            f", which holds {coverage.num_leaked_rows} of its {coverage.rows} {noun} ({_format_percentage(coverage.tokens_in_held_out_rows, coverage.tokens)} stand there in "  # noqa: E501
            f"held-out {noun} alone)"
        )
    if coverage.tokens_in_no_text:
        said += f"; {coverage.tokens_in_no_text} of them stand in no training text at all"
    return said


def _collect_text_outside_train(corpus: Corpus) -> _TextOutsideTrain:
    """Rows beyond train. A line of a table comes with its label in front."""
    if corpus.vocabulary_rows is corpus.train.rows:
        return _TextOutsideTrain(0, frozenset(), corpus.train.rows, "", "")
    train = set(corpus.train.rows)
    texts = [row for line in corpus.vocabulary_rows if (row := line.rpartition("\t")[2]) not in train]
    folded = [normalize_text(text) for text in texts]
    held = {normalize_text(row) for split in corpus.get_test_splits() for row in split.rows}
    clean = [text for text, one in zip(texts, folded, strict=True) if one not in held]
    outside, unheld = ("\n".join(rows).casefold() for rows in (texts, clean))
    return _TextOutsideTrain(len(texts), frozenset(folded), corpus.train.rows, outside, unheld)


def _measure_split_coverage(
    split: Split, tokenizer: TokenizerProtocol, token_counts: SplitTokenCounts, text_outside_train: _TextOutsideTrain
) -> _SplitCoverage:
    own = token_counts[split.name]
    foreign = (own > 0) & (token_counts["train"] == 0)
    special = {tokenizer.unk_id, tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id}
    foreign[[i for i in special if i is not None]] = False
    ids = np.flatnonzero(foreign)
    counts = own[ids]
    whole = tokenizer.kind == "words"
    elsewhere = in_held = nowhere = 0
    for token, count in zip(ids.tolist(), counts.tolist(), strict=True):
        word = tokenizer.decode([token]).strip().casefold()
        # A piece of a word may be known from train and yet be used there only inside longer pieces; bytes always are.
        if tokenizer.kind == "bpe" and (
            len(tokenizer.id_to_token(token)) == 1 or _is_word_in_rows(word, text_outside_train.train)
        ):
            continue
        elsewhere += count
        if contains_word(word, text_outside_train.text_without_held_out, match_whole_word=whole):
            continue
        if contains_word(word, text_outside_train.text, match_whole_word=whole):
            in_held += count
        else:
            nowhere += count
    held = sum(normalize_text(row) in text_outside_train.folded for row in split.rows)
    return _SplitCoverage(split.name, int(own.sum()), elsewhere, in_held, nowhere, len(split.rows), held)


def _is_word_in_rows(word: str, rows: Sequence[str]) -> bool:
    """Is the word anywhere in these rows? They are looked through in blocks: there may be more than memory holds."""
    every = iter(rows)
    while block := list(islice(every, ROWS_PER_BLOCK)):
        if contains_word(word, "\n".join(block).casefold(), match_whole_word=False):
            return True
    return False


def contains_word(word: str, text: str, *, match_whole_word: bool) -> bool:
    """Is the word in the text; if `whole`, not inside a longer one? Signs that a tokenizer rewrites count as there."""
    if not any(c.isalnum() for c in word):
        return True
    at = text.find(word)
    while at >= 0:
        end = at + len(word)
        inside = (at > 0 and text[at - 1].isalnum()) or (end < len(text) and text[end].isalnum())
        if not (match_whole_word and inside):
            return True
        at = text.find(word, at + 1)
    return False


def audit_unknown_tokens(
    corpus: Corpus, tokenizer: TokenizerProtocol, token_counts: SplitTokenCounts, unknown_rate: float = 0.0
) -> CheckResult:
    """The share of unknown tokens in each split, and whether training ever shows one."""
    if tokenizer.unk_id is None:
        return build_not_applicable(UNKNOWN_CHECK_NAME, f"nothing is unknown to a tokenizer of {tokenizer.kind}")
    counts = {name: int(own[tokenizer.unk_id]) for name, own in token_counts.items()}
    found = ", ".join(
        f"{name} {_format_percentage(count, int(token_counts[name].sum()))}" for name, count in counts.items()
    )
    tried = "the share of tokens outside the vocabulary in each split"
    if unknown_rate:
        found += f"; {unknown_rate:.1%} of training words are made unknown"
    if counts["train"] or unknown_rate:
        return CheckResult(UNKNOWN_CHECK_NAME, True, tried, found, "Training shows the unknown token too.")
    if not any(counts[split.name] for split in corpus.get_test_splits()):
        return CheckResult(UNKNOWN_CHECK_NAME, True, tried, found, "Nothing is unknown.")
    if corpus.has_labels:
        meaning = "Training never shows the unknown token: such words are read as one fixed, random vector."
        return CheckResult(UNKNOWN_CHECK_NAME, True, tried, found, meaning)
    meaning = (
        "Training never shows the unknown token, and a model gives it next to no mass: that alone is a large part "
        "of the held-out perplexity. Set data.word_dropout."
    )
    return CheckResult(UNKNOWN_CHECK_NAME, False, tried, found, meaning, failure_reason="unknown tokens never trained")


def _format_percentage(count: int, total: int) -> str:
    return f"{count / max(1, total):.1%}"
