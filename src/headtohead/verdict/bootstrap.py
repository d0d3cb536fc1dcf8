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

NUM_RESAMPLES = 10_000
RESAMPLE_BATCH_SIZE = 500
"""draws that are made side by side"""


@dataclass(frozen=True)
class BootstrapEstimate:
    """A mean over documents (or a difference of two), and the interval of the draws."""

    value: float
    interval: tuple[float, float]
    above: float
    """the share of draws with a value above 0"""
    documents: int

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "interval": list(self.interval)}


def bootstrap_mean(
    values: Sequence[float], *, num_resamples: int = NUM_RESAMPLES, confidence: float = 0.95, seed: int = 0
) -> BootstrapEstimate:
    """The mean of one value a document."""
    found = np.asarray(values, dtype=np.float64)
    if found.ndim != 1 or not found.size or not np.isfinite(found).all():
        raise ScoresError("a bootstrap needs one number for each document")
    means = _compute_resampled_means(found, num_resamples, seed)
    tail = 100 * (1 - confidence) / 2
    low, high = np.percentile(means, [tail, 100 - tail])
    return BootstrapEstimate(float(found.mean()), (float(low), float(high)), float((means > 0).mean()), found.size)


def bootstrap_paired_difference(
    baseline: Sequence[float],
    variant: Sequence[float],
    *,
    num_resamples: int = NUM_RESAMPLES,
    confidence: float = 0.95,
    seed: int = 0,
) -> BootstrapEstimate:
    """Variant minus baseline, document by document."""
    if len(baseline) != len(variant):
        raise ScoresError(
            f"{len(variant)} documents beside {len(baseline)} of the baseline; both must be scored on the same ones"
        )
    difference = np.asarray(variant, dtype=np.float64) - np.asarray(baseline, dtype=np.float64)
    return bootstrap_mean(difference.tolist(), num_resamples=num_resamples, confidence=confidence, seed=seed)


def _compute_resampled_means(
    values: Float[np.ndarray, " documents"], num_resamples: int, seed: int
) -> Float[np.ndarray, " draws"]:
    generator = np.random.default_rng(seed)
    made = [
        values[
            generator.integers(values.size, size=(min(RESAMPLE_BATCH_SIZE, num_resamples - start), values.size))
        ].mean(axis=1)
        for start in range(0, num_resamples, RESAMPLE_BATCH_SIZE)
    ]
    return np.concatenate(made)
