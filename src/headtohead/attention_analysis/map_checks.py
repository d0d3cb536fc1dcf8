"""Are these maps what they seem? Rows sum to 1, nothing lies on padding, a triangle, a band: in plain words.

The rules are those that an audit holds every trained model to (`audit.maps`), here for the very maps that are shown.
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
    """One rule, whether it is kept, and by how much."""

    name: str
    passed: bool | None
    """None: it does not apply"""
    found: str

    def to_dict(self) -> dict[str, object]:
        return asdict(self)


def check_attention_maps(maps: AttentionMaps) -> list[AttentionCheck]:
    """The four rules, each over all layers and heads that are shown."""
    real = torch.from_numpy(maps.real)[None]
    found: dict[str, list[tuple[int, AttentionRuleResult]]] = {name: [] for name in CHECK_TITLES}
    for number, weights, reach in zip(maps.layer_numbers, maps.layers, maps.window_sizes, strict=True):
        for rule in check_attention_rules(torch.from_numpy(weights)[None], real, reach):
            found[rule.name].append((number, rule))
    if not maps.is_causal:  # a window of an encoder ends on both sides
        found["behind"] += found.pop("ahead")
    return [
        _check_row_sums(found["sums"], maps),
        _check_padding(found["padding"], maps),
        _check_causality(found.get("ahead", []), maps),
        _check_window(found["behind"], maps),
    ]


def _check_row_sums(kept: Sequence[tuple[int, AttentionRuleResult]], maps: AttentionMaps) -> AttentionCheck:
    words = f"Every row of {maps.shape} sums to 1: the largest error is {_compute_max_deviation(kept):.1g}, {SUM_TOLERANCE:g} is allowed."  # noqa: E501
    return _build_check("sums", kept, words)


def _check_padding(kept: Sequence[tuple[int, AttentionRuleResult]], maps: AttentionMaps) -> AttentionCheck:
    pads = int((~maps.real).sum())
    if not pads:
        return AttentionCheck(CHECK_TITLES["padding"], None, "The text is shown without padding.")
    return _build_check(
        "padding", kept, f"The weight on all {pads:,} places of padding is {_compute_max_deviation(kept):g}."
    )


def _check_causality(kept: Sequence[tuple[int, AttentionRuleResult]], maps: AttentionMaps) -> AttentionCheck:
    if not maps.is_causal:
        return AttentionCheck(CHECK_TITLES["ahead"], None, "An encoder: a token may look ahead.")
    return _build_check(
        "ahead", kept, f"No token looks ahead: the weight above the diagonal is {_compute_max_deviation(kept):g}."
    )


def _check_window(kept: Sequence[tuple[int, AttentionRuleResult]], maps: AttentionMaps) -> AttentionCheck:
    if not kept:
        return AttentionCheck(CHECK_TITLES["behind"], None, "No layer has a window: any distance is allowed.")
    numbers = sorted({number for number, _ in kept})
    layers = "every layer" if len(numbers) == len(maps.layers) else f"layer {', '.join(map(str, numbers))}"
    reaches = sorted({end for reach in maps.window_sizes for end in reach if end})
    far = " or ".join(map(str, reaches)) or "0"
    words = (
        f"In {layers} no token looks further than {far} places: the weight there is {_compute_max_deviation(kept):g}."
    )
    return _build_check("behind", kept, words)


def _compute_max_deviation(kept: Sequence[tuple[int, AttentionRuleResult]]) -> float:
    return max(rule.max_deviation for _, rule in kept)


def _build_check(name: str, kept: Sequence[tuple[int, AttentionRuleResult]], words: str) -> AttentionCheck:
    faults = [f"layer {number}: {rule.error}" for number, rule in kept if rule.error]
    if not faults:
        return AttentionCheck(CHECK_TITLES[name], True, words)
    more = f"; and {len(faults) - 3} more layers" if len(faults) > 3 else ""
    return AttentionCheck(CHECK_TITLES[name], False, "; ".join(faults[:3]) + more + ".")
