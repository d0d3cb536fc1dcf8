"""Questions about ranks that need no sort: how many tokens are likelier than one, and what they weigh.

On arrays of numpy and row by row, because this is the inner loop of drawing: on a processor numpy finds the place of a
maximum and counts comparisons several times as fast as torch does, and a row stays in the cache from one question to
the next.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float

ProbabilityRow = Float[np.ndarray[Any, Any], " vocab"]


def count_above(probs: ProbabilityRow, threshold: float) -> int:
    """How many are larger than `at`."""
    return int(np.count_nonzero(probs > probs.dtype.type(threshold)))


def sum_above(probs: ProbabilityRow, threshold: float) -> float:
    """The sum of all that are larger than `at`, as a product with a row of ones and zeros."""
    return float(np.dot(probs, (probs > probs.dtype.type(threshold)).astype(probs.dtype)))


def zero_bounds_not_above(score_bounds: ProbabilityRow, probs: ProbabilityRow, threshold: float) -> ProbabilityRow:
    """The bounds of those that are likelier than `at`, and 0 for all others.

    A bound is at most twice its probability, and two probabilities that differ do so by 2**-24 of themselves or more:
    what they differ by, times 2**30, is above any bound where it is positive.
    """
    more = probs - probs.dtype.type(threshold)
    np.maximum(more, 0, out=more)
    more *= probs.dtype.type(2**30)
    left: ProbabilityRow = np.minimum(score_bounds, more, out=more)
    return left
