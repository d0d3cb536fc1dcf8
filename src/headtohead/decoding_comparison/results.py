"""decoding.json: the results of a decoding comparison, from which the report is rendered without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import JsonValue

from headtohead.experiment.schemas.base import Interval, Record, VersionedRecord, read_record
from headtohead.verdict.decision_rule import VerdictOutcome
from headtohead.verdict.metric import MetricName
from headtohead.verdict.record import NullableFloat, NullableInterval

RESULTS_FILE = "decoding.json"
MetricKind = Literal["perplexity", "bits", "share", "points", "count"]


class Prompt(Record):
    """A prompt and its human continuation, if known"""

    text: str
    continuation: str | None = None


class GenerationMetric(Record):
    """A metric that is computed for every strategy"""

    name: str
    title: str
    kind: MetricKind
    better: Literal["lower", "higher"] | None
    equivalence_margin: float
    """the smallest relevant change: relative for perplexity, otherwise in the unit of the metric"""
    description: str

    @property
    def verdict_metric(self) -> MetricName:
        """The scale on which verdicts compare it."""
        if self.kind == "perplexity":
            return "perplexity"
        return "loss" if self.better == "lower" else "score"


class MetricEstimate(Record):
    """An estimate and its 95 % interval over prompts; no interval for fewer than two prompts"""

    value: float
    interval: Interval | None


Estimates = dict[str, MetricEstimate]
"""by metric name"""


class StrategyPairVerdict(Record):
    """The verdict on one strategy compared with another by one metric"""

    metric: str
    strategy: str
    reference: str
    outcome: VerdictOutcome
    effect: NullableFloat
    interval: NullableInterval
    adjusted_confidence: float
    min_detectable_effect: NullableFloat
    prompts: int


class SweepPointResult(Record):
    """The estimates at one point of the sweep over temperature, k and p"""

    family: str
    label: str
    endpoint: str
    """greedy or sample at the end of a family, otherwise empty"""
    strategy: str
    order: int
    estimates: Estimates


class SweepResults(Record):
    """All points of the sweep"""

    samples: int
    """samples per prompt"""
    points: list[SweepPointResult]


class TracedToken(Record):
    """One of the most likely tokens of a step, or a group of the others"""

    token: str | None
    """None for a group"""
    count: int
    probability: float
    kept: bool
    after: float | None
    """probability after the strategy; None for a search"""
    drawn: bool


class TraceStep(Record):
    """One step of a continuation: the sampled token and the most likely ones"""

    step: int
    id: int
    token: str
    rank: int
    probability: float
    kept: int | None
    """number of tokens that the strategy kept; None for a search"""
    mass: float | None
    """their total probability"""
    after: float | None
    """probability of the sampled token after the strategy"""
    top: list[TracedToken]


class StrategyTrace(Record):
    """The first sample of the first prompt, token by token"""

    strategy: str
    prompt: int
    text: str
    note: str
    """why the strategy has no distribution; otherwise empty"""
    steps: list[TraceStep]


class LimitCheck(Record):
    """An invariant of the strategies in a limit, checked on this model"""

    invariant: str
    procedure: str
    observation: str
    passed: bool


class ModelIdentity(Record):
    """Name and weights digest of a model"""

    name: str
    digest: str


class DecodingSettings(Record):
    """The settings of a comparison"""

    strategies: dict[str, JsonValue]
    samples: int
    max_new_tokens: int
    seed: int
    sweep: bool
    prompts: int
    digest: str
    """digest of the prompts"""


class DecodingResults(VersionedRecord):
    """decoding.json"""

    command: list[str]
    versions: dict[str, str]
    model: ModelIdentity
    scoring_model: ModelIdentity | None
    """a second model that scores the generated texts"""
    settings: DecodingSettings
    signatures: dict[str, str]
    """versions and options of the sacrebleu metrics"""
    prompts: list[Prompt]
    baseline: str
    metrics: list[GenerationMetric]
    estimates: dict[str, Estimates]
    """by strategy"""
    human: Estimates
    """estimates of human continuations"""
    pairs: list[StrategyPairVerdict]
    sweep: SweepResults
    traces: list[StrategyTrace]
    limit_checks: list[LimitCheck]
    notes: list[str]

    @property
    def metrics_by_name(self) -> dict[str, GenerationMetric]:
        return {metric.name: metric for metric in self.metrics}

    def find_pair(self, strategy: str, reference: str, metric: str) -> StrategyPairVerdict | None:
        """Return the verdict on two strategies by one metric, or None if they were not compared."""
        key = (strategy, reference, metric)
        return next((pair for pair in self.pairs if (pair.strategy, pair.reference, pair.metric) == key), None)


def read_results(folder: Path) -> DecodingResults:
    """Read the results of a decoding comparison. Raise `RunFolderError` for a different schema version."""
    return read_record(folder / RESULTS_FILE, DecodingResults)
