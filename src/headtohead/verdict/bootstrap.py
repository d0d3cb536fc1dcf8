"""Intervals by drawing examples anew: the paired bootstrap, for figures that are means over documents.

After Efron and Tibshirani 1993, ch. 13, and Koehn 2004, W04-3250. Documents are drawn with replacement, the same ones
for both sides of a pair, so that what makes a document easy cancels. It answers "on other documents", for the models as
they are; what another seed would have given is not in it (see `statistics.mean_interval`, and `compare` for both). The
draws are a function of the seed and the number of documents alone: the interval is the same on every call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from headtohead.errors import ScoresError

DRAWS = 10_000
AT_ONCE = 500
"""draws that are made side by side"""


@dataclass(frozen=True)
class Resampled:
    """A mean over documents (or a difference of two), and the interval of the draws."""

    value: float
    interval: tuple[float, float]
    above: float
    """the share of draws with a value above 0"""
    documents: int

    def as_row(self) -> dict[str, Any]:
        return {**vars(self), "interval": list(self.interval)}


def resampled(values: Sequence[float], *, draws: int = DRAWS, confidence: float = 0.95, seed: int = 0) -> Resampled:
    """The mean of one value a document."""
    found = np.asarray(values, dtype=np.float64)
    if found.ndim != 1 or not found.size or not np.isfinite(found).all():
        raise ScoresError("a bootstrap needs one number for each document")
    means = _means(found, draws, seed)
    tail = 100 * (1 - confidence) / 2
    low, high = np.percentile(means, [tail, 100 - tail])
    return Resampled(float(found.mean()), (float(low), float(high)), float((means > 0).mean()), found.size)


def paired(
    baseline: Sequence[float], variant: Sequence[float], *, draws: int = DRAWS, confidence: float = 0.95, seed: int = 0
) -> Resampled:
    """Variant minus baseline, document by document."""
    if len(baseline) != len(variant):
        raise ScoresError(
            f"{len(variant)} documents beside {len(baseline)} of the baseline; both must be scored on the same ones"
        )
    difference = np.asarray(variant, dtype=np.float64) - np.asarray(baseline, dtype=np.float64)
    return resampled(difference.tolist(), draws=draws, confidence=confidence, seed=seed)


def _means(values: Float[np.ndarray, " documents"], draws: int, seed: int) -> Float[np.ndarray, " draws"]:
    generator = np.random.default_rng(seed)
    made = [
        values[generator.integers(values.size, size=(min(AT_ONCE, draws - start), values.size))].mean(axis=1)
        for start in range(0, draws, AT_ONCE)
    ]
    return np.concatenate(made)
