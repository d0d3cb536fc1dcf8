"""Look up the n-grams and other hashes of one text in a second text, which is read in chunks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headtohead.audit.data_checks.word_hashing import WordHashes, hash_ngrams

NOT_FOUND = 2**62


class HashLookup:
    """Hashes of one text, and where each of them occurs first in a second text."""

    def __init__(self, hashes: NDArray[np.uint64]) -> None:
        """Prepare to look up the hashes of the first text, which may have any shape."""
        self._hashes, inverse = np.unique(hashes, return_inverse=True)
        self._inverse = inverse.reshape(hashes.shape)
        self._first_positions = np.full(len(self._hashes), NOT_FOUND, np.int64)
        self._search_offset = 0
        """position of the next chunk in the second text"""
        # Most hashes occur in one text only; a table of prefixes rules them out without a binary search.
        self._prefix_shift = np.uint64(64 - max(10, (8 * len(self._hashes)).bit_length()))
        self._is_prefix_known = np.zeros(2 ** (64 - int(self._prefix_shift)), np.bool_)
        self._is_prefix_known[self._hashes >> self._prefix_shift] = True

    def find(self, candidates: NDArray[np.uint64]) -> None:
        """Look up n-grams of the second text: record at which position, over all chunks, each hash occurs first."""
        if not len(self._hashes):
            return
        positions, *columns = np.nonzero(self._is_prefix_known[candidates >> self._prefix_shift])
        candidates = candidates[positions, *columns]
        indices = np.minimum(np.searchsorted(self._hashes, candidates), len(self._hashes) - 1)
        is_equal = self._hashes[indices] == candidates
        np.minimum.at(self._first_positions, indices[is_equal], positions[is_equal] + self._search_offset)

    @property
    def is_found(self) -> NDArray[np.bool_]:
        """Return a mask of the hashes that have been found."""
        return self.first_positions < NOT_FOUND

    @property
    def first_positions(self) -> NDArray[np.int64]:
        """Return where each hash has been found first, or `NOT_FOUND`."""
        return self._first_positions[self._inverse]


class NgramLookup(HashLookup):
    """The n-grams of one text, and where each of them occurs first in a second text."""

    def __init__(self, hashes: WordHashes, length: int, *, allow_change: bool = False) -> None:
        """Prepare to look up the n-grams of the first text; with `allow_change`, also with one word changed."""
        self.num_words, self.length, self.allow_change = len(hashes), length, allow_change
        super().__init__(hash_ngrams(hashes, length, allow_change=allow_change))

    def find_in(self, hashes: WordHashes) -> None:
        """Mark the n-grams that occur in these words of the second text as found."""
        self.find(hash_ngrams(hashes, self.length, allow_change=self.allow_change))
        self._search_offset += len(hashes)

    def compute_shares_in_one_place(self, row_ends: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return, for each row, the largest share of its found n-grams whose first places in the second text lie within
        twice the length of the row; 0 if none is found.
        """
        ngram_indices, columns = np.nonzero(self.is_found)
        rows = np.searchsorted(row_ends, ngram_indices, side="right")
        lengths = np.diff(row_ends, prepend=0)
        positions = self.first_positions[ngram_indices, columns]
        # Rows are laid out one after the other, far enough apart for a single search.
        spacing = self._search_offset + 2 * int(lengths.max(initial=0)) + 1
        places = np.sort(rows * spacing + positions)
        rows = places // spacing
        num_close = np.searchsorted(places, places + 2 * lengths[rows], side="right") - np.arange(len(places))
        max_num_close = np.zeros(len(row_ends), np.int64)
        np.maximum.at(max_num_close, rows, num_close)
        return max_num_close / np.maximum(1, np.bincount(rows, minlength=len(row_ends)))

    def compute_covered_words(self) -> NDArray[np.bool_]:
        """Return a mask of the words that lie in an n-gram that has been found, shape (words,)."""
        ngram_starts = np.flatnonzero(self.is_found.any(1))
        coverage_changes = np.zeros(self.num_words + 1, np.int64)
        np.add.at(coverage_changes, ngram_starts, 1)
        np.add.at(coverage_changes, ngram_starts + self.length, -1)
        return np.cumsum(coverage_changes)[:-1] > 0
