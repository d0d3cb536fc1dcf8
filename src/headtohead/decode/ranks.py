"""Questions about ranks that need no sort: how many tokens are likelier than one, and what they weigh.

On arrays of numpy, because this is the inner loop of drawing: on a processor it finds the place of a maximum and counts
comparisons several times as fast as torch does.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

Table = Float[np.ndarray[Any, Any], "rows vocab"]
Column = Float[np.ndarray[Any, Any], " rows"]


def likelier_count(x: Table, at: Column) -> Int[np.ndarray[Any, Any], " rows"]:
    """How many of a row are larger than `at`."""
    larger: Bool[np.ndarray[Any, Any], "rows vocab"] = x > at[:, None]
    return np.array([np.count_nonzero(row) for row in larger])


def likelier_mass(x: Table, at: Column) -> Column:
    """The sum of all of a row that are larger than `at`: what they exceed it by, and `at` for each of them."""
    more = x - at[:, None]
    np.maximum(more, 0, out=more)
    total: Column = more.sum(-1) + at * likelier_count(x, at)
    return total


def struck(bound: Table, x: Table, at: Column) -> Table:
    """The bounds of those that are likelier than `at`, and 0 for all others.

    A bound is at most twice its probability, and two probabilities that differ do so by 2**-24 of themselves or more:
    what they differ by, times 2**30, is above any bound where it is positive.
    """
    more = x - at[:, None]
    np.maximum(more, 0, out=more)
    more *= np.float32(2**30)
    left: Table = np.minimum(bound, more, out=more)
    return left
