"""Rank statistics for a row of probabilities, without sorting.

They tell how many tokens are more likely than a given one, and what their total probability is. Written for numpy and
single rows, because this is the inner loop of sampling: on a CPU, numpy's argmax and comparisons are several times as
fast as torch's, and a row stays in the processor cache.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float

ProbabilityRow = Float[np.ndarray[Any, Any], " vocab"]


def count_above(probs: ProbabilityRow, threshold: float) -> int:
    """Return the number of probabilities above the threshold."""
    return int(np.count_nonzero(probs > probs.dtype.type(threshold)))


def sum_above(probs: ProbabilityRow, threshold: float) -> float:
    """Return the sum of the probabilities above the threshold, as a dot product with a 0/1 mask."""
    return float(np.dot(probs, (probs > probs.dtype.type(threshold)).astype(probs.dtype)))


def zero_bounds_not_above(score_bounds: ProbabilityRow, probs: ProbabilityRow, threshold: float) -> ProbabilityRow:
    """Return the bounds of tokens whose probability is above the threshold, and 0 for the others.

    A bound is at most twice its probability, and two float32 probabilities that differ do so by at least 2**-24 of
    their size. A positive difference times 2**30 therefore exceeds any bound, so the minimum of the two is the result.
    """
    differences = probs - probs.dtype.type(threshold)
    np.maximum(differences, 0, out=differences)
    differences *= probs.dtype.type(2**30)
    bounds: ProbabilityRow = np.minimum(score_bounds, differences, out=differences)
    return bounds
