"""Are these maps what they seem? Rows sum to 1, nothing lies on padding, a triangle, a band: in plain words.

The rules are those that an audit holds every trained model to (`audit.maps`), here for the very maps that are shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch

from headtohead.attention_analysis.maps import Maps
from headtohead.audit.model_checks.attention_weights import SUM, Rule, rules

NAMES = {"sums": "rows sum to 1", "padding": "nothing on padding", "ahead": "triangle", "behind": "band"}


@dataclass(frozen=True)
class Check:
    """One rule, whether it is kept, and by how much."""

    name: str
    passed: bool | None
    """None: it does not apply"""
    found: str

    def as_row(self) -> dict[str, object]:
        return asdict(self)


def check(maps: Maps) -> list[Check]:
    """The four rules, each over all layers and heads that are shown."""
    real = torch.from_numpy(maps.real)[None]
    found: dict[str, list[tuple[int, Rule]]] = {name: [] for name in NAMES}
    for number, weights, reach in zip(maps.layer_numbers, maps.layers, maps.reaches, strict=True):
        for rule in rules(torch.from_numpy(weights)[None], real, reach):
            found[rule.name].append((number, rule))
    if not maps.causal:  # a window of an encoder ends on both sides
        found["behind"] += found.pop("ahead")
    return [
        _sums(found["sums"], maps),
        _padding(found["padding"], maps),
        _triangle(found.get("ahead", []), maps),
        _band(found["behind"], maps),
    ]


def _sums(kept: Sequence[tuple[int, Rule]], maps: Maps) -> Check:
    words = f"Every row of {maps.shape} sums to 1: the largest error is {_worst(kept):.1g}, {SUM:g} is allowed."
    return _check("sums", kept, words)


def _padding(kept: Sequence[tuple[int, Rule]], maps: Maps) -> Check:
    pads = int((~maps.real).sum())
    if not pads:
        return Check(NAMES["padding"], None, "The text is shown without padding.")
    return _check("padding", kept, f"The weight on all {pads:,} places of padding is {_worst(kept):g}.")


def _triangle(kept: Sequence[tuple[int, Rule]], maps: Maps) -> Check:
    if not maps.causal:
        return Check(NAMES["ahead"], None, "An encoder: a token may look ahead.")
    return _check("ahead", kept, f"No token looks ahead: the weight above the diagonal is {_worst(kept):g}.")


def _band(kept: Sequence[tuple[int, Rule]], maps: Maps) -> Check:
    if not kept:
        return Check(NAMES["behind"], None, "No layer has a window: any distance is allowed.")
    numbers = sorted({number for number, _ in kept})
    layers = "every layer" if len(numbers) == len(maps.layers) else f"layer {', '.join(map(str, numbers))}"
    reaches = sorted({end for reach in maps.reaches for end in reach if end})
    far = " or ".join(map(str, reaches)) or "0"
    words = f"In {layers} no token looks further than {far} places: the weight there is {_worst(kept):g}."
    return _check("behind", kept, words)


def _worst(kept: Sequence[tuple[int, Rule]]) -> float:
    return max(rule.off for _, rule in kept)


def _check(name: str, kept: Sequence[tuple[int, Rule]], words: str) -> Check:
    faults = [f"layer {number}: {rule.fault}" for number, rule in kept if rule.fault]
    if not faults:
        return Check(NAMES[name], True, words)
    more = f"; and {len(faults) - 3} more layers" if len(faults) > 3 else ""
    return Check(NAMES[name], False, "; ".join(faults[:3]) + more + ".")
