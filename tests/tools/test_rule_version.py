"""The version of the verdict rule changes if and only if its numbers change."""

from __future__ import annotations

from collections import Counter

import pytest
from tools.calibration import rule_version

from headtohead.verdict import additional_data, interim, lost_runs, phrasing, variance_components
from headtohead.verdict.decision_rule import VERDICT_OUTCOMES

RULE_CONSTANTS = (
    (variance_components, "MIN_DOCUMENT_SHARE", 0.45),
    (variance_components, "MIN_EQUIVALENT_DOCUMENTS", 6.5),
    (interim, "LATER_ANALYSIS_FACTOR", 0.9),
    (interim, "GROWTH_FACTOR", 1.5),
    (additional_data, "REQUIRED_PREDICTION", 0.8),
    (lost_runs, "MAX_LOST_SHARE", 0.4),
    (lost_runs, "MAX_RANK_TEST_P_VALUE", 0.05),
    (lost_runs, "MAX_EXACT_RUNS", 0),
)


@pytest.fixture(autouse=True)
def clear_version_caches() -> None:
    """Compute versions again in every test."""
    rule_version.compute_verdict_version.cache_clear()
    rule_version.compute_interval_version.cache_clear()


def test_fixed_experiments_have_all_outcomes_and_kinds_of_data() -> None:
    verdicts = list(rule_version.judge_fixed_experiments())
    outcomes = Counter(verdict.outcome for verdict in verdicts)
    assert set(outcomes) == set(VERDICT_OUTCOMES) - {"quick look"}
    assert all(any(getattr(verdict, name) for verdict in verdicts) for name in ("lost_runs", "additional_documents"))
    assert any(not verdict.is_paired and verdict.interval[0] < 0 for verdict in verdicts)


@pytest.mark.parametrize(("module", "name", "value"), RULE_CONSTANTS, ids=[name for _, name, _ in RULE_CONSTANTS])
def test_different_numbers_change_the_version(
    monkeypatch: pytest.MonkeyPatch, module: object, name: str, value: float, unchecked: None
) -> None:
    version_before = rule_version.compute_verdict_version()
    rule_version.compute_verdict_version.cache_clear()
    monkeypatch.setattr(module, name, value)
    assert rule_version.compute_verdict_version() != version_before


def test_different_sentences_do_not_change_the_version(monkeypatch: pytest.MonkeyPatch, unchecked: None) -> None:
    version_before = rule_version.compute_verdict_version()
    rule_version.compute_verdict_version.cache_clear()
    monkeypatch.setattr(phrasing, "format_summary", lambda *values: "")
    assert rule_version.compute_verdict_version() == version_before


def test_interval_version_depends_only_on_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    version_before = rule_version.compute_interval_version()
    for module, name, value in (
        (interim, "LATER_ANALYSIS_FACTOR", 0.9),
        (variance_components, "MIN_DOCUMENT_SHARE", 0.45),
    ):
        rule_version.compute_interval_version.cache_clear()
        monkeypatch.setattr(module, name, value)
        assert (rule_version.compute_interval_version() == version_before) == (module is interim)
