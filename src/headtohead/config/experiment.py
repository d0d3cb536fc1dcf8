"""The top level of an experiment file: question, baseline, variants, seeds and metric."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from headtohead.config.base import EPOCHS_PATTERN, BaseConfig, SmallCount
from headtohead.config.data import DataConfig
from headtohead.config.distillation import TeacherConfig
from headtohead.config.model import ModelConfig, TransformerConfig
from headtohead.config.report_text import ReportText
from headtohead.config.search import SearchConfig
from headtohead.config.tasks import TASK_SPECS, MetricName, TaskName, TaskSpec
from headtohead.config.training import TrainingConfig

BASELINE = "baseline"
EXPERIMENT_NAME_PATTERN = re.compile(r"[^/\\\x00-\x1f\x7f]{1,100}")


SeedCount = Annotated[int, Field(ge=1, le=10_000)] | Annotated[str, Field(pattern=r"^auto( up to \d{1,4})?$")]
VARIANT_INDEPENDENT_KEYS = (
    *("description", "conclusions", "topic", "varies", "published", "claims", "comparisons"),
    *("axis", "original", "search", "variants", "text", "left_out"),
)
"""keys that no variant can change, so they are not validated again for each variant"""
NON_FINGERPRINT_FIELDS = {*VARIANT_INDEPENDENT_KEYS, "question", "quick", "probe", "seeds"}
"""fields that do not affect the results of a run"""
DEFAULT_MAX_SEEDS = 12
"""maximum number of seeds of "auto" without an explicit limit"""


class PrimaryMetric(BaseConfig):
    """The metric and split that decide the verdict. They are fixed in the file before the experiment is run."""

    metric: MetricName
    """by default the metric of the task"""
    split: str = "test"
    """test (all test splits together), validation, or the name of one test split"""


StepOrEpoch = Annotated[int, Field(ge=0, le=2**30)] | Annotated[str, Field(pattern=rf"^{EPOCHS_PATTERN.pattern}$")]
"""a step, 0 before training, or "5 epochs" """
VerdictLabel = Literal["helped", "hurt", "no practical difference"]


class Claim(BaseConfig):
    """A published conclusion that the verdicts of this experiment confirm or refute."""

    source: str
    """author or title of the report"""
    statement: str
    """the conclusion, in one sentence"""
    variant: str
    """variant that the claim is about"""
    expected_verdict: VerdictLabel
    """the verdict that confirms the claim"""
    split: str | None = None
    """test split that the claim is about; None: the primary split"""
    step: StepOrEpoch | None = None
    """training step that the claim is about, or "1 epoch"; None: the end of training"""
    baseline: str = BASELINE
    """variant to compare with: the baseline, or that of one of the comparisons"""
    context: Annotated[int, Field(ge=1)] | None = None
    """input length (one of probe.contexts) to compare with the training length"""
    confirmatory: bool = False
    """whether a claim about a split, a step or a context shares the error rate with the verdicts on all variants;
    otherwise its answer is exploratory"""
    explanation: str = ""
    """explanation of the outcome"""

    @property
    def needs_own_comparison(self) -> bool:
        """Whether the claim is not answered by the verdict on the variant or by one of the comparisons."""
        return self.split is not None or self.step is not None or self.context is not None


class Comparison(BaseConfig):
    """A separate comparison with its own chart and verdicts.

    It compares variants with another variant than the baseline, or a subset of the variants with the baseline.
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
    """whether a comparison with another variant than the baseline shares the error rate with the verdicts on all
    variants; otherwise it is exploratory"""


class OriginalSetup(BaseConfig):
    """The data used by a report, and the settings to apply if that data is given with `--data`."""

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
    """A published score, shown beside the measured one."""

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
    """Texts, input lengths and cost measurements that are evaluated for every trained model."""

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


def remove_unused_distillation_fields(settings: dict[str, Any]) -> dict[str, Any]:
    """Remove settings that must not affect the identity of an experiment, in place, and return `settings`.

    Unset distillation and pre-training tables are removed, so that runs made before these tables existed keep their
    identity. Published results and claims about a teacher are removed as well.
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
    """One variant with one seed: everything that the result of a run depends on."""

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

    def settings(self) -> dict[str, Any]:
        """Return the settings that trials with the same variant share, as JSON data."""
        return remove_unused_distillation_fields(
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
    """published scores, shown beside the measured ones"""
    claims: tuple[Claim, ...] = ()
    """published conclusions that the verdicts confirm or refute"""
    comparisons: tuple[Comparison, ...] = ()
    """separate comparisons with their own chart and verdicts"""
    probe: ProbeConfig = ProbeConfig()
    """texts and input lengths to evaluate on every trained model"""
    search: SearchConfig | None = None
    """settings to search; the best point is compared with the baseline as the variant `winner`"""
    text: tuple[ReportText, ...] = ()
    """text of your own in the report"""
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
        """The names of the baseline and all variants."""
        return (BASELINE, *self.variants)

    def identity(self) -> str:
        """Return a hash of every setting that affects the results, without wording, seeds, published results and
        probes.
        """
        settings = remove_unused_distillation_fields(self.model_dump(mode="json", exclude=NON_FINGERPRINT_FIELDS))
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]
