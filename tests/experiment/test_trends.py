"""Contrasts and trends: slopes, cancellation of common noise, and the point at which an effect becomes unclear."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from headtohead.findings.contrasts import Contrast, PairedDifferences, estimate_contrast
from headtohead.findings.example_scores import ScoreUnit
from headtohead.findings.trends import AxisLevel, TrendEstimate, classify_trend_direction

NUM_SEEDS, NUM_DOCUMENTS = 5, 12
NOISE = np.random.default_rng(0)


def make_differences(effect: float, noise: float = 0.01, shared: np.ndarray | float = 0.0) -> PairedDifferences:
    """Return per-token differences around an effect, for documents of 100 tokens."""
    values = effect + shared + noise * NOISE.standard_normal((NUM_SEEDS, NUM_DOCUMENTS))
    weights = np.full(NUM_DOCUMENTS, 100.0)
    names = tuple(str(number) for number in range(NUM_DOCUMENTS))
    return PairedDifferences(ScoreUnit(), tuple(range(NUM_SEEDS)), names, values * weights, weights)


def make_trend(effects: list[float], **options: float) -> TrendEstimate:
    """Return a trend over 100, 200, 400, ... steps."""
    levels = [AxisLevel(f"{index}", 100.0 * 2**index, (f"cell-{index}",)) for index in range(len(effects))]
    return TrendEstimate(levels, {f"cell-{i}": make_differences(effect, **options) for i, effect in enumerate(effects)})


def test_the_slope_is_the_change_per_doubling() -> None:
    slope = make_trend([-0.02, -0.05, -0.08]).estimate_slope()
    assert slope is not None and slope.is_clear and slope.value == pytest.approx(-0.03, abs=0.01)


def test_what_all_cells_share_cancels_in_a_slope() -> None:
    shared = np.random.default_rng(1).normal(0, 0.5, (NUM_SEEDS, NUM_DOCUMENTS))  # large noise of seeds and documents
    trend = make_trend([-0.02, -0.05, -0.08], shared=shared)
    slope, level = trend.estimate_slope(), trend.estimate_level_effect(0)
    assert slope is not None and slope.is_clear
    assert level is not None and not level.is_clear and level.half_width > 10 * slope.half_width


def test_a_vanishing_effect_is_unclear_beyond_the_tested_values() -> None:
    x, is_extrapolated = make_trend([-0.3, -0.2, -0.1]).find_unclear_sign()
    assert is_extrapolated and x == 800.0
    assert make_trend([-0.1, -0.2, -0.3]).find_unclear_sign() == (None, False), "a growing effect stays clear"


def test_an_effect_that_is_unclear_at_the_end_names_the_first_such_value() -> None:
    assert make_trend([-0.2, 0.0, 0.0], noise=0.02).find_unclear_sign() == (200.0, False)
    assert make_trend([0.0, 0.0], noise=0.02).find_unclear_sign() == (100.0, False)


def test_the_direction_of_an_effect() -> None:
    assert classify_trend_direction(-0.1, Contrast(-0.02, 0.01), 2, 0.01) == "grows"
    assert classify_trend_direction(-0.1, Contrast(0.02, 0.01), 2, 0.01) == "shrinks"
    assert classify_trend_direction(-0.1, Contrast(0.001, 0.002), 2, 0.01) == "stays"
    assert classify_trend_direction(-0.1, Contrast(0.001, 0.02), 2, 0.01) == "cannot tell"


def test_cells_that_were_scored_on_other_tokens_have_no_contrast() -> None:
    first, second = make_differences(0.1), make_differences(0.2)
    other = replace(second, weights=second.weights + 1)
    assert estimate_contrast({"a": first, "b": second}, {"a": -1, "b": 1}) is not None
    assert estimate_contrast({"a": first, "b": other}, {"a": -1, "b": 1}) is None
    per_byte = PairedDifferences(
        ScoreUnit(per_byte=True), second.seeds, second.documents, second.totals, second.weights
    )
    assert estimate_contrast({"a": first, "b": per_byte}, {"a": -1, "b": 1}) is None


def test_only_seeds_that_all_cells_have_count() -> None:
    first, second = make_differences(0.1), make_differences(0.3)
    fewer = replace(second, seeds=(1, 2), totals=second.totals[[1, 2]])
    contrast = estimate_contrast({"a": first, "b": fewer}, {"a": -1, "b": 1})
    assert contrast is not None
    expected = (second.totals[[1, 2]] - first.totals[[1, 2]]).sum() / 2 / first.weights.sum()
    assert contrast.value == pytest.approx(expected)
