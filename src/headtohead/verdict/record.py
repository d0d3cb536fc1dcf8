"""The verdict on one variant: its outcome and the numbers behind it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, PlainSerializer, TypeAdapter, WithJsonSchema

from headtohead.verdict.decision_rule import VerdictOutcome
from headtohead.verdict.metric import MetricName


def _null_to_nan(value: object) -> object:
    return math.nan if value is None else value


def _nan_to_null(value: float) -> float | None:
    return value if math.isfinite(value) else None


NullableFloat = Annotated[
    float,
    Field(allow_inf_nan=True),
    BeforeValidator(_null_to_nan),
    PlainSerializer(_nan_to_null, when_used="json"),
    WithJsonSchema({"anyOf": [{"type": "number"}, {"type": "null"}]}),
]
"""NaN in memory where a number is unknown or unbounded, null in JSON"""
NullableInterval = Annotated[tuple[NullableFloat, NullableFloat], Field(strict=False)]
Interval = tuple[float, float]
NoiseSource = Literal["seeds", "documents", "unknown"]


@dataclass(frozen=True)
class Verdict:
    """The verdict on one variant, with the numbers behind it.

    Effects and intervals are variant minus baseline in the displayed unit of the metric: a relative change for
    perplexity (-0.031 is 3.1 % lower), a share for accuracy (0.01 is one point), the score itself otherwise. All
    intervals hold simultaneously over all comparisons and interim analyses.
    """

    # Strict mode would refuse objects read from JSON.
    __pydantic_config__ = ConfigDict(strict=False, use_attribute_docstrings=True)
    variant: str
    outcome: VerdictOutcome
    metric: MetricName
    equivalence_margin: NullableFloat
    """largest effect without practical relevance"""
    baseline_mean: NullableFloat
    variant_mean: NullableFloat
    effect: NullableFloat
    is_better: bool
    """whether the direction of the effect is good"""
    interval: NullableInterval
    """confidence interval for new seeds and new documents, which decides"""
    seed_interval: NullableInterval
    """confidence interval for new seeds on these documents only"""
    equivalence_interval: NullableInterval
    """interval that must lie within +-equivalence_margin for "no practical difference" (TOST)"""
    confidence: float
    """joint confidence of all intervals; 1 minus the familywise error rate"""
    adjusted_confidence: float
    """confidence of each single interval, adjusted for the number of comparisons and interim analyses"""
    seeds: int
    """number of pairs of finished runs; if `is_paired` is false, of runs of the baseline or the variant, whichever has
    fewer"""
    examples: int
    documents: int
    """number of documents; equal to `examples` if every example is its own document"""
    dominant_noise_source: NoiseSource
    min_detectable_effect: NullableFloat
    """smallest effect that would have been detected with a probability of 80 %"""
    additional_seeds: int | None
    """number of seeds that would settle an open verdict alone; None if not needed or not sufficient"""
    additional_documents: int | None
    """number of documents that would settle an open verdict alone; None if not needed or not sufficient"""
    summary: str
    comparisons: int = 1
    """number of comparisons that share the familywise error rate"""
    is_paired: bool = True
    runs: int = 0
    """number of runs of the variant, including lost runs"""
    lost_runs: int = 0
    """number of runs of the variant that diverged or learned nothing"""
    baseline_runs: int = 0
    baseline_lost_runs: int = 0
    max_failure_rate: NullableFloat = math.nan
    """95 % upper bound of the probability that a run of the variant is lost"""
    is_exploratory: bool = False
    """whether the verdict is not among the comparisons that share the error rate"""
    reason: str = ""
    """why there is no verdict, or how to settle an open one"""
    withheld: tuple[str, ...] = ()
    """reasons for withholding the verdict; empty unless it is not comparable"""

    def to_dict(self) -> dict[str, Any]:
        """Return the verdict as JSON values; NaN and infinities become None."""
        fields: dict[str, Any] = _VERDICT_ADAPTER.dump_python(self, mode="json")
        return fields

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Verdict:
        """Rebuild a verdict from the output of `to_dict`."""
        return _VERDICT_ADAPTER.validate_python(fields)


_VERDICT_ADAPTER = TypeAdapter(Verdict)
