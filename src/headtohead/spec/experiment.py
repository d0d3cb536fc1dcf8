"""The question: a baseline, named changes to it, seeds, and what counts as a difference."""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any, Literal

from pydantic import Field

from .base import Table
from .data import Data
from .model import Model, Transformer
from .training import Training

BASELINE = "baseline"


Seeds = Annotated[int, Field(ge=1)] | Annotated[str, Field(pattern=r"^auto( up to \d+)?$")]
MOST_SEEDS = 12
"""where "auto" ends unless it says otherwise"""


class Primary(Table):
    """What the verdict is taken from. Stands in the file so that nobody chooses it afterwards."""

    metric: Literal["perplexity", "accuracy"]
    split: str = "test"
    """test (all held-out texts), validation, or the name of one held-out text"""


class Published(Table):
    """A figure that somebody published, to stand beside ours."""

    source: str
    """whose"""
    variant: str = BASELINE
    split: str
    metric: Literal["perplexity", "accuracy"]
    value: float
    step: int | None = None
    note: str = ""
    other_data: bool = False
    """the token stream differs, so the figure is shown marked and not compared"""


class Probe(Table):
    """Texts that every model of the experiment is tried on at the end."""

    prompts: tuple[str, ...] = ()
    sentences: dict[str, str] = Field(default_factory=dict)
    """name = a sentence to be scored or classified"""


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
    use: tuple[str, ...] = ()
    """files with parts of your own"""
    data: Data = Data()
    model: Model = Transformer()
    training: Training = Training()
    variants: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """name = what it changes, as { "model.position" = "alibi" }"""
    published: tuple[Published, ...] = ()
    probe: Probe = Probe()

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
        kept = self.model_dump(mode="json", exclude={"question", "about", "published", "probe", "seeds", "variants"})
        return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:16]


__all__ = ["BASELINE", "Experiment", "Model", "Primary", "Probe", "Published", "Trial"]
