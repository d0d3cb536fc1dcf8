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

RowKeys = NDArray[np.uint64]
UniformNoise = Float[np.ndarray[Any, Any], "rows vocab"]
ROW_STEPS_PER_HASH = 8
"""rows times steps that are hashed at once: a few large operations instead of many small ones"""

MAX_UNIFORM = 1 - 2.0**-25
"""a uniform number that was rounded up to 1 would take for ever"""
_GOLDEN64 = np.uint64(0x9E3779B97F4A7C15)
_GOLDEN32 = np.uint32(0x9E3779B9)


def derive_continuation_key(seed: int, prompt_ids: Sequence[int], sample_index: int) -> int:
    """The key of one continuation."""
    return rng.derive_seed(seed, "decode", sample_index, *prompt_ids)


class CounterRNG:
    """The luck of every token, for the rows of a batch, step by step."""

    def __init__(self, row_keys: Sequence[int], vocab_size: int) -> None:
        self.keys: RowKeys = np.array(row_keys, dtype=np.uint64)
        self.vocab = vocab_size
        self._reset_buffer()

    def _reset_buffer(self) -> None:
        """Room that is used again and again: to ask the system for as much at each step would take longer than the
        hash."""
        self._first, self._num_buffered_steps = 0, 0
        self._buffer = HashBuffer(max(1, ROW_STEPS_PER_HASH // len(self.keys)), len(self.keys), self.vocab)

    def at(self, step: int) -> UniformNoise:
        """Uniform numbers in (0, 2**31]; they hold until the next step is asked for."""
        if not self._first <= step < self._first + self._num_buffered_steps:
            self._first, self._num_buffered_steps = step, len(self._buffer.found)
            hash_uniforms(self.keys, range(step, step + self._num_buffered_steps), self.vocab, self._buffer)
        found: UniformNoise = self._buffer.found[step - self._first]
        return found

    def select(self, rows: Sequence[int]) -> None:
        """Keep these rows."""
        self.keys = self.keys[list(rows)]
        self._reset_buffer()


class HashBuffer:
    """Where a hash is worked out."""

    def __init__(self, steps: int, rows: int, vocab_size: int) -> None:
        self.mixed, self.folded = np.empty((2, steps, rows, vocab_size), dtype=np.uint32)
        self.found = np.empty((steps, rows, vocab_size), dtype=np.float32)


def hash_uniforms(
    row_keys: RowKeys, steps: range, vocab_size: int, buffer: HashBuffer | None = None
) -> Float[np.ndarray[Any, Any], "steps rows vocab"]:
    """Uniform numbers in (0, 2**31], each a hash of (key, step, token)."""
    buffer = buffer or HashBuffer(len(steps), len(row_keys), vocab_size)
    counter = np.arange(steps.start + 1, steps.stop + 1, dtype=np.uint64)[:, None] * _GOLDEN64
    mixed = _splitmix64(row_keys[None, :] + counter)  # (steps, rows)
    low, high = (mixed & np.uint64(0xFFFFFFFF)).astype(np.uint32), (mixed >> np.uint64(32)).astype(np.uint32)
    x, other = buffer.mixed, buffer.folded
    np.add(_compute_token_counters(vocab_size), low[..., None], out=x)
    _xorshift_right(x, other, 16)
    x *= np.uint32(0x7FEB352D)
    _xorshift_right(x, other, 15)
    x ^= high[..., None]
    x *= np.uint32(0x846CA68B)
    _xorshift_right(x, other, 16)
    x >>= np.uint32(1)
    # 31 bits as a floating number: the small ones, which win the race, keep all their digits.
    np.copyto(buffer.found, x.view(np.int32), casting="unsafe")
    buffer.found += np.float32(0.5)
    return buffer.found


def uniform_to_exponential(uniforms: Float[np.ndarray[Any, Any], "..."]) -> NDArray[np.float64]:
    """Exponential numbers, in units of 2**-31: -log(1 - u). Never smaller than the uniform number they come from."""
    share = np.minimum(uniforms.astype(np.float64) * 2.0**-31, MAX_UNIFORM)
    found: NDArray[np.float64] = -np.log1p(-share) * 2.0**31
    return found


def scalar_uniform_to_exponential(uniform: float) -> float:
    """The same of one number."""
    return -math.log1p(-min(uniform * 2.0**-31, MAX_UNIFORM)) * 2.0**31


def _xorshift_right(x: NDArray[np.uint32], buffer: NDArray[np.uint32], shift: int) -> None:
    np.right_shift(x, np.uint32(shift), out=buffer)
    x ^= buffer


def _splitmix64(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    found: NDArray[np.uint64] = x ^ (x >> np.uint64(31))
    return found


@lru_cache(maxsize=8)
def _compute_token_counters(vocab: int) -> NDArray[Any]:
    return np.arange(vocab, dtype=np.uint32) * _GOLDEN32
