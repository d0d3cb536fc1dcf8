"""seeds = "auto": looks, what each may spend, and error rates under peeking."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headtohead.errors import ScoresError
from headtohead.verdict.compare import compare_scores
from headtohead.verdict.interim import compute_analysis_confidence, is_settled, plan_interim_analyses
from headtohead.verdict.scores import Scores
from headtohead.verdict.statistics import compute_interval, estimate_variance_components


def test_looks_of_the_usual_limits() -> None:
    assert plan_interim_analyses(12) == (3, 5, 8, 12)
    assert plan_interim_analyses(8) == (3, 5, 8)
    assert plan_interim_analyses(2) == (2,)


@given(st.integers(2, 500))
def test_looks_rise_to_the_limit(limit: int) -> None:
    looks = plan_interim_analyses(limit)
    assert looks[-1] == limit
    assert looks[0] >= 2
    assert all(early < late for early, late in pairwise(looks))


@given(st.integers(2, 500), st.floats(0.5, 0.999))
def test_all_looks_together_spend_exactly_the_error_rate(limit: int, confidence: float) -> None:
    looks = plan_interim_analyses(limit)
    spent = sum(1 - compute_analysis_confidence(look, looks, confidence) for look in looks)
    assert spent == pytest.approx(1 - confidence)
    assert all(compute_analysis_confidence(look, looks, confidence) >= confidence - 1e-12 for look in looks)


def test_one_look_is_no_peeking() -> None:
    assert compute_analysis_confidence(5, (5,)) == pytest.approx(0.95)


@pytest.mark.parametrize(
    ("look", "looks", "words"),
    [
        (4, (3, 5), "no analysis at 4 seeds is planned; planned: 3, 5"),
        (3, (5, 3), "increasing numbers of seeds, at least 2, got 5, 3"),
        (1, (1, 3), "increasing numbers of seeds"),
        (3, (), "got none"),
    ],
)
def test_unplanned_looks_are_refused(look: int, looks: tuple[int, ...], words: str) -> None:
    with pytest.raises(ScoresError, match=words):
        compute_analysis_confidence(look, looks)


def test_one_seed_is_no_limit() -> None:
    with pytest.raises(ScoresError, match="max_seeds must be at least 2 to estimate the noise, got 1"):
        plan_interim_analyses(1)


def test_settled_means_that_no_verdict_is_open() -> None:
    def figures(*values: float) -> Scores:
        return Scores(tuple(range(len(values))), np.array(values)[:, None], np.ones(1))

    base, clear, vague = figures(1, 2, 3), figures(2, 3.01, 4), figures(0, 3, 3)
    judged = {"metric": "loss", "equivalence_margin": 0.1, "withheld": {"leak": ["reads the future"]}}
    assert is_settled(compare_scores(base, {"clear": clear}, **judged))
    assert not is_settled(compare_scores(base, {"clear": clear, "vague": vague}, **judged))


def measure_false_verdicts(*, charged: bool) -> float:
    """Return how often one of four analyses of paired differences without a true difference excludes 0."""
    analyses = plan_interim_analyses(12)
    differences = np.random.default_rng(5).standard_normal((4_000, 12))
    is_false = np.zeros(len(differences), bool)
    for seeds in analyses:
        confidence = compute_analysis_confidence(seeds, analyses) if charged else 0.95
        parts = estimate_variance_components(differences[:, :seeds, None], np.ones((len(differences), 1)))
        is_false |= np.abs(parts.difference) > compute_interval(parts, confidence).half_width
    return float(is_false.mean())


def test_error_rates_are_valid_under_repeated_analyses() -> None:
    assert 0.025 < measure_false_verdicts(charged=True) <= 0.05
    assert measure_false_verdicts(charged=False) > 0.09
