"""Interim analyses: the error rate spent by each, and error rates if seeds are added until the verdict is settled."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headtohead.errors import ScoresError
from headtohead.verdict.additional_data import compute_settled_probability
from headtohead.verdict.compare import compare_scores
from headtohead.verdict.interim import AlphaBudget, InterimAnalysis, compute_interim_confidence, plan_interim_analyses
from headtohead.verdict.intervals import compute_interval
from headtohead.verdict.record import Verdict
from headtohead.verdict.scores import Scores
from headtohead.verdict.variance_components import estimate_variance_components


def test_analyses_of_the_usual_limits() -> None:
    assert plan_interim_analyses(12) == (3, 5, 8, 12)
    assert plan_interim_analyses(8) == (3, 5, 8)
    assert plan_interim_analyses(3) == (3,)


@given(st.integers(3, 500))
def test_analyses_rise_to_the_limit(limit: int) -> None:
    looks = plan_interim_analyses(limit)
    assert looks[-1] == limit
    assert looks[0] >= 3
    assert all(early < late for early, late in pairwise(looks))


def test_two_seeds_are_no_limit() -> None:
    with pytest.raises(ScoresError, match="max_seeds must be at least 3 to estimate the noise, got 2"):
        plan_interim_analyses(2)


def compute_spending(analyses: list[InterimAnalysis]) -> list[float]:
    return [
        1 - compute_interim_confidence(current.num_seeds, analyses[:index], num_planned_seeds=current.num_planned_seeds)
        for index, current in enumerate(analyses)
    ]


@given(st.integers(3, 500))
def test_planned_analyses_together_spend_what_one_at_the_last_of_them_would(limit: int) -> None:
    spent = compute_spending([InterimAnalysis(seeds, limit) for seeds in plan_interim_analyses(limit)])
    assert sum(spent) == pytest.approx(0.05 * (1 - 2 / limit))
    assert min(spent) > 0


def test_the_first_and_later_analyses_spend_by_the_rule() -> None:
    spent = compute_spending([InterimAnalysis(3), InterimAnalysis(5), InterimAnalysis(12)])
    assert spent == pytest.approx([0.05 / 3, 0.85 * 0.05 * (3 / 5 - 1 / 3), 0.85 * 0.05 * (5 / 6 - 3 / 5)])


@given(st.lists(st.tuples(st.integers(3, 100), st.integers(0, 100)), min_size=1, max_size=8))
def test_no_sequence_of_analyses_spends_more_than_the_error_rate(pairs: list[tuple[int, int]]) -> None:
    analyses: list[InterimAnalysis] = []
    for seeds, planned in pairs:
        if all(analysis.num_seeds < seeds for analysis in analyses):
            analyses.append(InterimAnalysis(seeds, planned))
    assert sum(compute_spending(analyses)) < 0.05


def test_more_documents_are_charged_like_more_seeds() -> None:
    """5 seeds on 30 documents after 5 on 10 are charged like 15 seeds; repeating the same documents is not a new
    analysis.
    """
    history = [InterimAnalysis(5, num_documents=10)]
    assert compute_interim_confidence(5, history, num_documents=30) == compute_interim_confidence(
        15, [InterimAnalysis(5)]
    )
    assert compute_interim_confidence(8, history, num_documents=30) == compute_interim_confidence(
        24, [InterimAnalysis(5)]
    )
    for documents in (0, 5, 10):
        assert compute_interim_confidence(5, history, num_documents=documents) == pytest.approx(0.97)
    # An analysis without a number of documents had the same documents.
    assert compute_interim_confidence(8, [InterimAnalysis(5)], num_documents=30) == compute_interim_confidence(
        8, [InterimAnalysis(5)]
    )


@given(st.lists(st.tuples(st.integers(3, 20), st.integers(1, 50)), min_size=1, max_size=8))
def test_analyses_of_more_documents_do_not_spend_more_than_the_error_rate(pairs: list[tuple[int, int]]) -> None:
    spent, analyses = 0.0, list[InterimAnalysis]()
    for seeds, documents in zip(*(sorted(values) for values in zip(*pairs, strict=True)), strict=True):
        if not analyses or (seeds, documents) != (analyses[-1].num_seeds, analyses[-1].num_documents):
            spent += 1 - compute_interim_confidence(seeds, analyses, num_documents=documents)
            analyses.append(InterimAnalysis(seeds, num_documents=documents))
    assert spent < 0.05


def test_advice_on_documents_expects_the_confidence_of_the_next_analysis() -> None:
    """The required prediction is 84 %, at the confidence of an analysis after this one, on more documents."""
    rng = np.random.default_rng(1)
    table = 0.3 + rng.normal(0, 0.02, (8, 1)) + rng.normal(0, 1, 10)
    sides = [Scores(tuple(range(8)), values, np.ones(10)) for values in (np.zeros_like(table), table)]
    (verdict,) = compare_scores(sides[0], {"x": sides[1]}, metric="loss", equivalence_margin=0.1)
    assert verdict.outcome == "cannot tell"
    assert verdict.additional_documents is not None
    components = estimate_variance_components(table[None], np.ones((1, 10)))

    def predict(documents: int) -> float:
        confidence = compute_interim_confidence(8, [InterimAnalysis(8, num_documents=10)], num_documents=documents)
        return compute_settled_probability(components, 8, documents, confidence, (-0.1, 0.1))

    advised = 10 + verdict.additional_documents
    assert predict(advised) >= 0.84
    assert predict(advised - max(1, advised // 100) - 1) < 0.84


def test_repeating_an_analysis_spends_nothing_more() -> None:
    history = [InterimAnalysis(3), InterimAnalysis(5)]
    assert compute_interim_confidence(5, history) == compute_interim_confidence(5, history[:1])
    # A run that is missing now does not make another analysis of the same seeds.
    assert compute_interim_confidence(4, history) == compute_interim_confidence(5, history)


def measure_false_verdicts(*, charged: bool) -> float:
    """Return how often one of four planned analyses of paired differences without a true difference excludes 0."""
    analyses = plan_interim_analyses(12)
    differences = np.random.default_rng(5).standard_normal((4_000, 12))
    is_false = np.zeros(len(differences), bool)
    for index, seeds in enumerate(analyses):
        history = [InterimAnalysis(earlier, 12) for earlier in analyses[:index]]
        confidence = compute_interim_confidence(seeds, history, num_planned_seeds=12) if charged else 0.95
        components = estimate_variance_components(differences[:, :seeds, None], np.ones((len(differences), 1)))
        is_false |= np.abs(components.difference) > compute_interval(components, confidence).half_width
    return float(is_false.mean())


def test_error_rates_are_valid_under_planned_analyses() -> None:
    assert 0.02 < measure_false_verdicts(charged=True) <= 0.05
    assert measure_false_verdicts(charged=False) > 0.09


def judge_paired(differences: np.ndarray, history: tuple[InterimAnalysis, ...], margin: float) -> Verdict:
    seeds = tuple(range(len(differences)))
    sides = [Scores(seeds, values[:, None], np.ones(1)) for values in (np.zeros(len(seeds)), differences)]
    return compare_scores(
        sides[0], {"x": sides[1]}, metric="loss", equivalence_margin=margin, budget=AlphaBudget({"x": history})
    )[0]


def test_every_analysis_of_followed_advice_is_charged() -> None:
    """Follows the advice until the verdict is settled; each interval has exactly the confidence of its analysis."""
    differences = 0.35 + np.random.default_rng(3).standard_normal(300)
    seeds, history, spent = 3, (), 0.0
    for _ in range(6):
        verdict = judge_paired(differences[:seeds], history, 0.3)
        share = 1 - 2 / seeds if not history else 0.85 * (2 / history[-1].num_seeds - 2 / seeds)
        assert 1 - verdict.adjusted_confidence == pytest.approx(0.05 * share)
        spent += 0.05 * share
        if verdict.outcome != "cannot tell":
            break
        assert verdict.additional_seeds
        history = (*history, InterimAnalysis(seeds))
        seeds += verdict.additional_seeds
    assert len(history) >= 1
    assert verdict.outcome == "hurt"  # a higher loss
    assert spent < 0.05


@pytest.mark.parametrize("first_seeds", [3, 5])
def test_advice_is_the_smallest_number_of_seeds_that_is_predicted_to_settle_it(first_seeds: int) -> None:
    """The required prediction is 84 %, at the confidence of the next analysis."""
    differences = 0.4 + np.random.default_rng(0).standard_normal(first_seeds)
    verdict = judge_paired(differences, (), 0.3)
    assert verdict.outcome == "cannot tell"
    assert verdict.additional_seeds is not None
    components = estimate_variance_components(differences[None, :, None], np.ones((1, 1)))

    def predict(num_seeds: int) -> float:
        confidence = compute_interim_confidence(num_seeds, [InterimAnalysis(first_seeds)])
        return compute_settled_probability(components, num_seeds, 1, confidence, (-0.3, 0.3))

    advised = first_seeds + verdict.additional_seeds
    assert predict(advised) >= 0.84
    assert predict(advised - max(1, advised // 100) - 1) < 0.84
