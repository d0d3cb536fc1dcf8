"""Find text that also occurs in a different text, using word n-grams.

N-grams may cross row boundaries. A row is a near copy if at least `NEAR_COPY_SHARE` of its words lie in
`NGRAM_WORDS`-grams that the other text contains with at most one word changed, and not each of them in a different
place. This finds rows with changed words, rows inside longer rows, joined and split rows, and sliding windows. A row is
also a near copy if a row of the other text has the same words in any order, with at most one of them changed, added or
removed, or contains most of its rare words (see `rare_word_matches`). A word is copied if its row is a copy or a near
copy, or if it lies in a run of `LONG_RUN_WORDS` words that the other text contains verbatim.
docs/explanation/data-checks.md gives the shares that were measured on ordinary corpora.

Memory is linear in the rows that are looked up; time is linear in both texts, which are read in chunks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress, islice

import numpy as np
from numpy.typing import NDArray

from headtohead.audit.data_checks.ngram_lookup import HashLookup, NgramLookup
from headtohead.audit.data_checks.rare_word_matches import RareWordMatcher
from headtohead.audit.data_checks.word_hashing import (
    WordHasher,
    has_no_spaces,
    hash_ngrams,
    hash_word_bags,
    normalize_text,
)

NGRAM_WORDS = 6
LONG_RUN_WORDS = 13
NEAR_COPY_SHARE = 0.8
MAX_ORDINARY_SHARE = 0.1
"""share of near copies or copied words up to which text overlaps as ordinary text does"""
MAX_COMPARED_WORDS = 2**20
"""number of words whose n-grams are looked up; rows in longer texts are sampled evenly, to limit memory"""
MIN_SHARE_IN_ONE_PLACE = 0.35
"""share of the n-grams of a near copy that lie close together in the other text; in text that is generated from a
template, or written without spaces, the n-grams of ordinary rows occur, but each in a different place"""
SIMILAR_SHARE = 0.6
"""a row is a near copy if a row of the other text contains this share of its rare words, weighted by information"""
RELATED_SHARE = 0.4
"""limit that replaces SIMILAR_SHARE if near copies are more common than in ordinary text"""


@dataclass(frozen=True)
class TextOverlap:
    """The rows of one split that also occur in a second split, and the share of copied words."""

    is_verbatim: NDArray[np.bool_]
    is_copy: NDArray[np.bool_]
    """verbatim, or equal up to case, punctuation and whitespace"""
    is_near_copy: NDArray[np.bool_]
    """near copies that are not copies; false for rows that were not sampled"""
    copied_words: float
    """share of all words of the split that are copied"""
    num_compared: int
    """number of rows whose n-grams were looked up"""
    num_uncertain: int = 0
    """number of near copies that only their rare words reveal"""

    @property
    def near_copy_share(self) -> float:
        """Share of near copies among the rows whose n-grams were looked up."""
        return float(self.is_near_copy.sum()) / max(1, self.num_compared)

    @property
    def has_near_copies(self) -> bool:
        """Whether there are more near copies than in ordinary text."""
        return self.near_copy_share > MAX_ORDINARY_SHARE

    @property
    def is_incomplete(self) -> bool:
        """Whether many near copies are so much changed that others were probably missed."""
        return self.num_uncertain > MAX_ORDINARY_SHARE * self.num_compared

    @property
    def is_seen(self) -> NDArray[np.bool_]:
        """Mask of seen rows: copies and, if there are more near copies than in ordinary text, near copies."""
        return self.is_copy | self.is_near_copy if self.has_near_copies else self.is_copy


def find_overlap(rows: Sequence[str], source_rows: Iterable[str]) -> TextOverlap:
    """Find the rows whose text overlaps with that of `source_rows`, which is read once."""
    unique_rows, normalized_rows = set(rows), {normalize_text(row) for row in rows}
    stride = _choose_sampling_stride(rows)
    sampled_rows = np.arange(0, len(rows), stride)
    hasher = WordHasher()
    hashes, row_ends = hasher.hash_rows(islice(rows, 0, None, stride))
    ngrams, long_runs = NgramLookup(hashes, NGRAM_WORDS, allow_change=True), NgramLookup(hashes, LONG_RUN_WORDS)
    bag_hashes, bag_rows = hash_word_bags(hashes, row_ends, min_words=NGRAM_WORDS)
    word_bags, rare_words = HashLookup(bag_hashes), RareWordMatcher(hashes, row_ends)
    verbatim_in_source, normalized_in_source = set(), set()

    def record_exact_copies() -> Iterator[str]:
        """Yield the source rows and record which verbatim and normalized rows occur among them."""
        for row in source_rows:
            if row in unique_rows:
                verbatim_in_source.add(row)
            if (normalized := normalize_text(row)) in normalized_rows:
                normalized_in_source.add(normalized)
            yield row

    for chunk, chunk_row_ends in hasher.hash_in_chunks(record_exact_copies(), LONG_RUN_WORDS - 1):
        ngrams.find_in(chunk)
        long_runs.find_in(chunk)
        word_bags.find(hash_word_bags(chunk, chunk_row_ends, min_words=NGRAM_WORDS)[0])
        rare_words.add_source_chunk(chunk, chunk_row_ends)
    is_copy = np.array([normalize_text(row) in normalized_in_source for row in rows], dtype=np.bool_)
    lengths = np.diff(row_ends, prepend=0)
    covered_shares = _count_by_row(ngrams.compute_covered_words(), row_ends) / np.maximum(lengths, 1)
    is_in_one_place = ngrams.compute_shares_in_one_place(row_ends) >= MIN_SHARE_IN_ONE_PLACE
    is_near_copy = np.zeros(len(rows), np.bool_)
    is_near_copy[sampled_rows] = (covered_shares >= NEAR_COPY_SHARE) & (lengths >= NGRAM_WORDS) & is_in_one_place
    is_near_copy[sampled_rows[bag_rows[word_bags.is_found]]] = True
    num_certain = int((is_near_copy & ~is_copy).sum())
    is_near_copy[sampled_rows[rare_words.find_matches(SIMILAR_SHARE)]] = True
    is_near_copy &= ~is_copy
    if is_near_copy.sum() > MAX_ORDINARY_SHARE * len(sampled_rows):
        is_near_copy[sampled_rows[rare_words.find_matches(RELATED_SHARE)]] = True
        is_near_copy &= ~is_copy
    num_uncertain = int(is_near_copy.sum()) - num_certain
    is_copied_row = (is_copy | is_near_copy)[sampled_rows]
    is_copied_word = (
        np.repeat(is_copied_row & select_counted_rows(lengths), lengths) | long_runs.compute_covered_words()
    )
    # Rows without words, such as "...", count as one word.
    num_copied_words = is_copied_word.sum() + is_copied_row[lengths == 0].sum()
    copied_share = float(num_copied_words / max(1, len(hashes) + (lengths == 0).sum()))
    is_verbatim = np.array([row in verbatim_in_source for row in rows], dtype=np.bool_)
    return TextOverlap(is_verbatim, is_copy, is_near_copy, copied_share, len(sampled_rows), num_uncertain)


def select_counted_rows(lengths: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return a mask of the rows whose overlap counts, given the number of words of each row.

    These are rows of at least `NGRAM_WORDS` words, since short lines such as "Thank you." or "else:" occur in every
    text of their kind; but all rows if most words are in shorter ones.
    """
    is_long = lengths >= NGRAM_WORDS
    return is_long if 2 * lengths[is_long].sum() >= lengths.sum() else np.ones_like(is_long)


