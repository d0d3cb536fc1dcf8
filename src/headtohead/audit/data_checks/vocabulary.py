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

from headtohead.audit.data_checks.leakage import fold
from headtohead.audit.result import Finding, does_not_apply
from headtohead.data.splits import Corpus, Split
from headtohead.data.tokenizers import Tokens

NAME, UNKNOWN = "vocabulary", "unknown tokens"

CountsOf = Mapping[str, NDArray[np.int64]]
"""of each split, how often each token of the vocabulary stands there"""
ROWS_AT_ONCE = 2**14


@dataclass(frozen=True)
class _Outside:
    """What the vocabulary was made from besides train."""

    rows: int
    folded: frozenset[str]
    train: Sequence[str]
    """the rows of train itself, to look pieces of words up in"""
    text: str
    """all text outside train"""
    clean: str
    """what of that is no held-out row"""


@dataclass(frozen=True)
class _Reading:
    """One held-out split, held against the vocabulary."""

    name: str
    tokens: int
    elsewhere: int
    """tokens that are known and do not occur in train"""
    in_held_rows: int
    """of those, tokens that outside train stand in held-out rows only"""
    nowhere: int
    """of those, tokens that stand in no text which the vocabulary was to be made from"""
    rows: int
    held: int
    """rows of the split that the vocabulary was made from"""


def audit_vocabulary(corpus: Corpus, tokenizer: Tokens, counts: CountsOf) -> Finding:
    """What share of the held-out tokens is known only through text outside train."""
    if tokenizer.kind in ("bytes", "file", "pretrained"):
        why = "bytes are learned from no text" if tokenizer.kind == "bytes" else "the tokenizer was made elsewhere"
        return does_not_apply(NAME, why)
    outside = _outside(corpus)
    readings = [_read(split, tokenizer, counts, outside) for split in corpus.held_out()]
    noun = "rows" if corpus.task == "classify" else "lines"
    listed = tokenizer.vocab_size - int(np.count_nonzero(counts["train"]))
    tried = (
        f"held-out tokens that are known and do not occur in train ({listed:,} of {tokenizer.vocab_size:,} entries), "
        f"looked up in the {outside.rows:,} {noun} outside train that the vocabulary was made from"
    )
    found = "; ".join(_said(one, noun) for one in readings)
    if not any(one.elsewhere for one in readings):
        meaning = "The vocabulary knows nothing of the held-out text that train does not."
        return Finding(NAME, True, tried, "every held-out token that is known occurs in train", meaning)
    if any(one.nowhere for one in readings):
        meaning = "The vocabulary holds words of held-out text that stand in no training text: it was made from it."
        return Finding(NAME, False, tried, found, meaning, reason="vocabulary from held-out text")
    if any(one.in_held_rows for one in readings):
        meaning = (
            "The vocabulary was made from a training file that holds held-out text: it names words that nobody could "
            "have known. A model that keeps some mass for words it was not trained on gains by that."
        )
        return Finding(NAME, False, tried, found, meaning, reason="vocabulary from held-out text")
    meaning = "These words stand in other training text too, beside any held-out row that it holds: no leak."
    return Finding(NAME, True, tried, found, meaning)


def _said(one: _Reading, noun: str) -> str:
    known = f"{_share(one.elsewhere, one.tokens)} of {one.tokens:,} tokens"
    said = f"{one.name}: {known} are known only through text outside train"
    if one.held:
        said += (
            f", which holds {one.held} of its {one.rows} {noun} ({_share(one.in_held_rows, one.tokens)} stand there in "
            f"held-out {noun} alone)"
        )
    if one.nowhere:
        said += f"; {one.nowhere} of them stand in no training text at all"
    return said


