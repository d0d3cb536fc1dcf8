"""Prediction interval for the result of the same experiment on a new corpus.

Only corpora are random: rates, sizes and budgets are chosen, so effects are averaged over them within each corpus
first. With k corpora, mean m and standard deviation s of their effects, the interval is m +- t(k - 1) s sqrt(1 + 1/k).
It covers the result that an experiment on a new corpus measures, its own noise included.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import scipy

MIN_CORPORA = 3
"""with two corpora, t has one degree of freedom and the interval would say nothing"""


def compute_prediction_interval(effects: Sequence[float], confidence: float = 0.95) -> tuple[float, float] | None:
    """Return the interval for the effect on a new corpus, or None with fewer than three corpora."""
    num_corpora = len(effects)
    if num_corpora < MIN_CORPORA:
        return None
    mean, deviation = statistics.fmean(effects), statistics.stdev(effects)
    quantile = float(scipy.special.stdtrit(num_corpora - 1, (1 + confidence) / 2))
    half_width = quantile * deviation * math.sqrt(1 + 1 / num_corpora)
    return mean - half_width, mean + half_width
