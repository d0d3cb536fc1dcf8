"""Questions about ranks that need no sort: how many tokens are likelier than one, and what they weigh.

On arrays of numpy and row by row, because this is the inner loop of drawing: on a processor numpy finds the place of a
maximum and counts comparisons several times as fast as torch does, and a row stays in the cache from one question to
the next.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float

Row = Float[np.ndarray[Any, Any], " vocab"]


def likelier_count(row: Row, at: float) -> int:
    """How many are larger than `at`."""
    return int(np.count_nonzero(row > row.dtype.type(at)))


def likelier_mass(row: Row, at: float) -> float:
    """The sum of all that are larger than `at`, as a product with a row of ones and zeros."""
    return float(np.dot(row, (row > row.dtype.type(at)).astype(row.dtype)))


def struck(bound: Row, row: Row, at: float) -> Row:
    """The bounds of those that are likelier than `at`, and 0 for all others.

    A bound is at most twice its probability, and two probabilities that differ do so by 2**-24 of themselves or more:
    what they differ by, times 2**30, is above any bound where it is positive.
    """
    more = row - row.dtype.type(at)
    np.maximum(more, 0, out=more)
    more *= row.dtype.type(2**30)
    left: Row = np.minimum(bound, more, out=more)
    return left
