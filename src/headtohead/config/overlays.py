"""Changes applied to an experiment file before validation: variants, `--set`, `[original]` and `[full]`."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from headtohead.config.toml import parse_toml_value
from headtohead.errors import ConfigError, RequestError, ValidationIssue

RawConfig = dict[str, Any]
VARIANT_TABLES = ("data", "model", "training")
OVERLAY_TABLES = ("full", "quick")
RECIPE_DATA_KEYS = ("description", "conclusions", "published", "claims", "original")
RECIPE_DATA_SETTINGS = ("files", "columns", "vocabulary", "monitor", "validation_fraction")
"""settings of a recipe that only apply to the data it was written for"""


@dataclass(frozen=True)
class RawExperiment:
    """An experiment file after parsing, before validation. `lines` maps dotted keys to line numbers."""

    name: str
    source: str
    raw: RawConfig
    lines: Mapping[str, int] = field(default_factory=dict)


def apply_variant(raw_config: RawConfig, changes: RawConfig) -> RawConfig:
    """Return a copy with the settings of a variant. Values are replaced, not merged."""
    merged = copy.deepcopy(raw_config)
    for table, settings in changes.items():
        if table == "model" and "module" in settings:
            # A custom network has none of the settings of a transformer of parts except the context length.
            context = merged.get("model", {}).get("context")
            merged["model"] = {"context": context} if context else {}
        if table == "model" and "pretrained" in settings and "pretrained" not in merged.get("model", {}):
            merged["model"] = {}  # nor has a pretrained model
        if not isinstance(merged.setdefault(table, {}), dict):
            merged[table] = {}
        merged[table].update(copy.deepcopy(settings))
    return merged


def flatten_settings(settings: Mapping[str, Any], prefix: str = "") -> RawConfig:
    """Return nested settings as one dict with dotted names."""
    flat: RawConfig = {}
    for key, value in settings.items():
        if isinstance(value, dict) and value:
            flat |= flatten_settings(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def nest_dotted_keys(raw: Mapping[str, Any]) -> RawConfig:
    """Return a deep copy in which a key "model.width" is written as a nested dict, at the top level and in variants."""
    nested: RawConfig = {}
    for key, value in raw.items():
        *tables, last_key = key.split(".")
        table = nested
        for name in tables:
            table = table.setdefault(name, {})
        value = _nest_variants(value) if key == "variants" and isinstance(value, Mapping) else value
        if isinstance(value, Mapping) and isinstance(table.get(last_key), dict):
            value = {**table[last_key], **value}
        table[last_key] = copy.deepcopy(value)
    return nested


def _nest_variants(variants: Mapping[str, Any]) -> RawConfig:
    """Return variants with nested settings. Their names may contain dots."""
    return {
        name: nest_dotted_keys(changes) if isinstance(changes, Mapping) else changes
        for name, changes in variants.items()
    }


def apply_overrides(raw_experiment: RawExperiment, overrides: Iterable[str]) -> RawExperiment:
    """Overlay `--set key=value` options on an experiment. A value that is not valid TOML is used as text."""
    raw = copy.deepcopy(raw_experiment.raw)
    issues = []
    for setting in overrides:
        key, separator, text = setting.partition("=")
        if not separator or not key.strip():
            issues.append(ValidationIssue(f"--set {setting}", "has the form name=value, as in --set model.layers=2"))
            continue
        value = parse_toml_value(text, f"--set {key.strip()}")
        current_table = raw
        *tables, last_key = key.strip().split(".")
        for table in tables:
            inner = current_table.setdefault(table, {})
            if not isinstance(inner, dict):
                inner = current_table[table] = {}
            current_table = inner
        current_table[last_key] = value
    if issues:
        raise ConfigError("command line", issues)
    return replace(raw_experiment, raw=raw)


def apply_original_setup(raw_experiment: RawExperiment) -> RawExperiment:
    """Apply the `[original]` table, for runs on the data of the original report."""
    original = raw_experiment.raw.get("original")
    if not isinstance(original, dict):
        return raw_experiment
    changes = {table: original[table] for table in VARIANT_TABLES if isinstance(original.get(table), dict)}
    return replace(raw_experiment, raw=apply_variant(raw_experiment.raw, changes))


def adapt_to_other_data(raw_experiment: RawExperiment) -> RawExperiment:
    """Remove the settings that only apply to a recipe's own data: its texts, published results, vocabulary, splits and
    prompts.
    """
    raw = {key: value for key, value in raw_experiment.raw.items() if key not in RECIPE_DATA_KEYS}
    removed_settings = {"data": RECIPE_DATA_SETTINGS, "probe": ("prompts", "sentences")}
    for table, names in removed_settings.items():
        if isinstance(raw.get(table), dict):
            raw[table] = {key: value for key, value in raw[table].items() if key not in names}
    return replace(raw_experiment, raw=raw)


def apply_full_table(raw_experiment: RawExperiment) -> RawExperiment:
    """Apply the `[full]` table, which holds the settings for a larger machine."""
    full = raw_experiment.raw.get("full")
    if not isinstance(full, dict):
        raise RequestError(f"{raw_experiment.name} has no [full] table, which --full needs")
    raw = merge_tables(raw_experiment.raw, full) | {"name": f"{raw_experiment.name}-full"}
    return replace(raw_experiment, name=raw["name"], raw=raw)


def merge_tables(raw: RawConfig, changes: RawConfig) -> RawConfig:
    """Return a copy in which tables replace the keys that they name and any other key replaces the value."""
    merged = copy.deepcopy(raw)
    for key, value in copy.deepcopy(changes).items():
        current_value = merged.get(key)
        merged[key] = (
            {**current_value, **value} if isinstance(current_value, dict) and isinstance(value, dict) else value
        )
    return merged


def drop_overlay_tables(raw_experiment: RawExperiment) -> RawExperiment:
    """Remove the `[full]` and `[quick]` tables, which are not settings of the experiment."""
    raw = {
        key: value
        for key, value in raw_experiment.raw.items()
        if key not in OVERLAY_TABLES or not isinstance(value, dict)
    }
    return replace(raw_experiment, raw=raw)


def remove_setting(raw: RawConfig, location: Sequence[int | str]) -> str:
    """Remove the setting at a location of pydantic, in place, and return its key.

    Keys that are not in the dict, such as union tags, are skipped.
    """
    table, key = raw, ""
    value: Any = raw
    for step in location:
        if isinstance(value, dict) and step in value:
            table, key, value = value, str(step), value[str(step)]
        elif isinstance(value, list) and isinstance(step, int) and step < len(value):
            value = value[step]
    table.pop(key, None)
    return key
