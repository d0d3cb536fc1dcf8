"""Changes applied to an experiment file before validation: variants, `--set`, `[original]` and `[full]`."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from headtohead.config.toml import parse_toml_value
from headtohead.errors import ConfigError, RequestError, ValidationIssue

RawConfig = dict[str, Any]
"""settings as nested dicts, with the keys of an experiment file"""
VARIANT_TABLES = ("data", "model", "training")
"""tables that a variant may change"""
OVERLAY_TABLES = ("full", "quick")
"""tables that replace settings on request, with --full and --quick"""
RECIPE_DATA_KEYS = ("description", "conclusions", "published", "claims", "original")
"""top-level keys of a recipe that only apply to the data it was written for"""
RECIPE_DATA_SETTINGS = ("files", "columns", "vocabulary", "monitor", "validation_fraction")
"""keys of a recipe's [data] table that only apply to the data it was written for"""


@dataclass(frozen=True)
class RawExperiment:
    """An experiment file after parsing, before validation."""

    name: str
    source: str
    """path of the file, for error messages"""
    raw_config: RawConfig
    """the settings as nested dicts"""
    line_numbers: Mapping[str, int] = field(default_factory=dict)
    """line of each dotted key, for error messages"""


def apply_variant(raw_config: RawConfig, changes: RawConfig) -> RawConfig:
    """Overlay the settings of a variant: return a copy in which its values replace others, without merging them."""
    merged_config = copy.deepcopy(raw_config)
    for table, settings in changes.items():
        if table == "model" and "module" in settings:
            # A custom network has none of a transformer's settings except the context length.
            context = merged_config.get("model", {}).get("context")
            merged_config["model"] = {"context": context} if context else {}
        if table == "model" and "pretrained" in settings and "pretrained" not in merged_config.get("model", {}):
            merged_config["model"] = {}  # nor has a pretrained model
        if not isinstance(merged_config.setdefault(table, {}), dict):
            merged_config[table] = {}
        merged_config[table].update(copy.deepcopy(settings))
    return merged_config


def flatten_settings(settings: Mapping[str, Any], prefix: str = "") -> RawConfig:
    """Return nested settings as one dict with dotted names, the inverse of `nest_dotted_keys`."""
    flat_settings: RawConfig = {}
    for key, value in settings.items():
        if isinstance(value, dict) and value:
            flat_settings |= flatten_settings(value, f"{prefix}{key}.")
        else:
            flat_settings[f"{prefix}{key}"] = value
    return flat_settings


def nest_dotted_keys(raw: Mapping[str, Any]) -> RawConfig:
    """Return a deep copy in which dotted keys such as "model.width" are expanded to nested dicts, also in variants."""
    nested_config: RawConfig = {}
    for key, value in raw.items():
        *table_names, last_key = key.split(".")
        table = nested_config
        for name in table_names:
            table = table.setdefault(name, {})
        value = _nest_variant_changes(value) if key == "variants" and isinstance(value, Mapping) else value
        if isinstance(value, Mapping) and isinstance(table.get(last_key), dict):
            value = {**table[last_key], **value}
        table[last_key] = copy.deepcopy(value)
    return nested_config


def _nest_variant_changes(variants: Mapping[str, Any]) -> RawConfig:
    """Expand the dotted keys in the changes that each variant overlays, but not in the variants' names."""
    return {
        name: nest_dotted_keys(changes) if isinstance(changes, Mapping) else changes
        for name, changes in variants.items()
    }


def apply_overrides(raw_experiment: RawExperiment, overrides: Iterable[str]) -> RawExperiment:
    """Overlay `--set key=value` options on an experiment. A value that is not valid TOML is used as text."""
    raw = copy.deepcopy(raw_experiment.raw_config)
    issues = []
    for setting in overrides:
        key, separator, text = setting.partition("=")
        if not separator or not key.strip():
            issues.append(ValidationIssue(f"--set {setting}", "has the form name=value, as in --set model.layers=2"))
            continue
        value = parse_toml_value(text, f"--set {key.strip()}")
        table = raw
        *table_names, last_key = key.strip().split(".")
        for name in table_names:
            inner_table = table.setdefault(name, {})
            if not isinstance(inner_table, dict):
                inner_table = table[name] = {}
            table = inner_table
        table[last_key] = value
    if issues:
        raise ConfigError("command line", issues)
    return replace(raw_experiment, raw_config=raw)


def apply_original_setup(raw_experiment: RawExperiment) -> RawExperiment:
    """Apply the `[original]` table, for runs on the data of the original report."""
    original = raw_experiment.raw_config.get("original")
    if not isinstance(original, dict):
        return raw_experiment
    changes = {table: original[table] for table in VARIANT_TABLES if isinstance(original.get(table), dict)}
    return replace(raw_experiment, raw_config=apply_variant(raw_experiment.raw_config, changes))


def adapt_to_other_data(raw_experiment: RawExperiment) -> RawExperiment:
    """Remove what only applies to the data that a recipe was written for: published results, splits, prompts, ..."""
    raw = {key: value for key, value in raw_experiment.raw_config.items() if key not in RECIPE_DATA_KEYS}
    removed_keys_by_table = {"data": RECIPE_DATA_SETTINGS, "probe": ("prompts", "sentences")}
    for table, removed_keys in removed_keys_by_table.items():
        if isinstance(raw.get(table), dict):
            raw[table] = {key: value for key, value in raw[table].items() if key not in removed_keys}
    return replace(raw_experiment, raw_config=raw)


def apply_full_table(raw_experiment: RawExperiment) -> RawExperiment:
    """Apply the `[full]` table, which contains the settings for a larger machine."""
    full = raw_experiment.raw_config.get("full")
    if not isinstance(full, dict):
        raise RequestError(f"{raw_experiment.name} has no [full] table, which --full requires")
    raw = merge_tables(raw_experiment.raw_config, full) | {"name": f"{raw_experiment.name}-full"}
    return replace(raw_experiment, name=raw["name"], raw_config=raw)


def merge_tables(raw: RawConfig, changes: RawConfig) -> RawConfig:
    """Return settings overlaid with `changes`. Tables are merged key by key; all other values are replaced."""
    merged_tables = copy.deepcopy(raw)
    for key, value in copy.deepcopy(changes).items():
        current_value = merged_tables.get(key)
        merged_tables[key] = (
            {**current_value, **value} if isinstance(current_value, dict) and isinstance(value, dict) else value
        )
    return merged_tables


def drop_overlay_tables(raw_experiment: RawExperiment) -> RawExperiment:
    """Remove the `[full]` and `[quick]` tables after they have been applied."""
    raw = {
        key: value
        for key, value in raw_experiment.raw_config.items()
        if key not in OVERLAY_TABLES or not isinstance(value, dict)
    }
    return replace(raw_experiment, raw_config=raw)
