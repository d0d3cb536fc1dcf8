"""The question: a baseline, named changes to it, seeds, and what counts as a difference."""

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
from headtohead.config.search import SearchConfig
from headtohead.config.tasks import TASK_SPECS, MetricName, TaskName, TaskSpec
from headtohead.config.training import TrainingConfig

BASELINE = "baseline"
EXPERIMENT_NAME_PATTERN = re.compile(r"[^/\\\x00-\x1f\x7f]{1,100}")


SeedCount = Annotated[int, Field(ge=1, le=10_000)] | Annotated[str, Field(pattern=r"^auto( up to \d{1,4})?$")]
NON_FINGERPRINT_FIELDS = {
    "question",
    "about",
    "taught",
    "published",
    "claims",
    "comparisons",
    "axis",
    "original",
    "quick",
    "search",
    "probe",
    "seeds",
    "variants",
}
"""what the numbers of a run do not depend on"""
DEFAULT_MAX_SEEDS = 12
"""where "auto" ends unless it says otherwise"""


class PrimaryMetric(BaseConfig):
    """What the verdict is taken from. Stands in the file so that nobody chooses it afterwards."""

    metric: MetricName
    split: str = "test"
    """test (all held-out texts), validation, or the name of one held-out text"""


StepOrEpoch = Annotated[int, Field(ge=0, le=2**30)] | Annotated[str, Field(pattern=rf"^{EPOCHS_PATTERN.pattern}$")]
"""a step, 0 before training, or "5 epochs" """
VerdictLabel = Literal["helped", "hurt", "no practical difference"]


class Claim(BaseConfig):
    """Something that somebody concluded, to be answered by the verdicts."""

    source: str
    """whose"""
    says: str
    """in a sentence"""
    variant: str
    expects: VerdictLabel
    """the verdict that would bear it out"""
    split: str | None = None
    """on one text; unless given, what the verdict is taken from"""
    step: StepOrEpoch | None = None
    """along the way, and not at the end: a step, or "1 epoch" """
    against: str = BASELINE
    """the variant that it is compared with: the baseline of one of the file's comparisons"""
    context: Annotated[int, Field(ge=1)] | None = None
    """on inputs of this length (of probe.contexts), against the length that the variant was trained with"""
    why: str = ""
    """what explains the answer"""


class Comparison(BaseConfig):
    """Variants judged among themselves: against another of the file's variants than the baseline, or a few of them
    against the baseline, with a picture and verdicts of their own."""

    title: str
    says: str = ""
    """what is to be learned from it"""
    baseline: str = BASELINE
    """the variant that the others are compared with"""
    variants: tuple[str, ...] = Field(min_length=1)


class OriginalSetup(BaseConfig):
    """The data that a report used, and what to change in the experiment where they are given with --data."""

    corpus: str = ""
    """the corpus's digest: a published figure stands beside ours only where the texts are the same"""
    note: str = ""
    data: dict[str, Any] = Field(default_factory=dict)
    model: dict[str, Any] = Field(default_factory=dict)
    training: dict[str, Any] = Field(default_factory=dict)


class PublishedResult(BaseConfig):
    """A figure that somebody published, to stand beside ours."""

    source: str
    """whose"""
    variant: str = BASELINE
    split: str
    metric: MetricName
    value: float
    step: StepOrEpoch | None = None
    note: str = ""
    other_data: bool = False
    """the token stream differs, so the figure is shown marked and not compared"""


class ProbeConfig(BaseConfig):
    """Texts that every model of the experiment is tried on at the end."""

    prompts: tuple[str, ...] = ()
    sentences: dict[str, str] = Field(default_factory=dict)
    """name = a sentence to be scored or classified"""
    samples: SmallCount = 1
    """continuations of each prompt"""
    contexts: tuple[Annotated[int, Field(ge=2, le=2**24)], ...] = ()
    """the trained model is also tested on inputs of these lengths"""
    costs: tuple[Annotated[int, Field(ge=2, le=2**24)], ...] = ()
    """time and memory of a training step are measured at these lengths of input"""


