"""Chance by key: the random numbers of a continuation are a function of (seed, prompt, sample, step, token).

Nothing is drawn from hidden state, so a continuation does not depend on what else is in the batch, and two strategies
with the same seed meet the same luck, which pairs them. A token is drawn by a race: token i arrives after a time
E_i / p_i, where E_i is exponential, and the first to arrive wins, which is a draw from p (the Gumbel-max trick,
Maddison et al. 2014, arXiv:1411.0030, before its logarithm). The race is also steady: logits that differ in their last
digits, as those of one row alone and in a batch do, change the winner only if two arrive at the same moment, whereas an
inverse cumulative sum moves with the sum of all errors.

The numbers come from a hash of the counter: SplitMix64 (Steele et al. 2014) makes two 32-bit keys for a step, and two
rounds of multiply and xor-shift with the constants of C. Wellons' lowbias32 mix a token's number with them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from headtohead import rng

Keys = NDArray[np.uint64]
Luck = Float[np.ndarray[Any, Any], "rows vocab"]
AHEAD = 8
"""rows times steps that are hashed at once: a few large operations instead of many small ones"""

MOST = 1 - 2.0**-25
"""a uniform number that was rounded up to 1 would take for ever"""
_GOLDEN64 = np.uint64(0x9E3779B97F4A7C15)
_GOLDEN32 = np.uint32(0x9E3779B9)


def row_key(seed: int, prompt: Sequence[int], sample: int) -> int:
    """The key of one continuation."""
    return rng.key(seed, "decode", sample, *prompt)


class Chance:
    """The luck of every token, for the rows of a batch, step by step."""

    def __init__(self, keys: Sequence[int], vocab: int) -> None:
        self.keys: Keys = np.array(keys, dtype=np.uint64)
        self.vocab = vocab
        self._begin()

    def _begin(self) -> None:
        """Room that is used again and again: to ask the system for as much at each step would take longer than the
        hash."""
        self._first, self._steps = 0, 0
        self._room = Room(max(1, AHEAD // len(self.keys)), len(self.keys), self.vocab)

    def at(self, step: int) -> Luck:
        """Uniform numbers in (0, 2**31]; they hold until the next step is asked for."""
        if not self._first <= step < self._first + self._steps:
            self._first, self._steps = step, len(self._room.found)
            luck(self.keys, range(step, step + self._steps), self.vocab, self._room)
        found: Luck = self._room.found[step - self._first]
        return found

    def select(self, rows: Sequence[int]) -> None:
        """Keep these rows."""
        self.keys = self.keys[list(rows)]
        self._begin()


class Room:
    """Where a hash is worked out."""

    def __init__(self, steps: int, rows: int, vocab: int) -> None:
        self.mixed, self.folded = np.empty((2, steps, rows, vocab), dtype=np.uint32)
        self.found = np.empty((steps, rows, vocab), dtype=np.float32)


def luck(
    keys: Keys, steps: range, vocab: int, room: Room | None = None
) -> Float[np.ndarray[Any, Any], "steps rows vocab"]:
    """Uniform numbers in (0, 2**31], each a hash of (key, step, token)."""
    room = room or Room(len(steps), len(keys), vocab)
    counter = np.arange(steps.start + 1, steps.stop + 1, dtype=np.uint64)[:, None] * _GOLDEN64
    mixed = _splitmix(keys[None, :] + counter)  # (steps, rows)
    low, high = (mixed & np.uint64(0xFFFFFFFF)).astype(np.uint32), (mixed >> np.uint64(32)).astype(np.uint32)
    x, other = room.mixed, room.folded
    np.add(_tokens(vocab), low[..., None], out=x)
    _fold(x, other, 16)
    x *= np.uint32(0x7FEB352D)
    _fold(x, other, 15)
    x ^= high[..., None]
    x *= np.uint32(0x846CA68B)
    _fold(x, other, 16)
    x >>= np.uint32(1)
    # 31 bits as a floating number: the small ones, which win the race, keep all their digits.
    np.copyto(room.found, x.view(np.int32), casting="unsafe")
    room.found += np.float32(0.5)
    return room.found


def times(luck: Float[np.ndarray[Any, Any], "..."]) -> NDArray[np.float64]:
    """Exponential numbers, in units of 2**-31: -log(1 - u). Never smaller than the uniform number they come from."""
    share = np.minimum(luck.astype(np.float64) * 2.0**-31, MOST)
    found: NDArray[np.float64] = -np.log1p(-share) * 2.0**31
    return found


def time(luck: float) -> float:
    """The same of one number."""
    return -math.log1p(-min(luck * 2.0**-31, MOST)) * 2.0**31


def _fold(x: NDArray[np.uint32], other: NDArray[np.uint32], by: int) -> None:
    np.right_shift(x, np.uint32(by), out=other)
    x ^= other


def _splitmix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    found: NDArray[np.uint64] = x ^ (x >> np.uint64(31))
    return found


@lru_cache(maxsize=8)
def _tokens(vocab: int) -> NDArray[Any]:
    return np.arange(vocab, dtype=np.uint32) * _GOLDEN32
