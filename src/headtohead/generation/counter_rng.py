"""Counter-based random numbers: each is a pure function of (seed, prompt, sample, step, token).

Without hidden state, a continuation does not depend on the rest of its batch, and two strategies with the same seed use
the same random numbers, which pairs them. Tokens are sampled by an exponential race: token i arrives at time E_i / p_i
with E_i exponential, and the first arrival is a draw from p (the Gumbel-max trick before its logarithm, Maddison et al.
2014, arXiv:1411.0030). The race is also stable. The logits of a sequence differ in their last digits depending on
whether it is processed alone or in a batch; this changes the winner only if two arrivals nearly coincide, whereas an
inverse cumulative sum accumulates all errors.

The generator is a hash of the counter: SplitMix64 (Steele et al. 2014) derives two 32-bit keys per step, and two rounds
of multiply and xor-shift with the constants of C. Wellons' lowbias32 mix in the token id. Kept instead of numpy's
Philox, which takes 2.8 to 3.2 times as long per number (docs/log.md) and would change every sampled text.
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

SequenceKeys = NDArray[np.uint64]
UniformNoise = Float[np.ndarray[Any, Any], "batch vocab"]
SEQUENCE_STEPS_PER_HASH = 8
"""sequences times steps hashed per call: few large operations instead of many small ones"""

MAX_UNIFORM = 1 - 2.0**-25
"""upper limit; a uniform number rounded up to 1 would give an infinite arrival time"""
_GOLDEN64 = np.uint64(0x9E3779B97F4A7C15)
_GOLDEN32 = np.uint32(0x9E3779B9)


def derive_continuation_key(seed: int, prompt_ids: Sequence[int], sample_index: int) -> int:
    """Return one continuation's random key: a function of the seed, the prompt and the sample index."""
    return rng.derive_seed(seed, "decode", sample_index, *prompt_ids)


class CounterRNG:
    """Uniform random numbers for every token of the vocabulary and each sequence in a batch, step by step."""

    def __init__(self, sequence_keys: Sequence[int], vocab_size: int) -> None:
        self.sequence_keys: SequenceKeys = np.array(sequence_keys, dtype=np.uint64)
        self.vocab_size = vocab_size
        self._reset_buffer()

    def _reset_buffer(self) -> None:
        """Allocate a buffer that all steps reuse: allocating it at each step takes longer than the hash."""
        self._first_step, self._num_buffered_steps = 0, 0
        num_sequences = len(self.sequence_keys)
        self._buffer = HashBuffer(max(1, SEQUENCE_STEPS_PER_HASH // num_sequences), num_sequences, self.vocab_size)

    def get_uniforms(self, step: int) -> UniformNoise:
        """Return uniform numbers in (0, 2**31], (batch, vocab), valid until the next call."""
        if not self._first_step <= step < self._first_step + self._num_buffered_steps:
            self._first_step, self._num_buffered_steps = step, len(self._buffer.uniforms)
            hash_uniforms(
                self.sequence_keys, range(step, step + self._num_buffered_steps), self.vocab_size, self._buffer
            )
        uniforms: UniformNoise = self._buffer.uniforms[step - self._first_step]
        return uniforms

    def select_sequences(self, batch_indices: Sequence[int]) -> None:
        """Reduce the batch to the sequences with the given indices."""
        self.sequence_keys = self.sequence_keys[list(batch_indices)]
        self._reset_buffer()


class HashBuffer:
    """Working memory for `hash_uniforms`."""

    def __init__(self, num_steps: int, num_sequences: int, vocab_size: int) -> None:
        self.mixed, self.shifted = np.empty((2, num_steps, num_sequences, vocab_size), dtype=np.uint32)
        self.uniforms = np.empty((num_steps, num_sequences, vocab_size), dtype=np.float32)


def hash_uniforms(
    sequence_keys: SequenceKeys, steps: range, vocab_size: int, buffer: HashBuffer | None = None
) -> Float[np.ndarray[Any, Any], "steps batch vocab"]:
    """Return random numbers, uniform in (0, 2**31], (steps, batch, vocab): each is a hash of (key, step, token)."""
    buffer = buffer or HashBuffer(len(steps), len(sequence_keys), vocab_size)
    counter = np.arange(steps.start + 1, steps.stop + 1, dtype=np.uint64)[:, None] * _GOLDEN64
    step_hashes = _splitmix64(sequence_keys[None, :] + counter)  # (steps, batch)
    low, high = (
        (step_hashes & np.uint64(0xFFFFFFFF)).astype(np.uint32),
        (step_hashes >> np.uint64(32)).astype(np.uint32),
    )
    x, shifted = buffer.mixed, buffer.shifted
    np.add(_compute_token_counters(vocab_size), low[..., None], out=x)
    _xorshift_right(x, shifted, 16)
    x *= np.uint32(0x7FEB352D)
    _xorshift_right(x, shifted, 15)
    x ^= high[..., None]
    x *= np.uint32(0x846CA68B)
    _xorshift_right(x, shifted, 16)
    x >>= np.uint32(1)
    # 31 bits as float32: small numbers, which win the race, keep all their digits.
    np.copyto(buffer.uniforms, x.view(np.int32), casting="unsafe")
    buffer.uniforms += np.float32(0.5)
    return buffer.uniforms


def uniform_to_exponential(uniforms: Float[np.ndarray[Any, Any], "..."]) -> NDArray[np.float64]:
    """Return -log(1 - u) in units of 2**-31. It is never smaller than the uniform number itself."""
    fractions = np.minimum(uniforms.astype(np.float64) * 2.0**-31, MAX_UNIFORM)
    exponentials: NDArray[np.float64] = -np.log1p(-fractions) * 2.0**31
    return exponentials


def scalar_uniform_to_exponential(uniform: float) -> float:
    """Return `uniform_to_exponential` for a single number."""
    return -math.log1p(-min(uniform * 2.0**-31, MAX_UNIFORM)) * 2.0**31


def _xorshift_right(x: NDArray[np.uint32], buffer: NDArray[np.uint32], shift: int) -> None:
    """Replace x with x ^ (x >> shift) in place, using `buffer` as working memory."""
    np.right_shift(x, np.uint32(shift), out=buffer)
    x ^= buffer


def _splitmix64(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply the finalizer of the SplitMix64 generator to each counter."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    hashes: NDArray[np.uint64] = x ^ (x >> np.uint64(31))
    return hashes


@lru_cache(maxsize=8)
def _compute_token_counters(vocab_size: int) -> NDArray[Any]:
    """Return the counter for each token id, (vocab,)."""
    return np.arange(vocab_size, dtype=np.uint32) * _GOLDEN32
