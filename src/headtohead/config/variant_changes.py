"""Convert the dotted settings of search points, tuned variants and sweep cells to changes like those of a variant."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from headtohead.config.base import BaseConfig
from headtohead.config.overlays import RawConfig, flatten_settings
from headtohead.config.tables.data import DataConfig
from headtohead.config.tables.model import TransformerConfig
from headtohead.config.tables.search import SettingValues
from headtohead.config.tables.sweep import CORPUS_AXIS, SIZE_AXIS
from headtohead.config.tables.training import TrainingConfig
from headtohead.errors import ValidationIssue

ChangeCheck = Callable[[RawConfig], list[ValidationIssue]]
"""callable that returns the issues of a variant with these changes; locations start with the table"""


def build_variant_changes(raw_config: RawConfig, settings: SettingValues) -> RawConfig:
    """Return the dotted settings of a search point in the form of a variant's changes.

    A dotted name inside a component, such as training.optimizer.lr, changes that option and preserves its other options
    in `raw_config`.
    """
    changes: RawConfig = {}
    for setting in sorted(settings, key=lambda name: name.count(".")):
        table, key, *option_path = setting.split(".")
        table_changes = changes.setdefault(table, {})
        if not option_path:
            table_changes[key] = copy.deepcopy(settings[setting])
            continue
        component = table_changes[key] if key in table_changes else _get_unchanged_setting(raw_config, table, key)
        table_changes[key] = _set_component_option(component, option_path, settings[setting])
    return {table: _convert_tuples_to_lists(table_changes) for table, table_changes in changes.items()}


def _get_unchanged_setting(raw: RawConfig, table: str, key: str) -> Any:
    """Return the value that a setting has without the change: that in the experiment file, or its default."""
    settings = raw.get(table)
    if isinstance(settings, dict) and key in settings:
        return settings[key]
    defaults: dict[str, BaseConfig] = {"data": DataConfig(), "model": TransformerConfig(), "training": TrainingConfig()}
    return defaults[table].model_dump(mode="json").get(key) if table in defaults else None


def _set_component_option(component: Any, option_path: list[str], value: Any) -> Any:
    """Return a copy of a component's setting, such as "alibi", in which a changed option has its new value."""
    if isinstance(component, list | tuple) and len(component) == 1:
        (component,) = component
    if isinstance(component, str):
        component = {"kind": component}
    options = copy.deepcopy(component) if isinstance(component, dict) else {}
    name, *remaining_path = option_path
    options[name] = (
        _set_component_option(options.get(name), remaining_path, value) if remaining_path else copy.deepcopy(value)
    )
    return options


def _convert_tuples_to_lists(value: Any) -> Any:
    """Convert the tuples in changed settings to lists recursively, as in TOML and JSON."""
    if isinstance(value, dict):
        return {key: _convert_tuples_to_lists(item) for key, item in value.items()}
    return [_convert_tuples_to_lists(item) for item in value] if isinstance(value, list | tuple) else value


def build_cell_changes(raw: RawConfig, axis_name: str, axis_value: RawConfig) -> RawConfig:
    """Return what a sweep cell changes along one axis, in the form of a variant's changes.

    Args:
        raw: Settings of the experiment.
        axis_name: Name of the axis.
        axis_value: The cell's value on the axis, as in `SweepAxis.values`.
    """
    if axis_name == CORPUS_AXIS:
        return axis_value
    return build_variant_changes(raw, flatten_settings(axis_value) if axis_name == SIZE_AXIS else axis_value)
