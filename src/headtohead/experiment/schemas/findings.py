"""findings.json: all results that the report, the notebook, the terminal and the web app show.

Every section has an empty default, because findings on external scores contain little more than verdicts.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, JsonValue

from headtohead.audit.result import CheckResult
from headtohead.config.experiment import Claim, Comparison, Experiment, PublishedResult
from headtohead.experiment.schemas.base import (
    Interval,
    NonNegativeInt,
    Number,
    Pair,
    Record,
    SeedScore,
    StepScore,
    VersionedRecord,
)
from headtohead.experiment.schemas.experiment_files import (
    CorpusDescription,
    SummarizationTeacherFile,
    TeacherFile,
)
from headtohead.experiment.schemas.run_files import LengthCost, SampleRecord
from headtohead.experiment.schemas.search import SearchFindings
from headtohead.experiment.schemas.summarization import SummarizationFindings
from headtohead.experiment.schemas.sweep import SweepFindings
from headtohead.experiment.schemas.tuning import TuningFindings
from headtohead.experiment.schemas.versus import VersusFindings
from headtohead.verdict.decision_rule import ClaimAnswer, VerdictOutcome
from headtohead.verdict.external_scores.score_issues import ScoreIssueKind
from headtohead.verdict.record import NullableFloat, NullableInterval, Verdict

ScoresBySeed = dict[str, list[SeedScore]]
"""key: list of [seed, score]"""
Curves = dict[str, dict[str, dict[str, list[StepScore]]]]
"""variant: split: seed: list of [step, score]"""
ClassConfidence = Annotated[tuple[str, float], Field(strict=False)]
"""predicted class and its probability"""


class SeedEstimate(Record):
    """A mean over seeds"""

    mean: float | None
    """mean; null without seeds"""
    interval: Interval | None
    """95 % t interval"""


class ComparisonFindings(Comparison):
    """A comparison among variants ([[comparisons]]) with its verdicts"""

    verdicts: tuple[Verdict, ...] = ()
    """one verdict for each variant"""


class PairingRecord(Record):
    """The evidence that a variant and the baseline were trained under the same conditions, and their costs"""

    settings: dict[str, JsonValue]
    """settings that the variant changes"""
    changes_multiple_settings: bool
    """whether it changes more than one"""
    seeds: NonNegativeInt
    """seeds in common"""
    unpaired_reason: str | None = None
    """reason for withholding the verdict, if the two were not trained under the same conditions"""
    tensors: NonNegativeInt | None = None
    """tensors of the variant"""
    shared_tensors: NonNegativeInt | None = None
    """tensors that both have, in the same shape"""
    equal_tensors: NonNegativeInt | None = None
    """shared tensors that are equal at step 0"""
    same_batches: bool | None = None
    """whether both saw the same batches"""
    parameters: Pair | None = None
    """[baseline, variant]: number of parameters"""
    flops_per_token: Pair | None = None
    """[baseline, variant]: FLOPs of a forward pass per token; null if they could not be counted"""
    seconds_per_step: Pair | None = None
    """[baseline, variant]: median duration of a step"""
    seconds_per_epoch: Pair | None = None
    """[baseline, variant]: median duration of an epoch, where steps are counted in epochs"""
    peak_memory: Pair | None = None
    """[baseline, variant]: median peak memory in bytes"""


class ResultWarning(Record):
    """A warning that is stated above the verdicts; it withholds nothing"""

    kind: Literal[
        "weak baseline",
        "test below train",
        "equal seeds",
        "random scores",
        "untrained weights",
        "reads padding",
        "shared layers",
        "wrong token",
        "reads files",
        "changed nothing",
        "same weights",
        "same first step",
        "different budget",
        "large gain",
        "mixed machines",
        "unfinished",
        "not repeatable",
        "shared files",
        "changed code",
        "unusual direction",
        "different scores",
        "different data",
        "different batches",
        ScoreIssueKind,
    ]
    """what was noticed"""
    variant: str
    """name of the variant, or `baseline`"""
    message: str
    """what was measured, as a sentence"""
    advice: str
    """what to inspect or change"""


class FailureRecord(Record):
    """A trial without a result, or with a result that is no better than counts"""

    variant: str
    """name of the variant"""
    seed: int
    """seed of the trial"""
    message: str
    """error message"""
    is_lost: bool = False
    """whether it counts as a failure of its variant: it diverged or learned nothing"""


class SeedSample(SampleRecord):
    """A prompt and its continuation by one seed"""

    seed: int
    """seed of the trial"""


class PublishedComparison(PublishedResult):
    """A published result and ours"""

    ours: float | None
    """our mean over seeds"""
    interval: Interval | None
    """95 % interval of our mean"""
    seeds: NonNegativeInt
    """number of seeds"""


class ClaimResult(Claim):
    """A published claim and whether it holds here"""

    answer: ClaimAnswer = "cannot be tested"
    """whether the verdict is the expected one"""
    is_exploratory: bool = False
    """whether its comparison is not among those that share the familywise error rate"""
    outcome: VerdictOutcome | None = None
    """the verdict"""
    summary: str = ""
    """the verdict as a sentence, or why there is none"""
    effect: NullableFloat | None = None
    """effect of the variant"""
    interval: NullableInterval | None = None
    """interval of the effect"""
    seeds: NonNegativeInt | None = None
    """number of seeds"""


class LengthSummary(Record):
    """Score of all held-out text at one input length"""

    context: NonNegativeInt
    """input length in tokens"""
    value: float | None
    """mean over seeds"""
    interval: Interval | None
    """95 % interval over seeds"""
    seconds_per_1000_tokens: float | None
    """evaluation time of the fastest seed"""
    error: str | None
    """why the model cannot process this length"""


class LengthGeneralization(Record):
    """Results of a variant at other input lengths"""

    contexts: list[LengthSummary] = []
    """scores by input length"""
    costs: list[LengthCost] = []
    """costs by input length"""


class AxisFindings(Record):
    """Results against the setting that variants differ in"""

    setting: str
    """dotted name of the setting"""
    values: dict[str, Number]
    """value of each variant"""
    last_loss: dict[str, SeedEstimate]
    """last training loss of each variant"""


class ConfusionMatrices(Record):
    """Predictions of a classifier on held-out rows, summed over seeds"""

    labels: list[str]
    """class names"""
    matrices: dict[str, list[list[NonNegativeInt]]]
    """variant: counts, true class by predicted class"""


class HeadSummary(Record):
    """Measures of one attention head over seeds"""

    layer: Annotated[int, Field(ge=1)]
    """layer, from 1"""
    head: Annotated[int, Field(ge=1)]
    """head, from 1"""
    seeds: NonNegativeInt
    """number of seeds"""
    measures: dict[str, SeedEstimate | None]
    """mean and interval of each measure; null where it was not measured"""
    copies: NonNegativeInt | None
    """seeds with which it is an induction head; null if not measured"""
    idle: NonNegativeInt | None
    """seeds with which ablating it changes nothing; null if not measured"""


class AttentionFindings(Record):
    """Measures of every attention head"""

    split: str
    """split the heads were measured on"""
    rows: NonNegativeInt
    """number of rows"""
    variants: dict[str, list[HeadSummary]]
    """heads of each variant"""


class Findings(VersionedRecord):
    """findings.json: the results of an experiment"""

    experiment: Experiment | None = None
    """resolved settings"""
    versions: dict[str, str] = {}
    """versions of Python and of the main libraries"""
    command: list[str] = []
    """command line"""
    metric: Literal["perplexity", "accuracy", "loss", "score"] | None = None
    """primary metric"""
    split: str = ""
    """primary split"""
    rows: Literal["all", "unseen"] = "all"
    """rows that the verdict is based on: all, or those that do not occur in train"""
    interim_analyses: list[NonNegativeInt] = []
    """numbers of seeds of all analyses so far, including the current one"""
    warnings: list[ResultWarning] = []
    """variants that changed nothing, and implausible scores"""
    verdicts: list[Verdict] = []
    """one verdict for each variant, in the order of the experiment file"""
    other_verdicts: dict[str, list[Verdict]] = {}
    """verdicts on other held-out splits or rows, by name; informative only"""
    comparisons: list[ComparisonFindings] = []
    """comparisons among variants"""
    scores: dict[str, ScoresBySeed] = {}
    """variant: split: list of [seed, score]"""
    primary_scores: ScoresBySeed = {}
    """variant: list of [seed, score] on the primary split and rows"""
    curves: Curves = {}
    """learning curves of the metric, variant: split: seed: list of [step, score]"""
    loss_curves: Curves = {}
    """learning curves of the loss, for classifiers"""
    seconds_curves: dict[str, dict[str, list[StepScore]]] = {}
    """training time up to each evaluation, variant: seed: list of [step, seconds]"""
    steps_per_epoch: NonNegativeInt | None = None
    """optimizer steps per epoch of the baseline; null unless the file counts training in epochs"""
    chosen_steps: dict[str, list[Annotated[tuple[int, int], Field(strict=False)]]] = {}
    """variant: list of [seed, step whose weights were chosen]"""
    pairing: dict[str, PairingRecord] = {}
    """evidence of pairing and costs, by variant"""
    audits: dict[str, list[CheckResult]] = {}
    """audits of the trained models, by variant"""
    data_audits: list[CheckResult] = []
    """audits of the corpus"""
    variant_data_audits: dict[str, list[CheckResult]] = {}
    """audits of the data of variants that change it"""
    failures: list[FailureRecord] = []
    """trials without a result"""
    samples: dict[str, list[SeedSample]] = {}
    """continuations of the probe prompts, by variant"""
    sentences: dict[str, dict[str, dict[str, float | ClassConfidence]]] = {}
    """variant: probe sentence: seed: perplexity, or class and confidence"""
    published: list[PublishedComparison] = []
    """published results compared with ours"""
    claims: list[ClaimResult] = []
    """published claims and whether they hold"""
    length_generalization: dict[str, LengthGeneralization] = {}
    """results at other input lengths, by variant"""
    axis: AxisFindings | None = None
    """results against the setting named by `axis`"""
    confusion: ConfusionMatrices | None = None
    """confusion matrices of classifiers"""
    attention: AttentionFindings | None = None
    """measures of attention heads"""
    teacher: TeacherFile | SummarizationTeacherFile | None = None
    """teacher.json of a distillation"""
    summarization: SummarizationFindings | None = None
    """results of a distillation on summaries"""
    search: SearchFindings | None = None
    """results of a hyperparameter search"""
    tuning: TuningFindings | None = None
    """results of tuning the baseline and every variant"""
    sweep: SweepFindings | None = None
    """results of a sweep"""
    versus: VersusFindings | None = None
    """results that only a comparison of commands has (`h2h versus`)"""
    checksums: dict[str, str] = {}
    """SHA-256 of the result.json of each run"""
    corpus: CorpusDescription | None = None
    """the corpus"""
