"""The prediction interval for a new corpus covers the result of an experiment on one."""

from __future__ import annotations

import numpy as np
import pytest

from headtohead.verdict.prediction_interval import compute_prediction_interval

NUM_EXPERIMENTS = 3000


@pytest.mark.parametrize("num_corpora", [3, 5, 10])
@pytest.mark.parametrize("spread", [0.0, 0.5, 1.0, 2.0])
def test_it_covers_the_result_on_a_new_corpus(num_corpora: int, spread: float) -> None:
    """`spread` is the standard deviation between corpora, in standard errors of a cell."""
    draw = np.random.default_rng(1)
    results = draw.normal(0.3, np.hypot(spread, 1.0), (NUM_EXPERIMENTS, num_corpora + 1))
    intervals = [compute_prediction_interval(row[:-1].tolist()) for row in results]
    covered = [low <= new <= high for (low, high), new in zip(intervals, results[:, -1], strict=True)]
    assert abs(np.mean(covered) - 0.95) < 4 * np.sqrt(0.05 * 0.95 / NUM_EXPERIMENTS)


def test_two_corpora_have_none() -> None:
    assert compute_prediction_interval([0.1, 0.2]) is None
    low, high = compute_prediction_interval([0.1, 0.2, 0.3]) or (0.0, 0.0)
    assert low == pytest.approx(0.2 - 4.3027 * 0.1 * np.sqrt(4 / 3), abs=1e-4) and high == pytest.approx(0.4 - low)
