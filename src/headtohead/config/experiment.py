"""The question: a baseline, named changes to it, seeds, and what counts as a difference."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from headtohead.config.base import SPAN, Few, Table
from headtohead.config.data import Data
from headtohead.config.distillation import Teacher
from headtohead.config.model import Model, Transformer
from headtohead.config.search import Search
from headtohead.config.training import Training

BASELINE = "baseline"
ONE_FOLDER = re.compile(r"[^/\\\x00-\x1f\x7f]{1,100}")


Task = Literal["language-model", "classify", "finetune", "distil"]
Goal = Literal["language-model", "classify"]
Seeds = Annotated[int, Field(ge=1, le=10_000)] | Annotated[str, Field(pattern=r"^auto( up to \d{1,4})?$")]
WORDING = {
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
MOST_SEEDS = 12
"""where "auto" ends unless it says otherwise"""


class Primary(Table):
    """What the verdict is taken from. Stands in the file so that nobody chooses it afterwards."""

    metric: Literal["perplexity", "accuracy"]
    split: str = "test"
    """test (all held-out texts), validation, or the name of one held-out text"""


When = Annotated[int, Field(ge=0, le=2**30)] | Annotated[str, Field(pattern=rf"^{SPAN.pattern}$")]
"""a step, 0 before training, or "5 epochs" """
Word = Literal["helped", "hurt", "no practical difference"]


class Claim(Table):
    """Something that somebody concluded, to be answered by the verdicts."""

    source: str
    """whose"""
    says: str
    """in a sentence"""
    variant: str
    expects: Word
    """the verdict that would bear it out"""
    split: str | None = None
    """on one text; unless given, what the verdict is taken from"""
    step: When | None = None
    """along the way, and not at the end: a step, or "1 epoch" """
    against: str = BASELINE
    """the variant that it is compared with: the baseline of one of the file's comparisons"""
    context: Annotated[int, Field(ge=1)] | None = None
    """on inputs of this length (of probe.contexts), against the length that the variant was trained with"""
    why: str = ""
    """what explains the answer"""


class Comparison(Table):
    """Variants judged among themselves: against another of the file's variants than the baseline, or a few of them
    against the baseline, with a picture and verdicts of their own."""

    title: str
    says: str = ""
    """what is to be learned from it"""
    baseline: str = BASELINE
    """the variant that the others are compared with"""
    variants: tuple[str, ...] = Field(min_length=1)


class Original(Table):
    """The data that a report used, and what to change in the experiment where they are given with --data."""

    corpus: str = ""
    """the corpus's digest: a published figure stands beside ours only where the texts are the same"""
    note: str = ""
    data: dict[str, Any] = Field(default_factory=dict)
    model: dict[str, Any] = Field(default_factory=dict)
    training: dict[str, Any] = Field(default_factory=dict)


class Published(Table):
    """A figure that somebody published, to stand beside ours."""

    source: str
    """whose"""
    variant: str = BASELINE
    split: str
    metric: Literal["perplexity", "accuracy"]
    value: float
    step: When | None = None
    note: str = ""
    other_data: bool = False
    """the token stream differs, so the figure is shown marked and not compared"""


class Probe(Table):
    """Texts that every model of the experiment is tried on at the end."""

    prompts: tuple[str, ...] = ()
    sentences: dict[str, str] = Field(default_factory=dict)
    """name = a sentence to be scored or classified"""
    samples: Few = 1
    """continuations of each prompt"""
    contexts: tuple[Annotated[int, Field(ge=2, le=2**24)], ...] = ()
    """the trained model is also tested on inputs of these lengths"""
    costs: tuple[Annotated[int, Field(ge=2, le=2**24)], ...] = ()
    """time and memory of a training step are measured at these lengths of input"""


def without_teaching(kept: dict[str, Any]) -> dict[str, Any]:
    """Where nobody is taught, the tables of teaching are as if they did not exist: older runs keep their identity. Of a
    teacher, what others said about it does not count."""
    if kept.get("teacher") is None:
        kept.pop("teacher", None)
    else:
        kept["teacher"] = {k: v for k, v in kept["teacher"].items() if k not in ("reported", "claims")}
    if kept["training"].get("taught") is None:
        kept["training"].pop("taught", None)
    return kept


class Trial(Table):
    """One variant with one seed: all that a run is a function of."""

    task: Task
    variant: str
    seed: int
    data: Data
    model: Model
    training: Training
    teacher: Teacher | None = None
    probe: Probe = Probe()
    use: tuple[str, ...] = ()
    """files with parts of the user's own"""
    choosing: bool = False
    """a trial of a search: only validation data is scored, and no model is kept"""

    @property
    def goal(self) -> Goal:
        """What the model is to say of the texts: fine-tuning is classifying with weights that are there already."""
        return "language-model" if self.task in ("language-model", "distil") else "classify"

    def settings(self) -> dict[str, Any]:
        return without_teaching(self.model_dump(mode="json", exclude={"variant", "seed", "probe", "choosing"}))


class Experiment(Table):
    """An experiment file, resolved."""

    name: str
    question: str
    task: Task
    seeds: Seeds = 5
    """how many for each variant; "auto" adds seeds until the verdict is settled, up to 12, or "auto up to 20" """
    matters: Annotated[float, Field(gt=0, lt=1)] = 0.01
    """a relative change of perplexity, or a change of accuracy (0.01 is one point), smaller than this is no practical
    difference"""
    primary: Primary
    about: str = ""
    """where the experiment comes from and what to look for"""
    taught: str = ""
    """what it has taught; of a recipe, on the original data"""
    use: tuple[str, ...] = ()
    """files with parts of your own"""
    data: Data = Data()
    model: Model = Transformer()
    training: Training = Training()
    teacher: Teacher | None = None
    """task distil: who teaches"""
    variants: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """name = what it changes, as { "model.position" = "alibi" }"""
    axis: str | None = None
    """a setting with a number for each variant, as model.projection.depth: results are drawn against it"""
    original: Original | None = None
    published: tuple[Published, ...] = ()
    claims: tuple[Claim, ...] = ()
    comparisons: tuple[Comparison, ...] = ()
    probe: Probe = Probe()
    search: Search | None = None
    """settings to be searched; the best is compared with the baseline as the variant `winner`"""
    quick: bool = False
    """a quick look: fewer seeds and steps than the file asks for, so no answer"""

    @field_validator("name")
    @classmethod
    def _is_one_folder(cls, name: str) -> str:
        if not ONE_FOLDER.fullmatch(name) or not name.strip(". "):
            raise ValueError("is used as a folder name: up to 100 characters, no / or \\, and not only periods")
        return name

    @property
    def most_seeds(self) -> int:
        """The number of seeds that is run at most."""
        if isinstance(self.seeds, int):
            return self.seeds
        return int(self.seeds.rpartition(" ")[2]) if " " in self.seeds else MOST_SEEDS

    @property
    def names(self) -> tuple[str, ...]:
        return (BASELINE, *self.variants)

    def identity(self) -> str:
        """Hash of everything that the numbers depend on; wording, seeds, published figures and probes do not."""
        kept = without_teaching(self.model_dump(mode="json", exclude=WORDING))
        return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:16]


__all__ = ["BASELINE", "Claim", "Experiment", "Model", "Original", "Primary", "Probe", "Published", "Trial"]
