"""Words, n-grams and bags of words as 64-bit hashes, to compare large texts.

Words are compared without case and punctuation. In scripts without spaces between words, each pair of characters counts
as a word. Rows without spaces, such as DNA, are compared by runs of `UNSPACED_RUN_CHARACTERS` characters.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Iterator
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

MAX_WORD_CHARACTERS = 24
"""a row has no spaces if its words are longer than this on average"""
UNSPACED_RUN_CHARACTERS = 12
"""length of the runs of characters that count as the words of a row without spaces"""
CHUNK_WORDS = 2**17
_HASH_FACTOR = 0x9E3779B97F4A7C15
# In scripts without spaces between words, each character forms a word with the next one.
_UNSPACED_SCRIPTS = r"\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_WORD_PATTERN = re.compile(rf"[^\W_{_UNSPACED_SCRIPTS}]+")
_PAIR_OR_WORD_PATTERN = re.compile(
    rf"(?=([{_UNSPACED_SCRIPTS}]{{1,2}}))[{_UNSPACED_SCRIPTS}]|([^\W_{_UNSPACED_SCRIPTS}]+)"
)

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
    """Return the text in lower case without punctuation and whitespace, which is hashed to recognize copies.

    If nothing would be left, return the text itself.
    """
    return unicodedata.normalize("NFKC", text).casefold().translate(_REMOVE_PUNCTUATION) or text.strip()


def split_into_words(text: str) -> list[str]:
    """Return the words by which texts are compared: in lower case, without punctuation."""
    text = text.casefold()
    if text.isascii():
        words = _WORD_PATTERN.findall(text)
    else:
        words = [pair or word for pair, word in _PAIR_OR_WORD_PATTERN.findall(text)]
    if not has_no_spaces(text):
        return words
    return [
        word[start : start + UNSPACED_RUN_CHARACTERS]
        for word in words
        for start in range(max(1, len(word) - UNSPACED_RUN_CHARACTERS + 1))
    ]


def has_no_spaces(text: str) -> bool:
    """Return whether a text is written without spaces between words, such as DNA."""
    return len(text) > MAX_WORD_CHARACTERS * (text.count(" ") + 1)


def count_words(rows: Iterable[str]) -> NDArray[np.int64]:
    """Return the number of words in each row, shape (rows,)."""
    return np.array([len(split_into_words(row)) for row in rows], np.int64)


class WordHasher:
    """Hashes the words of texts; words that occur again are looked up."""

    MAX_CACHED_WORDS = 2**20

    def __init__(self) -> None:
        self._hash_by_word: dict[str, int] = {}

    def hash_words(self, text: str) -> list[int]:
        """Return the hash of each word in a text."""
        hash_by_word = self._hash_by_word
        words = split_into_words(text)
        for word in words:
            if word not in hash_by_word:
                hash_by_word[word] = int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "little")
        hashes = [hash_by_word[word] for word in words]
        if len(hash_by_word) > self.MAX_CACHED_WORDS:
            hash_by_word.clear()
        return hashes

    def hash_rows(self, rows: Iterable[str]) -> tuple[WordHashes, NDArray[np.int64]]:
        """Return the word hashes of all rows, concatenated, and the end offset of each row."""
        hashes: list[int] = []
        row_ends = []
        for row in rows:
            hashes += self.hash_words(row)
            row_ends.append(len(hashes))
        return np.array(hashes, np.uint64), np.array(row_ends, np.int64)

    def hash_in_chunks(
        self, rows: Iterable[str], num_repeated_words: int
    ) -> Iterator[tuple[WordHashes, NDArray[np.int64]]]:
        """Yield the word hashes of all rows in chunks, each with the end offsets of its rows.

        The first row of a chunk repeats the last words of the previous chunk, so that n-grams of up to
        `num_repeated_words` + 1 words are not lost.
        """
        hashes: list[int] = []
        row_ends: list[int] = []
        for row in rows:
            hashes += self.hash_words(row)
            row_ends.append(len(hashes))
            if len(hashes) >= CHUNK_WORDS:
                yield np.array(hashes, np.uint64), np.array(row_ends, np.int64)
                hashes = hashes[-num_repeated_words:]
                row_ends = [len(hashes)]
        yield np.array(hashes, np.uint64), np.array(row_ends, np.int64)


def hash_word_bags(
    hashes: WordHashes, row_ends: NDArray[np.int64], *, min_words: int
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Return hashes of each row's bag of words, which do not depend on their order, and the row of each hash.

    There is one hash for all words of a row, and one for each word that is left out. Rows of fewer than `min_words`
    words have none.
    """
    lengths = np.diff(row_ends, prepend=0)
    cumulative_sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(hashes)])
    row_sums = cumulative_sums[row_ends] - cumulative_sums[row_ends - lengths]
    rows = np.concatenate([np.arange(len(lengths)), np.repeat(np.arange(len(lengths)), lengths)])
    bag_hashes = np.concatenate([row_sums, np.repeat(row_sums, lengths) - hashes])
    is_long = lengths[rows] >= min_words
    return bag_hashes[is_long], rows[is_long]


def hash_ngrams(hashes: WordHashes, length: int, *, allow_change: bool) -> NDArray[np.uint64]:
    """Return the hash of each n-gram, shape (n-grams, 1).

    With `allow_change`, return one hash per omitted word instead, shape (n-grams, length).
    """
    num_ngrams = max(0, len(hashes) - length + 1)
    factors = [np.uint64(pow(_HASH_FACTOR, index + 1, 2**64)) for index in range(length)]
    terms = [hashes[index : index + num_ngrams] * factor for index, factor in enumerate(factors)]
    totals: NDArray[np.uint64] = np.stack(terms).sum(0, dtype=np.uint64)
    if not allow_change:
        return totals[:, None]
    # Adding a factor distinguishes the positions of the changed word.
    return np.stack([totals - term + factor for term, factor in zip(terms, factors, strict=True)], axis=1)
