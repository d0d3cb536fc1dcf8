"""Rank a token without sorting the vocabulary: how many tokens are more likely, and their total probability.

Implemented for numpy and a single distribution, because this is the inner loop of sampling: on a CPU, argmax and
comparisons are several times faster in numpy than in torch, and one distribution stays in the processor cache.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float

VocabVector = Float[np.ndarray[Any, Any], " vocab"]
"""one number for each token of the vocabulary"""


def count_likelier_tokens(probs: VocabVector, token_prob: float) -> int:
    """Return the number of tokens that are more likely than a token with probability `token_prob`."""
    return int(np.count_nonzero(probs > probs.dtype.type(token_prob)))


def sum_likelier_probs(probs: VocabVector, token_prob: float) -> float:
    """Return the sum of the probabilities above `token_prob`, as a dot product with a 0/1 mask."""
    return float(np.dot(probs, (probs > probs.dtype.type(token_prob)).astype(probs.dtype)))
