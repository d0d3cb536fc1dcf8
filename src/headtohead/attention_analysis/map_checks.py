"""Check attention maps: rows sum to 1, no weight on padding, causal triangle, attention window.

The rules are those of the audit of trained models (`audit.model_checks.attention_weights`), applied to the maps that
are shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from headtohead.attention_analysis.maps import AttentionMaps
from headtohead.audit.model_checks.attention_weights import SUM_TOLERANCE, AttentionRuleResult, check_attention_rules

CHECK_TITLES = {"sums": "rows sum to 1", "padding": "nothing on padding", "ahead": "triangle", "behind": "band"}


@dataclass(frozen=True)
class AttentionCheck:
    """One rule and its outcome."""

    name: str
    passed: bool | None
    """None if the rule does not apply"""
    observation: str


def check_attention_maps(maps: AttentionMaps) -> list[AttentionCheck]:
    """Apply the four rules to all maps."""
    real = torch.from_numpy(maps.real)[None]
    results: dict[str, list[tuple[int, AttentionRuleResult]]] = {name: [] for name in CHECK_TITLES}
    for number, weights, reach in zip(maps.layer_numbers, maps.layers, maps.window_sizes, strict=True):
        for rule in check_attention_rules(torch.from_numpy(weights)[None], real, reach):
            results[rule.name].append((number, rule))
    if not maps.is_causal:  # the window of an encoder has two ends
        results["behind"] += results.pop("ahead")
    deviations = {
        name: max((rule.max_deviation for _, rule in layers), default=0.0) for name, layers in results.items()
    }
    errors = f"largest error {deviations['sums']:.1g}, tolerance {SUM_TOLERANCE:g}"
    num_padding = int((~maps.real).sum())
    checks = [
        _build_check("sums", results["sums"], f"Every row of {maps.shape} sums to 1: {errors}."),
        AttentionCheck(CHECK_TITLES["padding"], None, "The text has no padding."),
        AttentionCheck(CHECK_TITLES["ahead"], None, "Encoders attend to later tokens."),
        AttentionCheck(CHECK_TITLES["behind"], None, "No layer has an attention window."),
    ]
    if num_padding:
        outcome = f"The total weight on {num_padding:,} padding positions is {deviations['padding']:g}."
        checks[1] = _build_check("padding", results["padding"], outcome)
    if maps.is_causal:
        outcome = f"No token attends to later ones: the weight above the diagonal is {deviations['ahead']:g}."
        checks[2] = _build_check("ahead", results["ahead"], outcome)
    if results["behind"]:
        numbers = sorted({number for number, _ in results["behind"]})
        layers = "every layer" if len(numbers) == len(maps.layers) else f"layer {', '.join(map(str, numbers))}"
        reaches = sorted({distance for reach in maps.window_sizes for distance in reach if distance})
        distances = " or ".join(map(str, reaches)) or "0"
        outcome = f"In {layers} no token attends farther than {distances} positions: the weight there is "
        checks[3] = _build_check("behind", results["behind"], f"{outcome}{deviations['behind']:g}.")
    return checks


def _build_check(rule_name: str, results: Sequence[tuple[int, AttentionRuleResult]], outcome: str) -> AttentionCheck:
    """Return the outcome of a rule over layers: `outcome` if it holds, else the errors of the first three layers."""
    errors = [f"layer {number}: {rule.error}" for number, rule in results if rule.error]
    if not errors:
        return AttentionCheck(CHECK_TITLES[rule_name], True, outcome)
    more = f"; and {len(errors) - 3} more layers" if len(errors) > 3 else ""
    return AttentionCheck(CHECK_TITLES[rule_name], False, "; ".join(errors[:3]) + more + ".")
