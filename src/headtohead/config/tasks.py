"""Declarations of the tasks: what each task reads and predicts, and which settings apply to it. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

TaskName = Literal["language-model", "masked-lm", "classify", "finetune", "distil"]
MetricName = Literal["perplexity", "accuracy"]


class Target(StrEnum):
    """What a model predicts, and at which positions."""

    NEXT_TOKEN = "next token"
    """a token at each position, from earlier positions only"""
    MASKED_TOKEN = "masked token"
    """the original token at each masked position, from all positions"""
    CLASS = "class"
    """one class for a whole text"""
    NONE = "none"
    """hidden states only: a pretrained encoder without a head"""

    @property
    def is_causal(self) -> bool:
        """Whether predictions may use earlier positions only."""
        return self is Target.NEXT_TOKEN

    @property
    def is_class_label(self) -> bool:
        """Whether the label is a class: one prediction per text."""
        return self is Target.CLASS

    @property
    def is_token_label(self) -> bool:
        """Whether the labels are tokens: one prediction per position."""
        return self in (Target.NEXT_TOKEN, Target.MASKED_TOKEN)


@dataclass(frozen=True)
class TaskSpec:
    """The declaration of a task. Its implementation is in `headtohead.tasks`."""

    name: TaskName
    target: Target
    needs_pretrained: bool = False
    """model.pretrained is required"""
    allows_pretrained: bool = False
    has_teacher: bool = False
    """the tables [teacher] and [training.distillation] apply"""
    uses_rare_words: bool = False
    """data.rare_words applies"""
    hub_tag: str = "text-generation"
    """the pipeline tag of the model card"""

    @property
    def required_audits(self) -> tuple[str, ...]:
        """Audits that must pass for every seed, otherwise the verdict is withheld."""
        causality = ("scored-causality",) if self.target.is_causal else ()
        return (*causality, "scored-batches", "scored-order", "finite-scores")

    @property
    def unused_settings(self) -> frozenset[str]:
        """Settings that have no effect on this task, by dotted name."""
        has_effect_by_settings = {
            "training.masking": self.target is Target.MASKED_TOKEN,
            "training.distillation model.layer_subset": self.has_teacher,
            "data.rows data.documents": self.target.is_token_label,
            "data.rare_words": self.uses_rare_words,
            "data.columns.label model.pool model.classifier_hidden model.init_from": self.target.is_class_label,
            "model.tie_word_embeddings model.output": self.target.is_token_label,
            "model.head model.freeze model.layer_decay model.lora data.word_dropout": not self.has_teacher,
            "data.tokenizer": not self.needs_pretrained,
        }
        return frozenset(
            name for names, has_effect in has_effect_by_settings.items() if not has_effect for name in names.split()
        )

    @property
    def scores_every_row(self) -> bool:
        """Whether every row of a split is one example, so that example i of an evaluation is row i of the split."""
        return self.target is not Target.MASKED_TOKEN

    @property
    def metric(self) -> MetricName:
        """The metric that determines the verdict."""
        return "accuracy" if self.target.is_class_label else "perplexity"


LANGUAGE_MODEL = TaskSpec("language-model", Target.NEXT_TOKEN, uses_rare_words=True)
MASKED_LM = TaskSpec("masked-lm", Target.MASKED_TOKEN, hub_tag="fill-mask")
CLASSIFY = TaskSpec("classify", Target.CLASS, hub_tag="text-classification")
FINETUNE = TaskSpec(
    "finetune", Target.CLASS, needs_pretrained=True, allows_pretrained=True, hub_tag="text-classification"
)
DISTIL = TaskSpec("distil", Target.NEXT_TOKEN, allows_pretrained=True, has_teacher=True)

TASK_SPECS: dict[str, TaskSpec] = {spec.name: spec for spec in (LANGUAGE_MODEL, MASKED_LM, CLASSIFY, FINETUNE, DISTIL)}
