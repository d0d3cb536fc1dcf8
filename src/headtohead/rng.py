"""Seeds of named random streams.

Every random draw is a function of (seed, purpose, position) and of no hidden state. Two variants with the same seed
therefore see the same batches, and a resumed run draws the same numbers as an uninterrupted one.
"""

from __future__ import annotations

import hashlib


def derive_seed(*labels: int | str) -> int:
    """Return a 63-bit seed that is a hash of `labels`, such as (seed, "batches", step), and of their types."""
    typed_labels = "\x1f".join(f"{type(label).__name__}:{label}" for label in labels)
    return int.from_bytes(hashlib.blake2b(typed_labels.encode(), digest_size=8).digest(), "big") >> 1
