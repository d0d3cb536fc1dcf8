"""Check attention maps: rows sum to 1, no weight on padding, causal triangle, attention window.

The rules are those of the audit of trained models (`audit.model_checks.attention_weights`), applied to the maps that
are shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

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
    found: str

    def to_dict(self) -> dict[str, object]:
        return asdict(self)


def check_attention_maps(maps: AttentionMaps) -> list[AttentionCheck]:
    """Apply the four rules to all maps."""
    real = torch.from_numpy(maps.real)[None]
    results_by_rule: dict[str, list[tuple[int, AttentionRuleResult]]] = {name: [] for name in CHECK_TITLES}
    for number, weights, reach in zip(maps.layer_numbers, maps.layers, maps.window_sizes, strict=True):
        for rule in check_attention_rules(torch.from_numpy(weights)[None], real, reach):
            results_by_rule[rule.name].append((number, rule))
    if not maps.is_causal:  # the window of an encoder has two ends
        results_by_rule["behind"] += results_by_rule.pop("ahead")
    return [
        _check_row_sums(results_by_rule["sums"], maps),
        _check_padding(results_by_rule["padding"], maps),
        _check_causality(results_by_rule.get("ahead", []), maps),
        _check_window(results_by_rule["behind"], maps),
    ]


def _check_row_sums(kept: Sequence[tuple[int, AttentionRuleResult]], maps: AttentionMaps) -> AttentionCheck:
    error = _compute_max_deviation(kept)
    outcome = f"Every row of {maps.shape} sums to 1: largest error {error:.1g}, tolerance {SUM_TOLERANCE:g}."
    return _build_check("sums", kept, outcome)


def _check_padding(kept: Sequence[tuple[int, AttentionRuleResult]], maps: AttentionMaps) -> AttentionCheck:
    num_padding = int((~maps.real).sum())
    if not num_padding:
        return AttentionCheck(CHECK_TITLES["padding"], None, "The text has no padding.")
    return _build_check(
        "padding", kept, f"The total weight on {num_padding:,} padding positions is {_compute_max_deviation(kept):g}."
    )


def _check_causality(kept: Sequence[tuple[int, AttentionRuleResult]], maps: AttentionMaps) -> AttentionCheck:
    if not maps.is_causal:
        return AttentionCheck(CHECK_TITLES["ahead"], None, "Encoders attend to later tokens.")
    return _build_check(
        "ahead",
        kept,
        f"No token attends to later ones: the weight above the diagonal is {_compute_max_deviation(kept):g}.",
    )


def _check_window(kept: Sequence[tuple[int, AttentionRuleResult]], maps: AttentionMaps) -> AttentionCheck:
    if not kept:
        return AttentionCheck(CHECK_TITLES["behind"], None, "No layer has an attention window.")
    numbers = sorted({number for number, _ in kept})
    layers = "every layer" if len(numbers) == len(maps.layers) else f"layer {', '.join(map(str, numbers))}"
    reaches = sorted({distance for reach in maps.window_sizes for distance in reach if distance})
    distances = " or ".join(map(str, reaches)) or "0"
    weight = _compute_max_deviation(kept)
    outcome = f"In {layers} no token attends farther than {distances} positions: the weight there is {weight:g}."
    return _build_check("behind", kept, outcome)


def _compute_max_deviation(kept: Sequence[tuple[int, AttentionRuleResult]]) -> float:
    return max(rule.max_deviation for _, rule in kept)


def _build_check(name: str, kept: Sequence[tuple[int, AttentionRuleResult]], outcome: str) -> AttentionCheck:
    errors = [f"layer {number}: {rule.error}" for number, rule in kept if rule.error]
    if not errors:
        return AttentionCheck(CHECK_TITLES[name], True, outcome)
    more = f"; and {len(errors) - 3} more layers" if len(errors) > 3 else ""
    return AttentionCheck(CHECK_TITLES[name], False, "; ".join(errors[:3]) + more + ".")
