import pytest
from hypothesis import given
from hypothesis import strategies as st

from headtohead.presentation import number_format

NBSP = number_format.NO_BREAK_SPACE


@pytest.mark.parametrize(
    ("metric", "value", "shown"),
    [
        ("perplexity", 378.7623, "378.8"),
        ("perplexity", 6489.78, "6,489.8"),
        ("perplexity", 12820.43, "12,820"),
        ("perplexity", 2550125904.81, "2.55e9"),
        ("perplexity", 9.8765, "9.877"),
        ("accuracy", 0.8467, f"84.7{NBSP}%"),
        ("loss", -0.5, "−0.500"),
        ("perplexity", None, "–"),
        ("accuracy", float("nan"), "–"),
    ],
)
def test_a_score_is_shown_in_its_own_unit(metric: str, value: float | None, shown: str) -> None:
    assert number_format.format_score(metric, value) == shown


@pytest.mark.parametrize(
    ("metric", "effect", "shown"),
    [
        ("perplexity", 0.031, f"+3.1{NBSP}%"),
        ("perplexity", -0.0806, f"−8.1{NBSP}%"),
        ("perplexity", 5000.0, f"more than +1,000{NBSP}%"),
        ("accuracy", -0.012, f"−1.2{NBSP}points"),
        ("perplexity", 0.00001, f"0.0{NBSP}%"),
        ("score", 0.25, "+0.250"),
        ("perplexity", None, "–"),
    ],
)
def test_a_change_has_a_sign_and_a_unit(metric: str, effect: float | None, shown: str) -> None:
    assert number_format.format_effect(metric, effect) == shown


def test_an_interval_names_its_unit_once() -> None:
    assert number_format.format_effect_interval("perplexity", [-0.061, -0.043]) == f"−6.10 to −4.30{NBSP}%"
    assert number_format.format_effect_interval("accuracy", [-0.086, 0.05]) == f"−8.6 to +5.0{NBSP}points"
    assert number_format.format_effect_interval("accuracy", [None, None]) == "–"
    assert number_format.format_score_interval("accuracy", [0.81, 0.9]) == f"81.0 to 90.0{NBSP}%"


@given(st.floats(-0.5, 0.5), st.floats(1e-5, 0.4))
def test_half_an_interval_is_shown_with_at_least_one_digit(middle: float, half: float) -> None:
    places = number_format.choose_decimals("perplexity", [middle - half, middle + half])
    assert float(f"{100 * half:.{places}f}") > 0


@pytest.mark.parametrize(
    ("metric", "matters", "shown"),
    [("perplexity", 0.01, f"±1{NBSP}%"), ("accuracy", 0.01, f"±1{NBSP}point"), ("accuracy", 0.02, f"±2{NBSP}points")],
)
def test_the_band_is_reported_in_the_reader_s_unit(metric: str, matters: float, shown: str) -> None:
    assert number_format.format_margin(metric, matters) == shown


def test_costs_are_ratios_and_rounded_sizes() -> None:
    assert number_format.format_ratio([0.05, 0.06]) == f"1.20{NBSP}×"
    assert number_format.format_ratio([0, 5]) == number_format.format_ratio([None, 5]) == "–"
    assert number_format.format_si_number(1002880) == f"1.00{NBSP}M"
    assert number_format.format_bytes(597860352) == f"598{NBSP}MB"
    assert number_format.format_seconds(0.0576) == f"57.6{NBSP}ms"


@pytest.mark.parametrize(
    ("setting", "shown"),
    [
        (["learned"], "learned"),
        (["alibi", "rope"], "[alibi, rope]"),
        ({"kind": "mlp", "hidden": 100}, "{ kind = mlp, hidden = 100 }"),
        (False, "false"),
        (1e-3, "0.001"),
        (None, "not set"),
    ],
)
def test_a_setting_reads_as_in_a_file(setting: object, shown: str) -> None:
    assert number_format.format_setting(setting) == shown


@pytest.mark.parametrize(("metric", "lower"), [("perplexity", True), ("loss", True), ("accuracy", False)])
def test_better_means_lower_for_perplexity_and_higher_for_accuracy(metric: str, lower: bool) -> None:
    assert number_format.is_improvement(metric, -1.0) is lower
    assert number_format.is_improvement(metric, 1.0) is not lower