def _outside(corpus: Corpus) -> _Outside:
    """Rows beyond train. A line of a table comes with its label in front."""
    if corpus.vocabulary_rows is corpus.train.rows:
        return _Outside(0, frozenset(), corpus.train.rows, "", "")
    train = set(corpus.train.rows)
    texts = [row for line in corpus.vocabulary_rows if (row := line.rpartition("\t")[2]) not in train]
    folded = [fold(text) for text in texts]
    held = {fold(row) for split in corpus.held_out() for row in split.rows}
    clean = [text for text, one in zip(texts, folded, strict=True) if one not in held]
    outside, unheld = ("\n".join(rows).casefold() for rows in (texts, clean))
    return _Outside(len(texts), frozenset(folded), corpus.train.rows, outside, unheld)


def _read(split: Split, tokenizer: Tokens, counts_of: CountsOf, outside: _Outside) -> _Reading:
    own = counts_of[split.name]
    foreign = (own > 0) & (counts_of["train"] == 0)
    special = {tokenizer.unknown_id, tokenizer.pad_id, tokenizer.start_id, tokenizer.stop_id}
    foreign[[i for i in special if i is not None]] = False
    ids = np.flatnonzero(foreign)
    counts = own[ids]
    whole = tokenizer.kind == "words"
    elsewhere = in_held = nowhere = 0
    for token, count in zip(ids.tolist(), counts.tolist(), strict=True):
        word = tokenizer.decode([token]).strip().casefold()
        # A piece of a word may be known from train and yet be used there only inside longer pieces; bytes always are.
        if tokenizer.kind == "bpe" and (len(tokenizer.token(token)) == 1 or _in_rows(word, outside.train)):
            continue
        elsewhere += count
        if stands(word, outside.clean, whole=whole):
            continue
        if stands(word, outside.text, whole=whole):
            in_held += count
        else:
            nowhere += count
    held = sum(fold(row) in outside.folded for row in split.rows)
    return _Reading(split.name, int(own.sum()), elsewhere, in_held, nowhere, len(split.rows), held)


def _in_rows(word: str, rows: Sequence[str]) -> bool:
    """Is the word anywhere in these rows? They are looked through in blocks: there may be more than memory holds."""
    every = iter(rows)
    while block := list(islice(every, ROWS_AT_ONCE)):
        if stands(word, "\n".join(block).casefold(), whole=False):
            return True
    return False


def stands(word: str, text: str, *, whole: bool) -> bool:
    """Is the word in the text; if `whole`, not inside a longer one? Signs that a tokenizer rewrites count as there."""
    if not any(c.isalnum() for c in word):
        return True
    at = text.find(word)
    while at >= 0:
        end = at + len(word)
        inside = (at > 0 and text[at - 1].isalnum()) or (end < len(text) and text[end].isalnum())
        if not (whole and inside):
            return True
        at = text.find(word, at + 1)
    return False


def audit_unknown(corpus: Corpus, tokenizer: Tokens, counts_of: CountsOf, unknown: float = 0.0) -> Finding:
    """The share of unknown tokens in each split, and whether training ever shows one."""
    if tokenizer.unknown_id is None:
        return does_not_apply(UNKNOWN, f"nothing is unknown to a tokenizer of {tokenizer.kind}")
    counts = {name: int(own[tokenizer.unknown_id]) for name, own in counts_of.items()}
    found = ", ".join(f"{name} {_share(count, int(counts_of[name].sum()))}" for name, count in counts.items())
    tried = "the share of tokens outside the vocabulary in each split"
    if unknown:
        found += f"; {unknown:.1%} of training words are made unknown"
    if counts["train"] or unknown:
        return Finding(UNKNOWN, True, tried, found, "Training shows the unknown token too.")
    if not any(counts[split.name] for split in corpus.held_out()):
        return Finding(UNKNOWN, True, tried, found, "Nothing is unknown.")
    if corpus.task == "classify":
        meaning = "Training never shows the unknown token: such words are read as one fixed, random vector."
        return Finding(UNKNOWN, True, tried, found, meaning)
    meaning = (
        "Training never shows the unknown token, and a model gives it next to no mass: that alone is a large part "
        "of the held-out perplexity. Set data.unknown."
    )
    return Finding(UNKNOWN, False, tried, found, meaning, reason="unknown tokens never trained")


def _share(count: int, total: int) -> str:
    return f"{count / max(1, total):.1%}"
