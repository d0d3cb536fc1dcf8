"""The verdict on one variant: its outcome and the numbers behind it."""

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
    """The verdict on one variant, with the numbers behind it.

    `effect`, the intervals and `min_detectable_effect` are variant minus baseline in the displayed unit of the metric:
    a relative change for perplexity (-0.031 is 3.1 % lower), a share for accuracy (0.01 is one point), the score itself
    otherwise. `interval` decides, for new seeds and new examples. `seed_interval` holds for this test set only.
    `equivalence_interval` must lie within +-`equivalence_margin` for "no practical difference". All three hold
    simultaneously over variants and interim analyses, for which each of them has the confidence `adjusted_confidence`.
    `min_detectable_effect` is the smallest effect that would have been detected with a probability of 80 %.
    `additional_seeds` and `additional_examples` would each settle an open verdict alone; None if not needed or not
    sufficient. `reason` says why there is no verdict, or how to settle an open one.
    """

    variant: str
    outcome: VerdictOutcome
    metric: MetricName
    equivalence_margin: float
    baseline_mean: float
    variant_mean: float
    effect: float
    is_better: bool
    interval: Interval
    seed_interval: Interval
    equivalence_interval: Interval
    confidence: float
    adjusted_confidence: float
    seeds: int
    examples: int
    dominant_noise_source: NoiseSource
    min_detectable_effect: float
    additional_seeds: int | None
    additional_examples: int | None
    summary: str
    reason: str = ""

    def to_dict(self) -> dict[str, object]:
        """Return JSON values; NaN and infinities become None."""
        return {name: _to_json_value(value) for name, value in vars(self).items()}

    @classmethod
    def from_dict(cls, row: Mapping[str, Any]) -> Verdict:
        """Return the verdict from the result of `to_dict`."""
        may_be_none = {"additional_seeds", "additional_examples"}
        return cls(**{name: value if name in may_be_none else _from_json_value(value) for name, value in row.items()})


def _from_json_value(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_from_json_value(item) for item in value)
    return math.nan if value is None else value


def _to_json_value(value: object) -> object:
    if isinstance(value, tuple):
        return [_to_json_value(item) for item in cast("tuple[object, ...]", value)]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
