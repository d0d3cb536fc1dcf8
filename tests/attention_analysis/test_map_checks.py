"""Each check passes on valid attention weights and fails on weights that violate it."""

from pathlib import Path

import numpy as np
import pytest

from headtohead.attention_analysis.analysis import analyze_attention
from headtohead.attention_analysis.map_checks import AttentionCheck, check_attention_maps
from headtohead.attention_analysis.maps import AttentionMaps

LENGTH = 6


def make_maps(
    weights: np.ndarray | None = None,
    *,
    is_causal: bool = True,
    reach: tuple[int | None, int | None] = (None, 0),
    num_padding: int = 0,
) -> AttentionMaps:
    """Return maps of two equal layers with one head, by default a head that attends uniformly to earlier tokens."""
    if weights is None:
        weights = np.tril(np.ones((LENGTH, LENGTH), dtype=np.float32))
        weights /= weights.sum(-1, keepdims=True)
    attention_mask = np.arange(LENGTH) < LENGTH - num_padding
    return AttentionMaps(
        "m",
        "text",
        ("t",) * LENGTH,
        attention_mask,
        (weights[None],) * 2,
        is_causal,
        layer_reaches=(reach,) * 2,
        layer_numbers=(1, 2),
        head_numbers=(1,),
    )


def run_checks(maps: AttentionMaps) -> dict[str, AttentionCheck]:
    return {check.name: check for check in check_attention_maps(maps)}


def test_uniform_causal_attention_passes_every_applicable_check() -> None:
    checks = run_checks(make_maps())
    assert {name: check.passed for name, check in checks.items()} == {
        "rows sum to 1": True,
        "nothing on padding": None,
        "triangle": True,
        "band": None,
    }
    assert checks["triangle"].observation == "No token attends to later ones: the weight above the diagonal is 0."


def test_a_row_that_does_not_sum_to_one_is_reported_with_its_layer() -> None:
    weights = make_maps().weights_by_layer[0][0].copy()
    weights[3] *= 0.9
    check = run_checks(make_maps(weights))["rows sum to 1"]
    assert check.passed is False
    assert check.observation == "layer 1: a row sums to 0.9000; layer 2: a row sums to 0.9000."


def test_nan_weights_are_detected() -> None:
    weights = make_maps().weights_by_layer[0][0].copy()
    weights[3, 0] = np.nan
    assert run_checks(make_maps(weights))["rows sum to 1"].passed is False


def test_weight_on_padding_is_detected() -> None:
    weights = np.zeros((LENGTH, LENGTH), dtype=np.float32)
    weights[:, :4] = 0.25
    assert (
        run_checks(make_maps(weights, is_causal=False, reach=(None, None), num_padding=2))["nothing on padding"].passed
        is True
    )
    weights[1, 3], weights[1, 5] = 0.0, 0.25
    check = run_checks(make_maps(weights, is_causal=False, reach=(None, None), num_padding=2))["nothing on padding"]
    assert check.passed is False
    assert check.observation.startswith("layer 1: a weight of 0.25 on padding")


def test_attention_of_padding_queries_is_ignored() -> None:
    weights = np.zeros((LENGTH, LENGTH), dtype=np.float32)
    weights[:4, :4] = 0.25
    weights[4:, 5] = 7.0
    assert all(
        check.passed is not False
        for check in check_attention_maps(make_maps(weights, is_causal=False, reach=(None, None), num_padding=2))
    )


def test_attention_to_later_tokens_is_detected_only_in_decoders() -> None:
    weights = np.full((LENGTH, LENGTH), 1 / LENGTH, dtype=np.float32)
    check = run_checks(make_maps(weights))["triangle"]
    assert check.passed is False
    assert "a weight of 0.17 on later positions" in check.observation
    assert run_checks(make_maps(weights, is_causal=False, reach=(None, None)))["triangle"].passed is None


@pytest.mark.parametrize(("is_causal", "reach", "position_outside"), [(True, (2, 0), (5, 0)), (False, (2, 2), (0, 5))])
def test_attention_outside_the_window_is_detected_in_both_directions(
    is_causal: bool, reach: tuple[int, int], position_outside: tuple[int, int]
) -> None:
    positions = np.arange(LENGTH)
    distances = positions[:, None] - positions[None]
    weights = ((distances <= reach[0]) & (-distances <= reach[1])).astype(np.float32)
    weights /= weights.sum(-1, keepdims=True)
    check = run_checks(make_maps(weights, is_causal=is_causal, reach=reach))["band"]
    assert check.passed is True
    assert check.observation == "In every layer no token attends farther than 2 positions: the weight there is 0."
    weights[position_outside] = 0.01
    assert run_checks(make_maps(weights, is_causal=is_causal, reach=reach))["band"].passed is False


def test_trained_models_pass_the_checks_of_their_parts(decoders: dict[str, Path]) -> None:
    text = "the people will build new schools ."
    assert [check.passed for check in analyze_attention(decoders["window"], text).checks] == [True, None, True, True]
    assert [check.passed for check in analyze_attention(decoders["alibi"], text).checks] == [True, None, True, None]
