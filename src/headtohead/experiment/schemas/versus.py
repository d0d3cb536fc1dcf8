"""The part of findings.json that only comparisons of commands have (`h2h versus`)."""

from __future__ import annotations

from headtohead.experiment.schemas.base import NonNegativeInt, Record
from headtohead.verdict.record import NullableFloat


class Observation(Record):
    """An observation about the fairness of a comparison, made without access to the scripts"""

    question: str
    """what was checked"""
    answer: str
    """what was seen"""


class NoiseEstimate(Record):
    """The noise of a command over seeds, and the effects that it leaves detectable"""

    standard_deviation: NullableFloat
    """standard deviation of the metric over seeds"""
    seeds: NonNegativeInt
    """seeds that it was estimated from"""
    detectable_effects: dict[str, NullableFloat]
    """seeds per variant: smallest effect that is detected with a probability of 80 %"""


class VersusFindings(Record):
    """Findings of a comparison of commands"""

    question: str
    """the question"""
    metric_name: str
    """the metric as the scripts call it"""
    commands: dict[str, str]
    """command line of the baseline and of each variant"""
    revisions: dict[str, str] = {}
    """git revision of the baseline and of each variant"""
    diffs: dict[str, str] = {}
    """difference between the revisions of the baseline and of each variant"""
    observations: list[Observation] = []
    """observations about the fairness of the comparison"""
    noise: NoiseEstimate | None = None
    """noise of the command, if it was compared with itself"""
