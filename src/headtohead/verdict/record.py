"""The verdict on one variant: its outcome and the numbers behind it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, PlainSerializer, TypeAdapter, WithJsonSchema

from headtohead.verdict.rule import MetricName, VerdictOutcome


def _read_number(value: object) -> object:
    return math.nan if value is None else value


def _write_number(value: float) -> float | None:
    return value if math.isfinite(value) else None


NullableFloat = Annotated[
    float,
    Field(allow_inf_nan=True),
    BeforeValidator(_read_number),
    PlainSerializer(_write_number, when_used="json"),
    WithJsonSchema({"anyOf": [{"type": "number"}, {"type": "null"}]}),
]
"""NaN in memory where a number is unknown or unbounded, null in JSON"""
NullableInterval = Annotated[tuple[NullableFloat, NullableFloat], Field(strict=False)]
Interval = tuple[float, float]
NoiseSource = Literal["seeds", "documents", "unknown"]


@dataclass(frozen=True)
class Verdict:
    """The verdict on one variant, with the numbers behind it.

    `effect`, the intervals and `min_detectable_effect` are variant minus baseline in the displayed unit of the metric:
    a relative change for perplexity (-0.031 is 3.1 % lower), a share for accuracy (0.01 is one point), the score itself
    otherwise. `interval` decides, for new seeds and new documents. `seed_interval` holds for these documents only.
    `equivalence_interval` must lie within +-`equivalence_margin` for "no practical difference". All three hold
    simultaneously over `comparisons` comparisons and all interim analyses, for which each of them has the confidence
    `adjusted_confidence`. `seeds` is the number of pairs of finished runs, or of runs of the side that has fewer if
    `is_paired` is false. `runs` and `lost_runs` count all runs of the variant and those that diverged or learned
    nothing, `baseline_runs` and `baseline_lost_runs` those of the baseline; `max_failure_rate` is the 95 % upper bound
    of the probability that a run of the variant is lost. An `is_exploratory` verdict is not among the comparisons that
    share the error rate. `documents` equals `examples` if every example is its own document. `min_detectable_effect` is
    the smallest effect that would have been detected with a probability of 80 %. `additional_seeds` and
    `additional_documents` would each settle an open verdict alone; None if not needed or not sufficient. `reason`
    explains why there is no verdict, or how to settle an open one. `withheld` lists why a verdict is withheld; it is
    empty unless the outcome is "not comparable".
    """

    __pydantic_config__ = ConfigDict(strict=False)  # strict would refuse objects read from JSON
    variant: str
    outcome: VerdictOutcome
    metric: MetricName
    equivalence_margin: NullableFloat
    baseline_mean: NullableFloat
    variant_mean: NullableFloat
    effect: NullableFloat
    is_better: bool
    interval: NullableInterval
    seed_interval: NullableInterval
    equivalence_interval: NullableInterval
    confidence: float
    adjusted_confidence: float
    seeds: int
    examples: int
    documents: int
    dominant_noise_source: NoiseSource
    min_detectable_effect: NullableFloat
    additional_seeds: int | None
    additional_documents: int | None
    summary: str
    comparisons: int = 1
    is_paired: bool = True
    runs: int = 0
    lost_runs: int = 0
    baseline_runs: int = 0
    baseline_lost_runs: int = 0
    max_failure_rate: NullableFloat = math.nan
    is_exploratory: bool = False
    reason: str = ""
    withheld: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the verdict as JSON values; NaN and infinities become None."""
        row: dict[str, Any] = _VERDICT_ADAPTER.dump_python(self, mode="json")
        return row

    @classmethod
    def from_dict(cls, row: Mapping[str, Any]) -> Verdict:
        """Rebuild a verdict from the output of `to_dict`."""
        return _VERDICT_ADAPTER.validate_python(row)


_VERDICT_ADAPTER = TypeAdapter(Verdict)
