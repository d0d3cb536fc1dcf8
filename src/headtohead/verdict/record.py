"""The verdict itself: one word, and the numbers it rests on, as a frozen record."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from headtohead.verdict.rule import MetricName, VerdictOutcome

Interval = tuple[float, float]
NoiseSource = Literal["seeds", "examples", "unknown"]


@dataclass(frozen=True)
class Verdict:
    """What can be said about one variant, with the numbers behind it.

    `effect`, the intervals and `detectable` are variant minus baseline in the metric's shown unit: a relative change
    for perplexity (-0.031 is 3.1 % lower), a share for accuracy (0.01 is one point), the figure itself otherwise.
    `interval` decides; `interval_seeds` is the one for this test set only; `interval_90` is the one that must lie
    inside +-matters for "no practical difference". All three are simultaneous over variants (and looks). `level` is
    the confidence that each single interval needs for that. `detectable` is the smallest effect that would have been
    seen four times in five. `more_seeds` and `more_examples` each settle an open question alone; None where they are
    not needed or not enough. `reason` says why there is no verdict, or what to do about an open one.
    """

    variant: str
    word: VerdictOutcome
    metric: MetricName
    matters: float
    baseline_mean: float
    mean: float
    effect: float
    better: bool
    interval: Interval
    interval_seeds: Interval
    interval_90: Interval
    confidence: float
    level: float
    seeds: int
    examples: int
    noise: NoiseSource
    detectable: float
    more_seeds: int | None
    more_examples: int | None
    sentence: str
    reason: str = ""

    def to_dict(self) -> dict[str, object]:
        """Plain JSON values; what is not known, or has no limit, is None."""
        return {name: _to_json_value(value) for name, value in vars(self).items()}

    @classmethod
    def from_dict(cls, row: Mapping[str, Any]) -> Verdict:
        """The verdict that gave this row."""
        may_be_none = {"more_seeds", "more_examples"}
        return cls(**{name: value if name in may_be_none else _from_json_value(value) for name, value in row.items()})


def _from_json_value(value: Any) -> Any:
    """What `_plain` made of it, undone."""
    if isinstance(value, list):
        return tuple(_from_json_value(item) for item in value)
    return math.nan if value is None else value


def _to_json_value(value: object) -> object:
    if isinstance(value, tuple):
        return [_to_json_value(item) for item in cast("tuple[object, ...]", value)]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
