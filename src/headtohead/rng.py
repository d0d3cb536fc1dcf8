"""Seeds of named random streams.

Every random draw is a function of (seed, purpose, position) and of no hidden state. Two variants with the same seed
therefore see the same batches, and a resumed run draws the same numbers as an uninterrupted one.
"""

from __future__ import annotations

import hashlib


def derive_seed(*parts: int | str) -> int:
    """Return a 63-bit seed that is a hash of `parts`, for example of (seed, "batches", step). Types are part of the
    hash.
    """
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
