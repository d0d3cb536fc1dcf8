"""Check a text's attention maps: rows sum to 1, no weight on padding, on later tokens or outside the attention window.

The rules are those with which trained models are audited (`audit.model_checks.attention_weights`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from headtohead.attention_analysis.maps import AttentionMaps
from headtohead.audit.model_checks.attention_weights import SUM_TOLERANCE, AttentionRuleResult, check_attention_rules

CHECK_TITLES = {"sums": "rows sum to 1", "padding": "nothing on padding", "ahead": "triangle", "behind": "band"}
"""displayed name of each rule: normalization, padding mask, causal mask and attention window"""
MAX_REPORTED_LAYERS = 3


@dataclass(frozen=True)
class AttentionCheck:
    """The outcome of one rule for the maps of all layers."""

    name: str
    passed: bool | None
    """None if the rule does not apply"""
    observation: str


def check_attention_maps(maps: AttentionMaps) -> list[AttentionCheck]:
    """Check that the maps of every layer are normalized and respect padding, causal mask and attention window."""
    attention_mask = torch.from_numpy(maps.attention_mask)[None]
    results: dict[str, list[tuple[int, AttentionRuleResult]]] = {rule_name: [] for rule_name in CHECK_TITLES}
    for layer, weights, reach in zip(maps.layer_numbers, maps.weights_by_layer, maps.layer_reaches, strict=True):
        for result in check_attention_rules(torch.from_numpy(weights)[None], attention_mask, reach):
            results[result.name].append((layer, result))
    if not maps.is_causal:  # an encoder's window extends in both directions
        results["behind"] += results.pop("ahead")
    max_deviations = {
        rule_name: max((result.max_deviation for _, result in layer_results), default=0.0)
        for rule_name, layer_results in results.items()
    }
    sum_error = f"largest error {max_deviations['sums']:.1g}, tolerance {SUM_TOLERANCE:g}"
    num_padding = int((~maps.attention_mask).sum())
    checks = [
        _combine_layer_results("sums", results["sums"], f"Every row of {maps.shape} sums to 1: {sum_error}."),
        AttentionCheck(CHECK_TITLES["padding"], None, "The text has no padding."),
        AttentionCheck(CHECK_TITLES["ahead"], None, "Encoders attend to later tokens."),
        AttentionCheck(CHECK_TITLES["behind"], None, "No layer has an attention window."),
    ]
    if num_padding:
        observation = f"The total weight on {num_padding:,} padding positions is {max_deviations['padding']:g}."
        checks[1] = _combine_layer_results("padding", results["padding"], observation)
    if maps.is_causal:
        observation = f"No token attends to later ones: the weight above the diagonal is {max_deviations['ahead']:g}."
        checks[2] = _combine_layer_results("ahead", results["ahead"], observation)
    if results["behind"]:
        layers = sorted({layer for layer, _ in results["behind"]})
        has_all_layers = len(layers) == len(maps.weights_by_layer)
        layer_list = "every layer" if has_all_layers else f"layer {', '.join(map(str, layers))}"
        distances = sorted({distance for reach in maps.layer_reaches for distance in reach if distance})
        distance_list = " or ".join(map(str, distances)) or "0"
        observation = (
            f"In {layer_list} no token attends farther than {distance_list} positions: the weight there is "
            f"{max_deviations['behind']:g}."
        )
        checks[3] = _combine_layer_results("behind", results["behind"], observation)
    return checks


def _combine_layer_results(
    rule_name: str, layer_results: Sequence[tuple[int, AttentionRuleResult]], observation: str
) -> AttentionCheck:
    """Return a rule's outcome over all layers: `observation` if it holds, else the errors of the first layers."""
    errors = [f"layer {layer}: {result.error}" for layer, result in layer_results if result.error]
    if not errors:
        return AttentionCheck(CHECK_TITLES[rule_name], True, observation)
    num_omitted = len(errors) - MAX_REPORTED_LAYERS
    omitted = f"; and {num_omitted} more layers" if num_omitted > 0 else ""
    return AttentionCheck(CHECK_TITLES[rule_name], False, "; ".join(errors[:MAX_REPORTED_LAYERS]) + omitted + ".")
