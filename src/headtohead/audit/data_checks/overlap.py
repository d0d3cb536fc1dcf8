"""Find text that also occurs in a different text, using word n-grams.

Words are compared without case and punctuation, and n-grams may cross row boundaries. A row is a near copy if at
least `NEAR_COPY_SHARE` of its words lie in `NGRAM_WORDS`-grams that the other text contains with at most one word
changed. This finds rows with changed words, rows inside longer rows, joined and split rows, and sliding windows. A row
is also a near copy if another row has the same words in any order, with at most one of them changed, added or removed.
A word is copied if its row is a copy or a near copy, or if it lies in a run of `LONG_RUN_WORDS` words that the other
text contains verbatim. docs/explanation/data-checks.md gives the shares that were measured on ordinary corpora.

Rows without spaces, such as DNA, are compared by runs of `UNSPACED_RUN` characters instead of words.

Memory is linear in the rows that are looked up; time is linear in both texts, which are read in chunks.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import compress, islice

import numpy as np
from numpy.typing import NDArray

NGRAM_WORDS = 6
LONG_RUN_WORDS = 13
NEAR_COPY_SHARE = 0.8
MAX_ORDINARY_SHARE = 0.1
"""share of near copies or copied words up to which text overlaps as ordinary text does"""
MAX_COMPARED_WORDS = 2**20
"""number of words whose n-grams are looked up; rows in longer texts are sampled evenly, to limit memory"""
CHUNK_WORDS = 2**17
MAX_WORD_LENGTH, UNSPACED_RUN = 24, 12
"""a row has no spaces if its words are longer than that on average; its words are then all runs of that length"""
_HASH_FACTOR = 0x9E3779B97F4A7C15
# Scripts without spaces between words are compared by character.
_UNSPACED = r"\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_WORD_PATTERN = re.compile(rf"[{_UNSPACED}]|[^\W_{_UNSPACED}]+")

WordHashes = NDArray[np.uint64]


class _PunctuationRemover(dict[int, int | None]):
    """A lazily filled table for str.translate that removes punctuation and whitespace."""

    def __missing__(self, code: int) -> int | None:
        category = unicodedata.category(chr(code))
        self[code] = None if category[0] in "PZC" or category == "Sk" else code
        return self[code]


_REMOVE_PUNCTUATION = _PunctuationRemover()


@lru_cache(maxsize=2**17)
def normalize_text(text: str) -> str:
    """Return the text in lower case without punctuation and whitespace, or unchanged if nothing would be left."""
    return unicodedata.normalize("NFKC", text).casefold().translate(_REMOVE_PUNCTUATION) or text.strip()


@dataclass(frozen=True)
class TextOverlap:
    """The rows of one split that also occur in another, and the fraction of copied words."""

    is_verbatim: NDArray[np.bool_]
    is_copy: NDArray[np.bool_]
    """verbatim, or equal up to case, punctuation and whitespace"""
    is_near_copy: NDArray[np.bool_]
    """near copies that are not copies; false for rows that were not sampled"""
    copied_words: float
    """share of copied words"""
    num_compared: int
    """rows whose n-grams were looked up"""

    @property
    def near_copy_share(self) -> float:
        return float(self.is_near_copy.sum()) / max(1, self.num_compared)

    @property
    def has_near_copies(self) -> bool:
        """Whether there are more near copies than in ordinary text."""
        return self.near_copy_share > MAX_ORDINARY_SHARE

    @property
    def is_seen(self) -> NDArray[np.bool_]:
        """Mask of seen rows: copies and, if there are more near copies than in ordinary text, near copies."""
        return self.is_copy | self.is_near_copy if self.has_near_copies else self.is_copy


def find_overlap(rows: Sequence[str], source_rows: Iterable[str]) -> TextOverlap:
    """Look up rows in the text of `source_rows`, which is read once."""
    verbatim, normalized = set(rows), {normalize_text(row) for row in rows}
    stride = _choose_stride(rows)
    sampled_rows = np.arange(0, len(rows), stride)
    hasher = _WordHasher()
    words, row_ends = hasher.hash_rows(islice(rows, 0, None, stride))
    ngrams, long_runs = _NgramLookup(words, NGRAM_WORDS, allow_change=True), _NgramLookup(words, LONG_RUN_WORDS)
    bag_hashes, bag_rows = _hash_bags(words, row_ends)
    bags = _HashLookup(bag_hashes)
    verbatim_in_source, normalized_in_source = set(), set()

    def watch_rows() -> Iterator[str]:
        """Yield the source rows and record which verbatim and normalized texts occur among them."""
        for row in source_rows:
            if row in verbatim:
                verbatim_in_source.add(row)
            if (key := normalize_text(row)) in normalized:
                normalized_in_source.add(key)
            yield row

    for chunk, chunk_row_ends in hasher.hash_in_chunks(watch_rows()):
        ngrams.find_in(chunk)
        long_runs.find_in(chunk)
        bags.find(_hash_bags(chunk, chunk_row_ends)[0])
    is_copy = np.array([normalize_text(row) in normalized_in_source for row in rows], dtype=np.bool_)
    lengths = np.diff(row_ends, prepend=0)
    shares = _count_by_row(ngrams.cover_words(), row_ends) / np.maximum(lengths, 1)
    is_near_copy = np.zeros(len(rows), np.bool_)
    is_near_copy[sampled_rows] = (shares >= NEAR_COPY_SHARE) & (lengths >= NGRAM_WORDS)
    is_near_copy[sampled_rows[bag_rows[bags.is_found]]] = True
    is_near_copy &= ~is_copy
    is_copied_row = (is_copy | is_near_copy)[sampled_rows]
    is_copied_word = np.repeat(is_copied_row, lengths) | long_runs.cover_words()
    # Rows without words, such as "...", count as one word.
    num_copied = is_copied_word.sum() + is_copied_row[lengths == 0].sum()
    copied_words = float(num_copied / max(1, len(words) + (lengths == 0).sum()))
    is_verbatim = np.array([row in verbatim_in_source for row in rows], dtype=np.bool_)
    return TextOverlap(is_verbatim, is_copy, is_near_copy, copied_words, len(sampled_rows))


def group_repeated_rows(rows: Sequence[str]) -> NDArray[np.int64]:
    """Return, for each row, the index of the first row that it copies or nearly copies, or its own index.

    Rows with the same index form a group, which counts as a single example.
    """
    # Exact copies, ignoring case, punctuation and whitespace.
    first_by_text: dict[str, int] = {}
    first_rows = [first_by_text.setdefault(normalize_text(row), index) for index, row in enumerate(rows)]
    groups = np.array(first_rows, np.int64)
    stride = _choose_stride(rows)
    is_sampled = [index == first and index % stride == 0 for index, first in enumerate(first_rows)]
    sampled_rows = np.flatnonzero(is_sampled)
    words, row_ends = _WordHasher().hash_rows(compress(rows, is_sampled))
    lengths = np.diff(row_ends, prepend=0)
    # Near copies: rows that share most of their n-grams, each with one word changed.
    if len(words) >= NGRAM_WORDS:
        rows_of_ngrams = np.repeat(np.arange(len(sampled_rows)), lengths)
        is_inside_row = rows_of_ngrams[: len(words) - NGRAM_WORDS + 1] == rows_of_ngrams[NGRAM_WORDS - 1 :]
        hashes = _hash_ngrams(words, NGRAM_WORDS, allow_change=True)[is_inside_row]
        own_rows = rows_of_ngrams[: len(is_inside_row)][is_inside_row]
        _, first_positions, inverse = np.unique(hashes, return_index=True, return_inverse=True)
        rows_of_first = own_rows[first_positions // NGRAM_WORDS][inverse.reshape(hashes.shape)]
        # Pairs of (n-gram, earlier row), each counted once however many of its words may be left out.
        ngram_indices = np.repeat(np.arange(len(hashes)), NGRAM_WORDS)
        ngram_indices, earlier_rows = np.divmod(
            np.unique(ngram_indices * len(sampled_rows) + rows_of_first.ravel()), len(sampled_rows)
        )
        pairs, counts = np.unique(own_rows[ngram_indices] * len(sampled_rows) + earlier_rows, return_counts=True)
        later_rows, earlier_rows = np.divmod(pairs, len(sampled_rows))
        is_near_copy = counts >= NEAR_COPY_SHARE * (lengths[later_rows] - NGRAM_WORDS + 1)
        is_near_copy &= later_rows > earlier_rows
        groups[sampled_rows[later_rows[is_near_copy]]] = groups[sampled_rows[earlier_rows[is_near_copy]]]
    # Follow each chain of copies back to its first row.
    while (groups != groups[groups]).any():
        groups = groups[groups]
    return groups


def _choose_stride(rows: Sequence[str]) -> int:
    """Return the stride that samples rows evenly down to about `MAX_COMPARED_WORDS` words; 1 keeps all rows."""
    num_words = sum(len(row) if _has_no_spaces(row) else row.count(" ") + 1 for row in rows)
    return max(1, -(-num_words // MAX_COMPARED_WORDS))


def _has_no_spaces(row: str) -> bool:
    return len(row) > MAX_WORD_LENGTH * (row.count(" ") + 1)


class _WordHasher:
    """Maps words to 64-bit hashes."""

    MAX_CACHED_WORDS = 2**20

    def __init__(self) -> None:
        self._cache: dict[str, int] = {}

    def hash_words(self, text: str) -> list[int]:
        """Return the hash of each word in a text."""
        cache = self._cache
        words = _WORD_PATTERN.findall(text.casefold())
        if _has_no_spaces(text):
            words = [word[i : i + UNSPACED_RUN] for word in words for i in range(max(1, len(word) - UNSPACED_RUN + 1))]
        for word in words:
            if word not in cache:
                cache[word] = int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "little")
        hashes = [cache[word] for word in words]
        if len(cache) > self.MAX_CACHED_WORDS:
            cache.clear()
        return hashes

    def hash_rows(self, rows: Iterable[str]) -> tuple[WordHashes, NDArray[np.int64]]:
        """Return the word hashes of all rows, concatenated, and the end offset of each row."""
        words: list[int] = []
        row_ends = []
        for row in rows:
            words += self.hash_words(row)
            row_ends.append(len(words))
        return np.array(words, np.uint64), np.array(row_ends, np.int64)

    def hash_in_chunks(self, rows: Iterable[str]) -> Iterator[tuple[WordHashes, NDArray[np.int64]]]:
        """Yield the word hashes of all rows in chunks, each with the end offsets of its rows.

        The first row of a chunk repeats the last words of the previous chunk, so that no n-gram is lost.
        """
        words: list[int] = []
        row_ends: list[int] = []
        for row in rows:
            words += self.hash_words(row)
            row_ends.append(len(words))
            if len(words) >= CHUNK_WORDS:
                yield np.array(words, np.uint64), np.array(row_ends, np.int64)
                words = words[-LONG_RUN_WORDS + 1 :]
                row_ends = [len(words)]
        yield np.array(words, np.uint64), np.array(row_ends, np.int64)


class _HashLookup:
    """Hashes, some of which are found in a second text."""

    def __init__(self, hashes: NDArray[np.uint64]) -> None:
        self._hashes, inverse = np.unique(hashes, return_inverse=True)
        self._inverse = inverse.reshape(hashes.shape)
        self._is_found = np.zeros(len(self._hashes), np.bool_)
        # Most hashes occur in one text only; a table of prefixes rules them out without a binary search.
        self._shift = np.uint64(64 - max(10, (8 * len(self._hashes)).bit_length()))
        self._may_occur = np.zeros(2 ** (64 - int(self._shift)), np.bool_)
        self._may_occur[self._hashes >> self._shift] = True

    def find(self, candidates: NDArray[np.uint64]) -> None:
        """Mark the hashes that occur among the candidates as found."""
        if not len(self._hashes):
            return
        candidates = candidates[self._may_occur[candidates >> self._shift]]
        positions = np.minimum(np.searchsorted(self._hashes, candidates), len(self._hashes) - 1)
        self._is_found[positions[self._hashes[positions] == candidates]] = True

    @property
    def is_found(self) -> NDArray[np.bool_]:
        """Return a mask of the hashes that have been found."""
        return self._is_found[self._inverse]


class _NgramLookup(_HashLookup):
    """A text's n-grams, some of which are found in a second text."""

    def __init__(self, words: WordHashes, length: int, *, allow_change: bool = False) -> None:
        self.num_words, self.length, self.allow_change = len(words), length, allow_change
        super().__init__(_hash_ngrams(words, length, allow_change=allow_change))

    def find_in(self, words: WordHashes) -> None:
        """Mark the n-grams that occur in these words as found."""
        self.find(_hash_ngrams(words, self.length, allow_change=self.allow_change))

    def cover_words(self) -> NDArray[np.bool_]:
        """Return a mask of the words that lie in an n-gram that has been found."""
        starts = np.flatnonzero(self.is_found.any(1))
        depth = np.zeros(self.num_words + 1, np.int64)
        np.add.at(depth, starts, 1)
        np.add.at(depth, starts + self.length, -1)
        return np.cumsum(depth)[:-1] > 0


