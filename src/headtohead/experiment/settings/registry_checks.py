"""Check the names in an experiment file against the registries: parts, tokenizers, corpus sources and strategies.

`config` validates the types of settings without torch, so it cannot know which parts exist and which options they have.
The checks take unvalidated settings; values of a wrong type are reported by `config`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headtohead.config import base
from headtohead.config.overlays import RawConfig
from headtohead.config.tables.model import is_per_layer
from headtohead.config.validation.component_options import validate_component
from headtohead.data.sources.loading import check_source
from headtohead.data.tokenization import tokenizers
from headtohead.errors import PartError, StrategyError, ValidationIssue
from headtohead.generation.strategies import build_strategy
from headtohead.nn.parts import position, registry


def check_registered_names(raw: RawConfig) -> list[ValidationIssue]:
    """Return the issues that only the registries reveal: unknown parts, tokenizers or sources, and invalid options."""
    model, data, training, teacher = (_as_dict(raw.get(table)) for table in ("model", "data", "training", "teacher"))
    issues = [] if "module" in model or "pretrained" in model else _check_model_parts(model)
    if isinstance(data.get("source"), str):
        issues += check_source(data["source"])
    if "tokenizer" in data:
        issues += validate_component(data["tokenizer"], tokenizers.TOKENIZER_BUILDERS, "tokenizer", "data.tokenizer")
    issues += _check_parts_in_slots(training, registry.TRAINING_SLOTS, "training")
    return issues + _check_teacher_settings(teacher)


def _check_teacher_settings(teacher: dict[str, Any]) -> list[ValidationIssue]:
    """Return the issues with the parts of a distillation teacher, its optimizer, and its decoding strategy."""
    training = _as_dict(teacher.get("training"))
    issues = [
        *_check_model_parts(_as_dict(teacher.get("model"))),
        *_check_parts_in_slots(training, registry.TRAINING_SLOTS, "training"),
    ]
    teacher_issues = [
        ValidationIssue(f"teacher.{issue.location}", issue.message, issue.allowed, issue.suggestion) for issue in issues
    ]
    if "strategy" in teacher:
        try:
            strategy_config = base.ComponentConfig.model_validate(teacher["strategy"])
            build_strategy(strategy_config.kind, **strategy_config.options)
        except StrategyError as error:
            teacher_issues.append(ValidationIssue("teacher.strategy", str(error)))
        except ValueError:
            pass  # reported by the schema
    return teacher_issues


def _check_model_parts(model: dict[str, Any]) -> list[ValidationIssue]:
    """Return the issues with the names, options and combination of a model's parts."""
    issues = _check_parts_in_slots(model, registry.MODEL_SLOTS, "model")
    return issues + _check_single_absolute_position(_list_parts_by_layer(model.get("position", "learned")))


def _check_parts_in_slots(table: dict[str, Any], slots: Sequence[str], table_name: str) -> list[ValidationIssue]:
    """Return the issues with the names, options and order of the registered parts that a table selects."""
    issues: list[ValidationIssue] = []
    for slot in slots:
        location = f"{table_name}.{slot}"
        for parts in _list_parts_by_layer(table[slot]) if slot in table else ():
            for part in parts:
                issues += registry.validate_part_config(slot, part, location)
            names = [part["kind"] if isinstance(part, dict) else part for part in parts if _has_part_name(part)]
            issues += registry.check_part_order(slot, names, location)
            issues += registry.check_importable_by_workers(slot, names, location)
    return list(dict.fromkeys(issues))


def _list_parts_by_layer(slot_value: Any) -> list[list[Any]]:
    """Return the lists of parts in a slot, one per separately configured layer, or one for all layers."""
    layers = slot_value["layers"] if is_per_layer(slot_value) else [slot_value]
    return [parts if isinstance(parts, list) else [parts] for parts in (layers if isinstance(layers, list) else [])]


def _has_part_name(part: Any) -> bool:
    """Return whether an unvalidated part has a name: a string, or a table with a string `kind`."""
    return isinstance(part["kind"] if isinstance(part, dict) and "kind" in part else part, str)


def _check_single_absolute_position(parts_by_layer: list[list[Any]]) -> list[ValidationIssue]:
    """Return an issue if an experiment file selects several absolute position embeddings, which would be summed."""
    part_configs = []
    for parts in parts_by_layer:
        for part in parts:
            try:
                part_configs.append(base.ComponentConfig.model_validate(part))
            except ValueError:
                continue
    absolute_kinds = []
    for part_config in dict.fromkeys(part_configs) if len(parts_by_layer) > 1 else part_configs:
        try:
            part_class = registry.get_part_class("position", part_config.kind)
        except PartError:
            continue
        if issubclass(part_class, position.Position) and part_class.is_absolute:
            absolute_kinds.append(part_class.kind)
    if len(absolute_kinds) < 2:
        return []
    return [
        ValidationIssue(
            "model.position", f"only one absolute position part is allowed, got {' and '.join(absolute_kinds)}"
        )
    ]


def _as_dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