def group_repeated_rows(rows: Sequence[str]) -> NDArray[np.int64]:
    """Return, for each row, the index of the first row with which it overlaps as a copy or near copy, or its own.

    Rows with the same index form a group, which counts as a single example.
    """
    # Exact copies, ignoring case, punctuation and whitespace.
    first_row_by_text: dict[str, int] = {}
    first_rows = [first_row_by_text.setdefault(normalize_text(row), index) for index, row in enumerate(rows)]
    group_ids = np.array(first_rows, np.int64)
    stride = _choose_sampling_stride(rows)
    is_sampled = [index == first and index % stride == 0 for index, first in enumerate(first_rows)]
    sampled_rows = np.flatnonzero(is_sampled)
    hashes, row_ends = WordHasher().hash_rows(compress(rows, is_sampled))
    lengths = np.diff(row_ends, prepend=0)
    # Near copies: rows that share most of their n-grams, each with one word changed.
    if len(hashes) >= NGRAM_WORDS:
        word_rows = np.repeat(np.arange(len(sampled_rows)), lengths)
        is_inside_row = word_rows[: len(hashes) - NGRAM_WORDS + 1] == word_rows[NGRAM_WORDS - 1 :]
        ngram_hashes = hash_ngrams(hashes, NGRAM_WORDS, allow_change=True)[is_inside_row]
        ngram_rows = word_rows[: len(is_inside_row)][is_inside_row]
        _, first_positions, inverse = np.unique(ngram_hashes, return_index=True, return_inverse=True)
        first_ngram_rows = ngram_rows[first_positions // NGRAM_WORDS][inverse.reshape(ngram_hashes.shape)]
        # Pairs of (n-gram, earlier row), each counted once however many of its words may be left out.
        ngram_indices = np.repeat(np.arange(len(ngram_hashes)), NGRAM_WORDS)
        ngram_indices, earlier_rows = np.divmod(
            np.unique(ngram_indices * len(sampled_rows) + first_ngram_rows.ravel()), len(sampled_rows)
        )
        row_pairs, num_shared_ngrams = np.unique(
            ngram_rows[ngram_indices] * len(sampled_rows) + earlier_rows, return_counts=True
        )
        later_rows, earlier_rows = np.divmod(row_pairs, len(sampled_rows))
        is_near_copy = num_shared_ngrams >= NEAR_COPY_SHARE * (lengths[later_rows] - NGRAM_WORDS + 1)
        is_near_copy &= later_rows > earlier_rows
        group_ids[sampled_rows[later_rows[is_near_copy]]] = group_ids[sampled_rows[earlier_rows[is_near_copy]]]
    # Follow each chain of copies back to its first row.
    while (group_ids != group_ids[group_ids]).any():
        group_ids = group_ids[group_ids]
    return group_ids


def _choose_sampling_stride(rows: Sequence[str]) -> int:
    """Return the stride that samples rows evenly down to about `MAX_COMPARED_WORDS` words; 1 selects all rows."""
    num_words = sum(len(row) if has_no_spaces(row) else row.count(" ") + 1 for row in rows)
    return max(1, -(-num_words // MAX_COMPARED_WORDS))


def _count_by_row(is_counted: NDArray[np.bool_], row_ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the number of words in each row for which `is_counted` (words,) is true."""
    cumulative_counts = np.concatenate([[0], np.cumsum(is_counted)])
    return np.diff(cumulative_counts[row_ends], prepend=0)