def _hash_bags(words: WordHashes, row_ends: NDArray[np.int64]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Return order-independent hashes of each row, for all words and with each one left out, and their rows."""
    lengths = np.diff(row_ends, prepend=0)
    totals = np.concatenate([np.zeros(1, np.uint64), np.cumsum(words)])
    sums = totals[row_ends] - totals[row_ends - lengths]
    rows = np.concatenate([np.arange(len(lengths)), np.repeat(np.arange(len(lengths)), lengths)])
    hashes = np.concatenate([sums, np.repeat(sums, lengths) - words])
    is_long = lengths[rows] >= NGRAM_WORDS
    return hashes[is_long], rows[is_long]


def _hash_ngrams(words: WordHashes, length: int, *, allow_change: bool) -> NDArray[np.uint64]:
    """Return the hash of each n-gram, shape (n-grams, 1).

    With `allow_change`, return one hash per omitted word instead, shape (n-grams, length).
    """
    num_ngrams = max(0, len(words) - length + 1)
    factors = [np.uint64(pow(_HASH_FACTOR, index + 1, 2**64)) for index in range(length)]
    terms = [words[index : index + num_ngrams] * factor for index, factor in enumerate(factors)]
    totals: NDArray[np.uint64] = np.stack(terms).sum(0, dtype=np.uint64)
    if not allow_change:
        return totals[:, None]
    # Adding a factor distinguishes the positions of the changed word.
    return np.stack([totals - term + factor for term, factor in zip(terms, factors, strict=True)], axis=1)


def _count_by_row(is_counted: NDArray[np.bool_], row_ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the number of counted words in each row."""
    totals = np.concatenate([[0], np.cumsum(is_counted)])
    return np.diff(totals[row_ends], prepend=0)
