"""The top level of an experiment file: question, baseline, variants, seeds and metric."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from headtohead.config.base import BaseConfig, SmallCount
from headtohead.config.budget import EPOCHS_PATTERN
from headtohead.config.tables.data import DataConfig
from headtohead.config.tables.distillation import TeacherConfig
from headtohead.config.tables.model import ModelConfig, TransformerConfig
from headtohead.config.tables.report_text import ReportText
from headtohead.config.tables.search import SearchConfig, TuneConfig
from headtohead.config.tables.sweep import SweepConfig
from headtohead.config.tables.training import TrainingConfig
from headtohead.config.tasks import TASK_SPECS, MetricName, TaskName, TaskSpec

BASELINE = "baseline"
EXPERIMENT_NAME_PATTERN = re.compile(r"[^/\\\x00-\x1f\x7f]{1,100}")


SeedCount = Annotated[int, Field(ge=1, le=10_000)] | Annotated[str, Field(pattern=r"^auto( up to \d{1,4})?$")]
VARIANT_INDEPENDENT_KEYS = (
    *("description", "conclusions", "topic", "varies", "published", "claims", "comparisons"),
    *("axis", "original", "search", "tune", "tuned", "sweep", "variants", "text", "left_out"),
)
"""keys that no variant can change, so they are not validated again for each variant"""
NON_IDENTITY_FIELDS = {*VARIANT_INDEPENDENT_KEYS, "question", "quick", "probe", "seeds"}
"""fields that do not affect the results of a run, and therefore not the identity of an experiment"""
DEFAULT_MAX_SEEDS = 12
"""maximum number of seeds of "auto" without an explicit limit"""


class PrimaryMetric(BaseConfig):
    """The metric and split that determine the verdict, fixed before the experiment runs."""

    metric: MetricName
    """by default the metric of the task"""
    split: str = "test"
    """test (all test splits together), validation, or the name of one test split"""


StepOrEpoch = Annotated[int, Field(ge=0, le=2**30)] | Annotated[str, Field(pattern=rf"^{EPOCHS_PATTERN.pattern}$")]
"""a step, 0 before training, or "5 epochs" """
EqualTerm = Literal["steps", "tokens", "flops", "seconds", "parameters"]
VerdictLabel = Literal["helped", "hurt", "no practical difference"]


class Claim(BaseConfig):
    """A published conclusion that this experiment confirms or refutes."""

    source: str
    """author or title of the report"""
    statement: str
    """the conclusion, in one sentence"""
    variant: str
    """variant that the claim refers to"""
    expected_verdict: VerdictLabel
    """the verdict that confirms the claim"""
    split: str | None = None
    """test split that the claim refers to; None: the primary split"""
    step: StepOrEpoch | None = None
    """training step that the claim refers to, or "1 epoch"; None: the end of training"""
    baseline: str = BASELINE
    """variant to compare with: the baseline of the experiment, or of one of its comparisons"""
    context: Annotated[int, Field(ge=1)] | None = None
    """input length (one of probe.contexts) to compare with the training length"""
    confirmatory: bool = False
    """whether a claim about a split, a step or a context shares the error rate with the verdicts on all variants;
    otherwise its verdict is exploratory"""
    explanation: str = ""
    """explanation of the outcome"""

    @property
    def needs_own_comparison(self) -> bool:
        """Whether the claim requires a separate comparison, in addition to the verdicts and `[[compare]]` tables."""
        return self.split is not None or self.step is not None or self.context is not None


class Comparison(BaseConfig):
    """A separate comparison with its own chart and verdicts.

    Compares variants with a variant other than the baseline, or a subset of the variants with the baseline.
    """

    title: str
    """heading in the report"""
    description: str = ""
    """purpose of the comparison"""
    baseline: str = BASELINE
    """variant that the others are compared with"""
    variants: tuple[str, ...] = Field(min_length=1)
    """variants to compare"""
    confirmatory: bool = False
    """whether a comparison with a variant other than the baseline shares the error rate with the verdicts on all
    variants; otherwise it is exploratory"""


class OriginalSetup(BaseConfig):
    """Data used in a published report, and the settings to apply when that data is passed with `--data`."""

    files: tuple[str, ...] = ()
    """files by which a folder with this data is recognized"""
    corpus: str = ""
    """digest of the corpus; published results are compared only if the texts are the same"""
    note: str = ""
    """differences from the original data, shown in the report"""
    data: dict[str, Any] = Field(default_factory=dict)
    """settings of [data] to replace"""
    model: dict[str, Any] = Field(default_factory=dict)
    """settings of [model] to replace"""
    training: dict[str, Any] = Field(default_factory=dict)
    """settings of [training] to replace"""


class PublishedResult(BaseConfig):
    """A published score, shown next to the measured score."""

    source: str
    """author or title of the report"""
    variant: str = BASELINE
    """variant that the result belongs to"""
    split: str
    """split that was scored"""
    metric: MetricName
    """perplexity or accuracy"""
    value: float
    """the score; accuracy from 0 to 1"""
    step: StepOrEpoch | None = None
    """training step of the result, or "5 epochs"; None: the end of training"""
    note: str = ""
    """remark"""
    other_data: bool = False
    """the token stream differs: mark the result and do not compare it"""


class ProbeConfig(BaseConfig):
    """Additional texts, input lengths and cost measurements to evaluate for every trained model."""

    prompts: tuple[str, ...] = ()
    """prompts to continue"""
    sentences: dict[str, str] = Field(default_factory=dict)
    """name = sentence to score or classify"""
    samples: SmallCount = 1
    """number of continuations per prompt"""
    contexts: tuple[Annotated[int, Field(ge=2, le=2**24)], ...] = ()
    """input lengths at which the trained model is also evaluated"""
    costs: tuple[Annotated[int, Field(ge=2, le=2**24)], ...] = ()
    """input lengths at which time and memory of a training step are measured"""


def _drop_fields_outside_identity(settings: dict[str, Any]) -> dict[str, Any]:
    """Remove fields of a dumped `Experiment` or `Trial` that must not change its identity. Modifies `settings`.

    Removes unset distillation and pre-training tables, so that runs created before these tables were introduced keep
    their identity, and published results and claims about a teacher.
    """
    if settings.get("teacher") is None:
        settings.pop("teacher", None)
    else:
        settings["teacher"] = {
            key: value for key, value in settings["teacher"].items() if key not in ("published", "claims")
        }
    for table, key in (("training", "distillation"), ("training", "masking"), ("model", "init_from")):
        if settings[table].get(key) is None:
            settings[table].pop(key, None)
    return settings


class Trial(BaseConfig):
    """One variant with one seed: all settings that determine the result of a run."""

    task: TaskName
    variant: str
    seed: int
    data: DataConfig
    model: ModelConfig
    training: TrainingConfig
    teacher: TeacherConfig | None = None
    probe: ProbeConfig = ProbeConfig()
    plugins: tuple[str, ...] = ()
    """Python files with custom parts"""
    is_search: bool = False
    """True for trials of a search, which evaluate validation data only and keep no model"""

    @property
    def spec(self) -> TaskSpec:
        """The declaration of the task."""
        return TASK_SPECS[self.task]

    def dump_variant_settings(self) -> dict[str, Any]:
        """Return the settings that all trials of a variant share, as JSON values."""
        return _drop_fields_outside_identity(
            self.model_dump(mode="json", exclude={"variant", "seed", "probe", "is_search"})
        )


class Experiment(BaseConfig):
    """A validated experiment file."""

    name: str
    question: str
    """the question that the experiment answers"""
    task: TaskName
    """language-model, masked-lm, classify, finetune or distil"""
    seeds: SeedCount = 5
    """seeds per variant; "auto" adds seeds until the verdict is conclusive, up to 12; "auto up to 20" sets the limit"""
    equal: EqualTerm | None = None
    """what variants share with the baseline: steps, tokens, flops, seconds of training, or parameters; by default, each
    has the budget as it is written"""
    equivalence_margin: Annotated[float, Field(gt=0, lt=1)] = 0.01
    """smaller relative changes of perplexity, or changes of accuracy (0.01 is one point), count as
    no practical difference"""
    primary: PrimaryMetric
    """metric and split that decide the verdict"""
    description: str = ""
    """origin of the experiment, and what to look for"""
    conclusions: str = ""
    """lessons learned; for a recipe, on the original data"""
    topic: str = ""
    """recipe: question under which recipes are grouped"""
    varies: str = ""
    """recipe: what the variants change, in words"""
    plugins: tuple[str, ...] = ()
    """Python files with custom parts"""
    data: DataConfig = DataConfig()
    """the corpus"""
    model: ModelConfig = TransformerConfig()
    """the model of the baseline"""
    training: TrainingConfig = TrainingConfig()
    """the training budget of the baseline"""
    teacher: TeacherConfig | None = None
    """task distil: the teacher"""
    variants: dict[str, dict[str, Any]] = Field(default_factory=dict, max_length=1000)
    """name = settings that the variant replaces, as { "model.position" = "alibi" }"""
    axis: str | None = None
    """numeric setting to plot results against, such as model.projection.depth"""
    original: OriginalSetup | None = None
    """the data of a published report, given with --data"""
    published: tuple[PublishedResult, ...] = ()
    """published scores, shown next to the measured ones"""
    claims: tuple[Claim, ...] = ()
    """published conclusions that the verdicts confirm or refute"""
    comparisons: tuple[Comparison, ...] = ()
    """separate comparisons with their own chart and verdicts"""
    probe: ProbeConfig = ProbeConfig()
    """texts and input lengths to evaluate on every trained model"""
    search: SearchConfig | None = None
    """settings to search; the best point is compared with the baseline as the variant `winner`"""
    tune: TuneConfig | None = None
    """settings to tune for the baseline and every variant; each is judged at its own optimum"""
    tuned: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """name = settings that [tune] chose; written by Head to Head"""
    sweep: SweepConfig | None = None
    """values over which the whole comparison is repeated, each combination with its own verdicts"""
    text: tuple[ReportText, ...] = ()
    """texts of the user in the report"""
    quick: bool = False
    """quick look with fewer seeds, steps and rows, which is not judged"""
    left_out: tuple[str, ...] = ()
    """what a quick look reduced, such as "2 of 5 seeds" """

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if not EXPERIMENT_NAME_PATTERN.fullmatch(name) or not name.strip(". "):
            raise ValueError("is used as a folder name: up to 100 characters, no / or \\, and not only periods")
        return name

    @property
    def spec(self) -> TaskSpec:
        """The declaration of the task."""
        return TASK_SPECS[self.task]

    @property
    def max_seeds(self) -> int:
        """The maximum number of seeds per variant."""
        if isinstance(self.seeds, int):
            return self.seeds
        return int(self.seeds.rpartition(" ")[2]) if " " in self.seeds else DEFAULT_MAX_SEEDS

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the baseline and of all variants."""
        return (BASELINE, *self.variants)

    def identity(self) -> str:
        """Return a hash of every setting that affects the results of the experiment's runs.

        Wording, seeds, published results and probes are excluded.
        """
        settings = _drop_fields_outside_identity(self.model_dump(mode="json", exclude=NON_IDENTITY_FIELDS))
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]
