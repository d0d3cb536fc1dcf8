"""Random streams by name. Every draw is a function of (seed, what it is for, where), never of hidden state.

Two variants with the same seed then see the same batches, and a run that was killed draws what it would have drawn.
"""

from __future__ import annotations

import hashlib


def derive_seed(*parts: int | str) -> int:
    """A 63-bit number that stands for these words; the seed of one small stream."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
