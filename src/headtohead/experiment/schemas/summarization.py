"""The section of findings.json about distilled summarization models."""

from __future__ import annotations

from headtohead.config.tables.distillation import DistillationClaim, PublishedScores
from headtohead.experiment.schemas.base import Interval, NonNegativeInt, Record
from headtohead.experiment.schemas.experiment_files import ReferenceDocument, SummaryLine
from headtohead.verdict.bootstrap import BootstrapEstimate
from headtohead.verdict.decision_rule import ClaimAnswer, VerdictOutcome
from headtohead.verdict.record import NullableFloat, NullableInterval


class SummaryMeasure(Record):
    """A mean over seeds and documents"""

    value: float
    """mean"""
    by_seed: list[float]
    """mean of each seed"""
    over_documents: Interval
    """95 % bootstrap interval over documents"""
    over_seeds: Interval | None
    """95 % t interval over seeds; null for models without seeds"""


class SystemScores(Record):
    """Quality of the summaries of one system"""

    rouge: dict[str, SummaryMeasure]
    """ROUGE F1 by measure"""
    length: SummaryMeasure
    """words per summary"""
    copied: dict[str, float | None]
    """share of n-grams copied from the document"""
    unfinished: float
    """share of summaries that reached the length limit"""


class SystemCost(Record):
    """Cost of one system"""

    parameters: NonNegativeInt
    """number of parameters"""
    weights_bytes: NonNegativeInt
    """size of the weights in memory"""
    seconds_per_summary: float | None = None
    """time to generate one summary"""
    training_seconds: float | None = None
    """duration of training"""
    training_memory: NonNegativeInt | None = None
    """peak memory during training in bytes"""


class SystemPairVerdict(Record):
    """The verdict on two systems by one metric"""

    metric: str
    """ROUGE metric"""
    system: str
    """name of the system"""
    reference: str
    """name of the system it is compared with"""
    outcome: VerdictOutcome
    """the verdict"""
    effect: NullableFloat
    """difference of the metric"""
    interval: NullableInterval
    """interval over seeds and documents, simultaneous over all pairs"""
    seeds: NonNegativeInt
    """number of seeds"""
    examples: NonNegativeInt
    """number of documents"""
    min_detectable_effect: NullableFloat
    """minimum detectable effect"""
    adjusted_confidence: float
    """confidence level of the interval"""
    bootstrap: BootstrapEstimate
    """paired bootstrap over documents"""


class DistillationClaimResult(DistillationClaim):
    """A published claim about two systems and whether it holds here"""

    answer: ClaimAnswer = "cannot be tested"
    """whether the verdict is the expected one"""
    outcome: VerdictOutcome | None = None
    """the verdict"""
    effect: NullableFloat | None = None
    """difference of the measure"""


class ExampleSummaries(ReferenceDocument):
    """A held-out document with the summary of every system"""

    summaries: dict[str, SummaryLine]
    """summary of each system"""


class SummarizationFindings(Record):
    """Teacher, untrained student and trained students on the same held-out documents"""

    signature: str
    """version and options of the ROUGE implementation"""
    num_documents: NonNegativeInt
    """number of held-out documents"""
    scores: dict[str, SystemScores]
    """scores of each system"""
    costs: dict[str, SystemCost]
    """cost of each system"""
    pairs: list[SystemPairVerdict]
    """verdict on each pair by each measure"""
    examples: list[ExampleSummaries]
    """a few documents with all summaries"""
    published: list[PublishedScores]
    """published scores"""
    claims: list[DistillationClaimResult]
    """published claims"""
    num_truncated: dict[str, NonNegativeInt]
    """documents cut to the context, by split"""
