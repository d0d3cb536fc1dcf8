"""Each rule is seen to be kept, and seen to be broken when it is."""

from pathlib import Path

import numpy as np
import pytest

from headtohead.attention_analysis import api
from headtohead.attention_analysis.maps import AttentionCheck, AttentionMaps, check_attention_maps

LENGTH = 6


def uniform_maps(
    weights: np.ndarray | None = None,
    *,
    causal: bool = True,
    reach: tuple[int | None, int | None] = (None, 0),
    pads: int = 0,
) -> AttentionMaps:
    """Return two equal layers with one head that attends uniformly to all visible positions."""
    if weights is None:
        weights = np.tril(np.ones((LENGTH, LENGTH), dtype=np.float32))
        weights /= weights.sum(-1, keepdims=True)
    real = np.arange(LENGTH) < LENGTH - pads
    return AttentionMaps(
        "m",
        "text",
        ("t",) * LENGTH,
        real,
        (weights[None],) * 2,
        causal,
        window_sizes=(reach,) * 2,
        layer_numbers=(1, 2),
        head_numbers=(1,),
    )


def found(maps: AttentionMaps) -> dict[str, AttentionCheck]:
    return {one.name: one for one in check_attention_maps(maps)}


def test_even_triangles_keep_every_rule_that_applies() -> None:
    answers = found(uniform_maps())
    assert {name: one.passed for name, one in answers.items()} == {
        "rows sum to 1": True,
        "nothing on padding": None,
        "triangle": True,
        "band": None,
    }
    assert answers["triangle"].observation == "No token attends to later ones: the weight above the diagonal is 0."


def test_a_row_that_does_not_sum_to_one_is_named_with_its_layer() -> None:
    weights = uniform_maps().layers[0][0].copy()
    weights[3] *= 0.9
    answer = found(uniform_maps(weights))["rows sum to 1"]
    assert answer.passed is False
    assert answer.observation == "layer 1: a row sums to 0.9000; layer 2: a row sums to 0.9000."


def test_what_is_not_a_number_is_not_believed() -> None:
    weights = uniform_maps().layers[0][0].copy()
    weights[3, 0] = np.nan
    assert found(uniform_maps(weights))["rows sum to 1"].passed is False


def test_weight_on_padding_is_seen() -> None:
    kept = np.zeros((LENGTH, LENGTH), dtype=np.float32)
    kept[:, :4] = 0.25
    assert found(uniform_maps(kept, causal=False, reach=(None, None), pads=2))["nothing on padding"].passed is True
    kept[1, 3], kept[1, 5] = 0.0, 0.25
    answer = found(uniform_maps(kept, causal=False, reach=(None, None), pads=2))["nothing on padding"]
    assert answer.passed is False
    assert answer.observation.startswith("layer 1: a weight of 0.25 on padding")


def test_what_padding_looks_at_means_nothing() -> None:
    weights = np.zeros((LENGTH, LENGTH), dtype=np.float32)
    weights[:4, :4] = 0.25
    weights[4:, 5] = 7.0
    assert all(
        one.passed is not False
        for one in check_attention_maps(uniform_maps(weights, causal=False, reach=(None, None), pads=2))
    )


def test_a_look_ahead_is_seen_in_a_decoder_only() -> None:
    weights = np.full((LENGTH, LENGTH), 1 / LENGTH, dtype=np.float32)
    answer = found(uniform_maps(weights))["triangle"]
    assert answer.passed is False
    assert "a weight of 0.17 on later positions" in answer.observation
    assert found(uniform_maps(weights, causal=False, reach=(None, None)))["triangle"].passed is None


@pytest.mark.parametrize(("causal", "reach", "far"), [(True, (2, 0), (5, 0)), (False, (2, 2), (0, 5))])
def test_a_look_beyond_the_window_is_seen_on_both_sides(
    causal: bool, reach: tuple[int, int], far: tuple[int, int]
) -> None:
    at = np.arange(LENGTH)
    behind = at[:, None] - at[None]
    weights = ((behind <= reach[0]) & (-behind <= reach[1])).astype(np.float32)
    weights /= weights.sum(-1, keepdims=True)
    answer = found(uniform_maps(weights, causal=causal, reach=reach))["band"]
    assert answer.passed is True
    assert answer.observation == "In every layer no token attends farther than 2 positions: the weight there is 0."
    weights[far] = 0.01
    assert found(uniform_maps(weights, causal=causal, reach=reach))["band"].passed is False


def test_trained_models_keep_the_rules_of_their_parts(decoders: dict[str, Path]) -> None:
    text = "the people will build new schools ."
    assert [one.passed for one in api.analyze_attention(decoders["window"], text).checks] == [True, None, True, True]
    assert [one.passed for one in api.analyze_attention(decoders["alibi"], text).checks] == [True, None, True, None]
