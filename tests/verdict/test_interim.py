"""Interim analyses: what each may spend, and error rates if seeds are added until the verdict is settled."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headtohead.errors import ScoresError
from headtohead.verdict.compare import ErrorBudget, compare_scores
from headtohead.verdict.interim import Analysis, compute_analysis_confidence, plan_interim_analyses
from headtohead.verdict.record import Verdict
from headtohead.verdict.scores import Scores
from headtohead.verdict.statistics import compute_interval, estimate_variance_components


def test_looks_of_the_usual_limits() -> None:
    assert plan_interim_analyses(12) == (3, 5, 8, 12)
    assert plan_interim_analyses(8) == (3, 5, 8)
    assert plan_interim_analyses(3) == (3,)


@given(st.integers(3, 500))
def test_looks_rise_to_the_limit(limit: int) -> None:
    looks = plan_interim_analyses(limit)
    assert looks[-1] == limit
    assert looks[0] >= 3
    assert all(early < late for early, late in pairwise(looks))


def test_two_seeds_are_no_limit() -> None:
    with pytest.raises(ScoresError, match="max_seeds must be at least 3 to estimate the noise, got 2"):
        plan_interim_analyses(2)


def compute_spending(analyses: list[Analysis]) -> list[float]:
    return [
        1 - compute_analysis_confidence(current.seeds, analyses[:index], planned_seeds=current.planned_seeds)
        for index, current in enumerate(analyses)
    ]


@given(st.integers(3, 500))
def test_planned_analyses_together_spend_what_one_at_the_last_of_them_would(limit: int) -> None:
    spent = compute_spending([Analysis(seeds, limit) for seeds in plan_interim_analyses(limit)])
    assert sum(spent) == pytest.approx(0.05 * (1 - 2 / limit))
    assert min(spent) > 0


def test_the_first_and_later_analyses_spend_by_the_rule() -> None:
    spent = compute_spending([Analysis(3), Analysis(5), Analysis(12)])
    assert spent == pytest.approx([0.05 / 3, 0.85 * 0.05 * (3 / 5 - 1 / 3), 0.85 * 0.05 * (5 / 6 - 3 / 5)])


@given(st.lists(st.tuples(st.integers(3, 100), st.integers(0, 100)), min_size=1, max_size=8))
def test_no_sequence_of_analyses_spends_more_than_the_error_rate(pairs: list[tuple[int, int]]) -> None:
    analyses: list[Analysis] = []
    for seeds, planned in pairs:
        if all(analysis.seeds < seeds for analysis in analyses):
            analyses.append(Analysis(seeds, planned))
    assert sum(compute_spending(analyses)) < 0.05


def test_repeating_an_analysis_spends_nothing_more() -> None:
    history = [Analysis(3), Analysis(5)]
    assert compute_analysis_confidence(5, history) == compute_analysis_confidence(5, history[:1])
    # A run that is missing now does not make another analysis of the same seeds.
    assert compute_analysis_confidence(4, history) == compute_analysis_confidence(5, history)


def measure_false_verdicts(*, charged: bool) -> float:
    """Return how often one of four planned analyses of paired differences without a true difference excludes 0."""
    analyses = plan_interim_analyses(12)
    differences = np.random.default_rng(5).standard_normal((4_000, 12))
    is_false = np.zeros(len(differences), bool)
    for index, seeds in enumerate(analyses):
        history = [Analysis(earlier, 12) for earlier in analyses[:index]]
        confidence = compute_analysis_confidence(seeds, history, planned_seeds=12) if charged else 0.95
        parts = estimate_variance_components(differences[:, :seeds, None], np.ones((len(differences), 1)))
        is_false |= np.abs(parts.difference) > compute_interval(parts, confidence).half_width
    return float(is_false.mean())


def test_error_rates_are_valid_under_planned_analyses() -> None:
    assert 0.02 < measure_false_verdicts(charged=True) <= 0.05
    assert measure_false_verdicts(charged=False) > 0.09


def judge_paired(differences: np.ndarray, history: tuple[Analysis, ...], margin: float) -> Verdict:
    seeds = tuple(range(len(differences)))
    sides = [Scores(seeds, values[:, None], np.ones(1)) for values in (np.zeros(len(seeds)), differences)]
    return compare_scores(
        sides[0], {"x": sides[1]}, metric="loss", equivalence_margin=margin, budget=ErrorBudget({"x": history})
    )[0]


def follow_advice(rng: np.random.Generator, first_seeds: int, effect: float, margin: float) -> list[Verdict]:
    """Return all verdicts until the question is settled or no practical number of seeds would settle it."""
    differences = effect + rng.standard_normal(300)
    verdicts: list[Verdict] = []
    seeds, history = first_seeds, ()
    while seeds <= len(differences) and len(verdicts) < 6:
        verdicts.append(judge_paired(differences[:seeds], history, margin))
        if verdicts[-1].outcome != "cannot tell" or not verdicts[-1].additional_seeds:
            break
        history = (*history, Analysis(seeds))
        seeds += verdicts[-1].additional_seeds
    return verdicts


@pytest.mark.parametrize("first_seeds", [3, 5])
def test_advice_followed_to_the_end_keeps_the_error_rate(first_seeds: int) -> None:
    rng, experiments = np.random.default_rng(first_seeds), 60
    outcomes = [follow_advice(rng, first_seeds, 0.0, 0.3)[-1].outcome for _ in range(experiments)]
    is_false = [outcome in ("helped", "hurt") for outcome in outcomes]
    assert np.mean(is_false) <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / experiments)


def test_the_first_advice_settles_four_of_five() -> None:
    # Effects are normal with 1.5 times the standard deviation of a paired difference.
    rng, settled = np.random.default_rng(0), []
    for _ in range(60):
        verdicts = follow_advice(rng, 4, 1.5 * rng.standard_normal(), 0.3)
        if len(verdicts) > 1:
            settled.append(verdicts[1].outcome != "cannot tell")
    assert 0.65 <= np.mean(settled) <= 0.95
