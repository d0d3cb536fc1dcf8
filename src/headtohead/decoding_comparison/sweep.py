"""The sweep of a decoding comparison: strategies along temperature, k and p, between greedy decoding and sampling."""

from __future__ import annotations

import math
from dataclasses import dataclass

from headtohead.generation.strategies import Strategy, build_strategy
from headtohead.generation.strategy_parsing import SHORTHAND_OPTIONS, format_strategy

SWEEP_VALUES: dict[str, tuple[float, ...]] = {
    "temperature": (0.3, 0.5, 0.7, 0.85, 1.2),
    "top-k": (2, 5, 20, 100, 1000),
    "top-p": (0.1, 0.3, 0.5, 0.7, 0.9, 0.95),
}
"""values of the option that each family of strategies varies"""
SWEEP_SAMPLES_PER_PROMPT = 5
"""samples per prompt at each point of the sweep"""


@dataclass(frozen=True)
class SweepPoint:
    """One setting of a sweep."""

    family: str
    """temperature, top-k or top-p"""
    label: str
    value: float
    endpoint: str
    """greedy or sample, where the families meet; otherwise empty"""
    strategy: Strategy

    @property
    def name(self) -> str:
        return format_strategy(self.strategy)


def build_sweep_points(vocab_size: int) -> list[SweepPoint]:
    """Return the points of a sweep. Each family starts at greedy decoding and ends at plain sampling."""
    points = []
    for family, values in SWEEP_VALUES.items():
        label, value_without_truncation = ("1", 1.0) if family == "temperature" else ("all", math.inf)
        points.append(SweepPoint(family, "greedy", 0.0, "greedy", build_strategy("greedy")))
        points.append(SweepPoint(family, label, value_without_truncation, "sample", build_strategy("sample")))
        points += [
            SweepPoint(family, f"{value:g}", value, "", build_strategy(family, **{SHORTHAND_OPTIONS[family]: value}))
            for value in values
            if family != "top-k" or value < vocab_size
        ]
    return sorted(points, key=lambda point: (list(SWEEP_VALUES).index(point.family), point.value))
