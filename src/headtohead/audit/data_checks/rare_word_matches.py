"""Find rows that share most of their rare words with a row of a second text.

These are near copies that n-grams miss: rows with typing errors or with words that were replaced, added or moved keep
most of their rare words together, which two rows of ordinary text seldom share.
"""

from __future__ import annotations

import numpy as np
import scipy
from numpy.typing import NDArray

from headtohead.audit.data_checks.word_hashing import WordHashes

MAX_RARE_ROWS = 3
MAX_RARE_SHARE = 0.02
"""a word is rare if at most MAX_RARE_ROWS rows contain it, or this share of them"""
MIN_ROWS = 20
"""splits with fewer rows are not compared: their words tell too little"""
MIN_RARE_WORDS = 5
"""rows with fewer rare words are not compared"""
MAX_ROW_WORDS = 512
"""longer rows are not compared"""
CHANCE_MULTIPLE = 3.0
"""one of N independent segments has words with an information of log N by chance, and more if they share a topic"""
MIN_SEGMENT_WORDS = 64
"""longer source rows are compared in segments of at least this length"""


class RareWordMatcher:
    """Finds, for each row of one text, the largest share of its rare words that one row of a second text contains.

    Words are weighted by their information, -log of the share of rows that contain them.
    """

    def __init__(self, hashes: WordHashes, row_ends: NDArray[np.int64]) -> None:
        """Find the rare words of each row, given the hashes of all words and the end offset of each row."""
        num_rows, lengths = len(row_ends), np.diff(row_ends, prepend=0)
        rows = np.repeat(np.arange(num_rows), lengths)
        vocabulary, word_ids = np.unique(hashes, return_inverse=True)
        rows, word_ids = np.divmod(np.unique(rows * max(1, len(vocabulary)) + word_ids), max(1, len(vocabulary)))
        num_containing_rows = np.bincount(word_ids, minlength=len(vocabulary))
        is_rare = num_containing_rows <= max(MAX_RARE_ROWS, MAX_RARE_SHARE * num_rows)
        num_rare_words = np.bincount(rows[is_rare[word_ids]], minlength=num_rows)
        is_comparable = (num_rare_words >= MIN_RARE_WORDS) & (lengths <= MAX_ROW_WORDS) & (num_rows >= MIN_ROWS)
        is_compared = is_rare[word_ids] & is_comparable[rows]
        word_information = np.log((num_rows + 1) / np.maximum(num_containing_rows, 1))
        self._vocabulary, columns = np.unique(vocabulary[word_ids[is_compared]], return_inverse=True)
        information = word_information[word_ids[is_compared]]
        shape = num_rows, len(self._vocabulary)
        self._information = scipy.sparse.csr_array((information, (rows[is_compared], columns)), shape)
        self._total_information = np.bincount(rows[is_compared], information, minlength=num_rows)
        self._segment_words = max(MIN_SEGMENT_WORDS, 2 * len(hashes) // max(1, num_rows))
        self._num_segments = 0
        self._max_shared_information = np.zeros(num_rows)
        """largest information that a row shares with one segment of the second text, in nats"""

    def find_matches(self, share: float) -> NDArray[np.bool_]:
        """Return a mask of the rows that share this share of the information in their rare words with one segment.

        They must also share more than any of the segments may contain by chance.
        """
        chance_information = CHANCE_MULTIPLE * np.log(max(1, self._num_segments))
        shared_information = self._max_shared_information
        is_match: NDArray[np.bool_] = (shared_information >= share * self._total_information) & (
            shared_information > chance_information
        )
        return is_match

    def add_source_chunk(self, hashes: WordHashes, row_ends: NDArray[np.int64]) -> None:
        """Compare the rows with these rows of the second text. Long rows are compared in overlapping segments."""
        if not len(self._vocabulary) or not len(hashes):
            return
        row_starts = np.concatenate([[0], row_ends[:-1]])
        half = self._segment_words // 2
        num_segments = np.maximum(1, -(-(row_ends - row_starts) // half) - 1)
        segment_starts = np.repeat(row_starts, num_segments) + half * _concatenate_ranges(num_segments)
        segment_ends = np.minimum(segment_starts + 2 * half, np.repeat(row_ends, num_segments))
        lengths = segment_ends - segment_starts
        positions = np.repeat(segment_starts, lengths) + _concatenate_ranges(lengths)
        word_ids = np.minimum(np.searchsorted(self._vocabulary, hashes), len(self._vocabulary) - 1)
        is_known = (self._vocabulary[word_ids] == hashes)[positions]
        segments = np.repeat(np.arange(len(lengths)), lengths)[is_known]
        words = word_ids[positions[is_known]]
        shape = len(self._vocabulary), len(lengths)
        contains = scipy.sparse.csr_array((np.ones(len(segments), np.bool_), (words, segments)), shape=shape)
        contains.sum_duplicates()
        contains.data[:] = True
        shared_information = self._information @ contains  # (rows, segments)
        has_shared_words = np.diff(shared_information.indptr) > 0
        row_maxima = np.maximum.reduceat(shared_information.data, shared_information.indptr[:-1][has_shared_words])
        self._max_shared_information[has_shared_words] = np.maximum(
            self._max_shared_information[has_shared_words], row_maxima
        )
        self._num_segments += len(lengths)


def _concatenate_ranges(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the ranges 0, 1, ..., count - 1 of all counts, concatenated."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