def remove_unused_distillation_fields(settings: dict[str, Any]) -> dict[str, Any]:
    """Where nobody is taught, the tables of teaching are as if they did not exist: older runs keep their identity. Of a
    teacher, what others said about it does not count."""
    if settings.get("teacher") is None:
        settings.pop("teacher", None)
    else:
        settings["teacher"] = {k: v for k, v in settings["teacher"].items() if k not in ("reported", "claims")}
    for table, key in (("training", "distillation"), ("training", "masking"), ("model", "init_from")):
        if settings[table].get(key) is None:
            settings[table].pop(key, None)
    return settings


class Trial(BaseConfig):
    """One variant with one seed: all that a run is a function of."""

    task: TaskName
    variant: str
    seed: int
    data: DataConfig
    model: ModelConfig
    training: TrainingConfig
    teacher: TeacherConfig | None = None
    probe: ProbeConfig = ProbeConfig()
    use: tuple[str, ...] = ()
    """files with parts of the user's own"""
    choosing: bool = False
    """a trial of a search: only validation data is scored, and no model is kept"""

    @property
    def spec(self) -> TaskSpec:
        return TASK_SPECS[self.task]

    def settings(self) -> dict[str, Any]:
        return remove_unused_distillation_fields(
            self.model_dump(mode="json", exclude={"variant", "seed", "probe", "choosing"})
        )


class Experiment(BaseConfig):
    """An experiment file, resolved."""

    name: str
    question: str
    task: TaskName
    seeds: SeedCount = 5
    """how many for each variant; "auto" adds seeds until the verdict is settled, up to 12, or "auto up to 20" """
    matters: Annotated[float, Field(gt=0, lt=1)] = 0.01
    """a relative change of perplexity, or a change of accuracy (0.01 is one point), smaller than this is no practical
    difference"""
    primary: PrimaryMetric
    about: str = ""
    """where the experiment comes from and what to look for"""
    taught: str = ""
    """what it has taught; of a recipe, on the original data"""
    use: tuple[str, ...] = ()
    """files with parts of your own"""
    data: DataConfig = DataConfig()
    model: ModelConfig = TransformerConfig()
    training: TrainingConfig = TrainingConfig()
    teacher: TeacherConfig | None = None
    """task distil: who teaches"""
    variants: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """name = what it changes, as { "model.position" = "alibi" }"""
    axis: str | None = None
    """a setting with a number for each variant, as model.projection.depth: results are drawn against it"""
    original: OriginalSetup | None = None
    published: tuple[PublishedResult, ...] = ()
    claims: tuple[Claim, ...] = ()
    comparisons: tuple[Comparison, ...] = ()
    probe: ProbeConfig = ProbeConfig()
    search: SearchConfig | None = None
    """settings to be searched; the best is compared with the baseline as the variant `winner`"""
    quick: bool = False
    """a quick look: fewer seeds and steps than the file asks for, so no answer"""

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if not EXPERIMENT_NAME_PATTERN.fullmatch(name) or not name.strip(". "):
            raise ValueError("is used as a folder name: up to 100 characters, no / or \\, and not only periods")
        return name

    @property
    def spec(self) -> TaskSpec:
        return TASK_SPECS[self.task]

    @property
    def max_seeds(self) -> int:
        """The number of seeds that is run at most."""
        if isinstance(self.seeds, int):
            return self.seeds
        return int(self.seeds.rpartition(" ")[2]) if " " in self.seeds else DEFAULT_MAX_SEEDS

    @property
    def names(self) -> tuple[str, ...]:
        return (BASELINE, *self.variants)

    def identity(self) -> str:
        """Hash of everything that the numbers depend on; wording, seeds, published figures and probes do not."""
        kept = remove_unused_distillation_fields(self.model_dump(mode="json", exclude=NON_FINGERPRINT_FIELDS))
        return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:16]


__all__ = [
    "BASELINE",
    "Claim",
    "Experiment",
    "ModelConfig",
    "OriginalSetup",
    "PrimaryMetric",
    "ProbeConfig",
    "PublishedResult",
    "Trial",
]
