"""The paired bootstrap is deterministic, and about as wide as the t interval where the latter is valid."""

import numpy as np
import pytest

from headtohead.errors import ScoresError
from headtohead.verdict.bootstrap import bootstrap_mean, bootstrap_paired_difference
from headtohead.verdict.intervals import compute_mean_interval


def test_the_interval_is_the_same_on_every_call_and_does_not_disturb_others():
    values = np.random.default_rng(1).normal(size=80).tolist()
    np.random.seed(3)  # noqa: NPY002  the global stream must not matter
    first = bootstrap_mean(values)
    np.random.seed(4)  # noqa: NPY002
    assert bootstrap_mean(values) == first
    assert first.interval == pytest.approx((-0.25672, 0.11245), abs=1e-5)


def test_it_is_about_the_t_interval_of_a_mean():
    values = np.random.default_rng(0).normal(0.3, 1.0, size=200).tolist()
    low, high = compute_mean_interval(values)
    result = bootstrap_mean(values)
    assert result.value == pytest.approx(np.mean(values))
    assert result.interval == pytest.approx((low, high), abs=0.02)
    assert result.positive_share > 0.99


def test_pairing_takes_the_documents_own_difficulty_away():
    rng = np.random.default_rng(2)
    document = rng.normal(0, 1, size=100)
    item, other = document + rng.normal(0, 0.05, 100), document + 0.05 + rng.normal(0, 0.05, 100)
    result = bootstrap_paired_difference(item.tolist(), other.tolist())
    assert result.interval[0] > 0
    assert result.interval[1] - result.interval[0] < 0.05
    unpaired = bootstrap_mean(item.tolist())
    assert unpaired.interval[1] - unpaired.interval[0] > 0.3
    assert bootstrap_paired_difference(other.tolist(), item.tolist()).value == pytest.approx(-result.value)


def test_what_cannot_be_drawn_from_is_reported():
    with pytest.raises(ScoresError, match="2 documents, but 3 for the baseline"):
        bootstrap_paired_difference([1.0, 2.0, 3.0], [1.0, 2.0])
    with pytest.raises(ScoresError, match="one finite number for each document"):
        bootstrap_mean([])
