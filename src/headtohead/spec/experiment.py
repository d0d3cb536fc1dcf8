"""The question: a baseline, named changes to it, seeds, and what counts as a difference."""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any, Literal

from pydantic import Field

from .base import SPAN, Table
from .data import Data
from .model import Model, Transformer
from .training import Training

BASELINE = "baseline"


Seeds = Annotated[int, Field(ge=1)] | Annotated[str, Field(pattern=r"^auto( up to \d+)?$")]
WORDING = {
    "question",
    "about",
    "taught",
    "published",
    "claims",
    "axis",
    "original",
    "quick",
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


When = Annotated[int, Field(ge=0)] | Annotated[str, Field(pattern=rf"^{SPAN.pattern}$")]
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
    context: Annotated[int, Field(ge=1)] | None = None
    """on inputs of this length (of probe.contexts), against the length that the variant was trained with"""
    why: str = ""
    """what explains the answer"""


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
    samples: Annotated[int, Field(ge=1)] = 1
    """continuations of each prompt"""
    contexts: tuple[Annotated[int, Field(ge=2)], ...] = ()
    """the trained model is also tested on inputs of these lengths"""
    costs: tuple[Annotated[int, Field(ge=2)], ...] = ()
    """time and memory of a training step are measured at these lengths of input"""


class Trial(Table):
    """One variant with one seed: all that a run is a function of."""

    task: Literal["language-model", "classify"]
    variant: str
    seed: int
    data: Data
    model: Model
    training: Training
    probe: Probe = Probe()
    use: tuple[str, ...] = ()
    """files with parts of the user's own"""

    def settings(self) -> dict[str, Any]:
        return self.model_dump(mode="json", exclude={"variant", "seed", "probe"})


class Experiment(Table):
    """An experiment file, resolved."""

    name: str
    question: str
    task: Literal["language-model", "classify"]
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
    variants: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """name = what it changes, as { "model.position" = "alibi" }"""
    axis: str | None = None
    """a setting with a number for each variant, as model.projection.depth: results are drawn against it"""
    original: Original | None = None
    published: tuple[Published, ...] = ()
    claims: tuple[Claim, ...] = ()
    probe: Probe = Probe()
    quick: bool = False
    """a quick look: fewer seeds and steps than the file asks for, so no answer"""

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
        kept = self.model_dump(mode="json", exclude=WORDING)
        return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:16]


__all__ = ["BASELINE", "Claim", "Experiment", "Model", "Original", "Primary", "Probe", "Published", "Trial"]
