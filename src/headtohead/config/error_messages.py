"""What pydantic found wrong with an experiment file, in words: where, what was given, what is allowed, what is near."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel

from headtohead.config.base import ComponentConfig
from headtohead.config.experiment import Experiment
from headtohead.config.model import CustomModelConfig, TransformerConfig
from headtohead.config.pretrained import PretrainedModelConfig
from headtohead.errors import ValidationIssue, suggest

UNION_TAGS = {"values", "range", "parts", "own", "encoder", "named", "each layer", "all layers"}
MODEL_CONFIGS_BY_TAG: dict[str, type[BaseModel]] = {
    "parts": TransformerConfig,
    "own": CustomModelConfig,
    "encoder": PretrainedModelConfig,
}
RENAMED_KEYS = {
    "data.once": "data.rare_words",
    "data.test_rows": "data.max_test_rows",
    "data.tokens": "data.tokenizer",
    "data.unknown": "data.word_dropout",
    "data.validation": "data.validation_fraction",
    "data.watch": "data.monitor",
    "model.embedding_start": "model.embedding_init_std",
    "model.fewer": "model.layer_subset",
    "model.lora.on": "model.lora.target_modules",
    "model.output_start": "model.output_init",
    "model.tied": "model.tie_word_embeddings",
    "training.batch": "training.batch_size",
    "training.batching": "training.group_by_length",
    "training.best_by": "training.metric_for_best_model",
    "training.checkpoint": "training.checkpoint_every",
    "training.clip": "training.max_grad_norm",
    "training.evaluate": "training.eval_every",
    "training.keep": "training.load_best_model_at_end",
    "training.stop": "training.early_stopping",
    "training.taught": "training.distillation",
}
"""keys of version 0.1, for the error message only"""
TYPE_DESCRIPTIONS = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "dict_type": "a table",
    "model_type": "a table",
    "model_attributes_type": "a table",
    "tuple_type": "a list",
}


def convert_pydantic_error(error: Any) -> ValidationIssue:
    loc = [str(part) for part in error["loc"] if str(part) not in UNION_TAGS]
    # A union of plain types reports once for each; the last step of the place is then the type's own name.
    place = ".".join(part for part in loc if not re.search(r"constrained-|^(int|str|literal\[|function-)", part))
    kind, given, context = error["type"], error["input"], error.get("ctx", {})
    if kind == "extra_forbidden":
        allowed = _get_allowed_keys(
            loc[:-1], next((MODEL_CONFIGS_BY_TAG[tag] for tag in error["loc"] if tag in MODEL_CONFIGS_BY_TAG), None)
        )
        if renamed := RENAMED_KEYS.get(re.sub(r"^(variants\.[^.]+|teacher|original|full)\.", "", place)):
            return ValidationIssue(place, f"was written for version 0.1; the key is now {renamed!r}")
        return ValidationIssue(place, "unknown key", allowed, suggest(loc[-1], allowed))
    if kind == "missing":
        return ValidationIssue(place, "is missing")
    if kind == "literal_error":
        allowed = tuple(re.findall(r"'([^']*)'", context.get("expected", "")))
        return ValidationIssue(place, f"cannot be {given!r}", allowed, suggest(str(given), allowed))
    if kind in TYPE_DESCRIPTIONS:
        return ValidationIssue(place, f"must be {TYPE_DESCRIPTIONS[kind]}, not {_describe_value(given)}")
    if kind == "value_error":
        return ValidationIssue(place, str(context.get("error", error["msg"])))
    if kind == "string_pattern_mismatch":
        forms = {
            "seeds": '5, "auto" or "auto up to 20"',
            "module": "file.py:Name",
            "steps": '500 or "15 epochs"',
            "eval_every": '100 or "1 epoch"',
            "checkpoint_every": '100 or "1 epoch"',
        }
        form = forms.get(place.rpartition(".")[2], context["pattern"])
        return ValidationIssue(place, f"cannot be {given!r}; it looks like {form}")
    bounds = {"greater_than": ">", "greater_than_equal": ">=", "less_than": "<", "less_than_equal": "<="}
    if kind in bounds:
        bound = next(iter(value for name, value in context.items() if name in {"gt", "ge", "lt", "le"}))
        return ValidationIssue(place, f"must be {bounds[kind]} {bound}, not {given!r}")
    return ValidationIssue(place, f"{error['msg'].lower()}, not {_describe_value(given)}")


def _describe_value(value: object) -> str:
    names = {str: "text", bool: "true or false", int: "number", float: "number", list: "list", dict: "table"}
    return f"the {names.get(type(value), type(value).__name__)} {value!r}"


def _get_allowed_keys(loc: Sequence[str], model: type[BaseModel] | None) -> tuple[str, ...]:
    """The keys that the table at this place may have; `model` says which kind of model the file has."""
    table: type[BaseModel] = Experiment
    for part in loc:
        if part == "model" and model is not None:
            table = model
            continue
        annotation = table.model_fields[part].annotation if part in table.model_fields else None
        found = [t for t in _find_config_classes(annotation) if t is not ComponentConfig]
        if not found:
            return ()
        table = found[0]
    return tuple(table.model_fields)


def _find_config_classes(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [t for inner in getattr(annotation, "__args__", ()) for t in _find_config_classes(inner)]
