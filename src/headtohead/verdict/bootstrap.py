"""Paired bootstrap intervals for means over documents.

After Efron and Tibshirani 1993, ch. 13, and Koehn 2004, W04-3250. Documents are resampled with replacement, and both
systems in a pair use the same resample, so that document difficulty cancels out. The interval generalizes to new
documents but not to new seeds; see `compute_mean_interval` for seeds, and `compare_scores` for both. Resamples depend
only on the seed and the number of documents, so intervals are reproducible.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from pydantic import ConfigDict

from headtohead.errors import ScoresError

NUM_RESAMPLES = 10_000
RESAMPLE_BATCH_SIZE = 500
"""number of resamples computed at a time"""


@dataclass(frozen=True)
class BootstrapEstimate:
    """A mean over documents, or a difference of two means, and its percentile interval."""

    __pydantic_config__ = ConfigDict(strict=False)  # strict would refuse objects read from JSON
    value: float
    """the mean or the difference"""
    interval: tuple[float, float]
    positive_share: float
    """fraction of resamples with a mean above 0"""
    num_documents: int

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "interval": list(self.interval)}


def bootstrap_mean(
    values: Sequence[float], *, num_resamples: int = NUM_RESAMPLES, confidence: float = 0.95, seed: int = 0
) -> BootstrapEstimate:
    """Return the mean over documents, given one value per document, and its bootstrap interval."""
    document_values = np.asarray(values, dtype=np.float64)
    if document_values.ndim != 1 or not document_values.size or not np.isfinite(document_values).all():
        raise ScoresError("a bootstrap needs one finite number for each document")
    means = _compute_resampled_means(document_values, num_resamples, seed)
    tail_percent = 100 * (1 - confidence) / 2
    low, high = np.percentile(means, [tail_percent, 100 - tail_percent])
    positive_share = float((means > 0).mean())
    return BootstrapEstimate(
        float(document_values.mean()), (float(low), float(high)), positive_share, document_values.size
    )


def bootstrap_paired_difference(
    baseline: Sequence[float],
    variant: Sequence[float],
    *,
    num_resamples: int = NUM_RESAMPLES,
    confidence: float = 0.95,
    seed: int = 0,
) -> BootstrapEstimate:
    """Return the mean difference over documents (variant minus baseline) and its bootstrap interval."""
    if len(baseline) != len(variant):
        raise ScoresError(
            f"{len(variant)} documents, but {len(baseline)} for the baseline; both must be scored on the same documents"
        )
    paired_differences = np.asarray(variant, dtype=np.float64) - np.asarray(baseline, dtype=np.float64)
    return bootstrap_mean(paired_differences.tolist(), num_resamples=num_resamples, confidence=confidence, seed=seed)


def _compute_resampled_means(
    document_values: Float[np.ndarray, " documents"], num_resamples: int, seed: int
) -> Float[np.ndarray, " resamples"]:
    """Return the mean of each bootstrap resample of the documents."""
    generator = np.random.default_rng(seed)
    num_documents = document_values.size
    means = []
    for start in range(0, num_resamples, RESAMPLE_BATCH_SIZE):
        batch_size = min(RESAMPLE_BATCH_SIZE, num_resamples - start)
        document_indices = generator.integers(num_documents, size=(batch_size, num_documents))
        means.append(document_values[document_indices].mean(axis=1))
    return np.concatenate(means)
