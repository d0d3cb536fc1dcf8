"""Validate the settings of an experiment: the file, its variants, and its search, tuning and sweep.

All issues are returned together. The pydantic models of `config` validate the settings, and the other modules of this
package check what a model of a single table cannot. A callback checks the names and options of parts, which `config`
does not know.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from headtohead.config.base import FOLDER_NAME_PATTERN, FOLDER_NAME_RULE
from headtohead.config.experiment import BASELINE, VARIANT_INDEPENDENT_KEYS, Experiment
from headtohead.config.overlays import VARIANT_TABLES, RawConfig, apply_variant
from headtohead.config.tasks import TASK_SPECS
from headtohead.config.toml import find_unsupported_values
from headtohead.config.validation.consistency import check_consistency
from headtohead.config.validation.error_messages import convert_pydantic_error
from headtohead.config.validation.search_checks import check_search, check_tuning
from headtohead.config.validation.sweep_checks import check_sweep
from headtohead.config.variant_changes import ChangeCheck
from headtohead.errors import ConfigError, ValidationIssue, suggest

PartIssueFinder = Callable[[RawConfig], list[ValidationIssue]]
"""callable that returns the issues of the part names and options in the settings"""
MAX_VARIANTS = 1000


def validate_experiment(
    raw_config: RawConfig, name: str, *, find_part_issues: PartIssueFinder | None = None
) -> Experiment:
    """Return the experiment that a dict describes, after all checks.

    Args:
        raw_config: Settings with the keys of an experiment file.
        name: Name of the experiment, used as a folder name.
        find_part_issues: Callback that returns issues of part names and options.

    Raises:
        ConfigError: If a setting is invalid. The error lists every issue.
    """
    experiment, issues = build_checked_experiment(raw_config, name, find_part_issues)
    if issues or experiment is None:
        raise ConfigError(name, issues)
    return experiment


def build_checked_experiment(
    raw: RawConfig, name: str, find_part_issues: PartIssueFinder | None
) -> tuple[Experiment | None, list[ValidationIssue]]:
    """Validate an experiment, its variants, search and sweep; return it, or None if invalid, and all issues."""
    raw = _fill_name_and_metric(raw, name)
    if issues := find_unsupported_values(raw):
        return None, issues
    experiment, issues = _validate_settings(raw)
    if find_part_issues:
        issues += find_part_issues(raw)
    file_issues = {(issue.location, issue.message) for issue in issues}

    def check_changes(changes: RawConfig) -> list[ValidationIssue]:
        """Return the issues that a variant's changes cause in addition to those of the file."""
        issues = _check_variant_changes(raw, changes, find_part_issues)
        return [issue for issue in issues if (issue.location, issue.message) not in file_issues]

    variants = raw.get("variants", {})
    if isinstance(variants, dict) and len(variants) > MAX_VARIANTS:
        message = f"are {len(variants):,}; an experiment compares {MAX_VARIANTS:,} at most"
        issues.append(ValidationIssue("variants", message))
    elif isinstance(variants, dict):
        for variant, changes in variants.items():
            issues += _check_variant(str(variant), changes, check_changes)
    if raw.get("search") is not None:
        issues += check_search(raw, check_changes)
    if raw.get("tune") is not None:
        issues += check_tuning(raw, check_changes)
    if raw.get("sweep") is not None:
        issues += check_sweep(raw, check_changes)
    return experiment, issues


def _fill_name_and_metric(raw: RawConfig, name: str) -> RawConfig:
    """Return a copy to validate, with the experiment's name and the default metric of its task."""
    raw = {"name": name, **copy.deepcopy(raw)}
    primary = raw.setdefault("primary", {})
    if isinstance(primary, dict) and raw.get("task") in TASK_SPECS:
        primary.setdefault("metric", TASK_SPECS[raw["task"]].metric)
    return raw


def _check_variant(variant: str, changes: Any, check_changes: ChangeCheck) -> list[ValidationIssue]:
    """Return the validation issues of one variant; their locations start with `variants.NAME`."""
    location = f"variants.{variant}"
    if variant == BASELINE:
        return [ValidationIssue(location, "is reserved for the unchanged settings; choose another name")]
    if not FOLDER_NAME_PATTERN.fullmatch(variant):
        return [ValidationIssue(location, FOLDER_NAME_RULE)]
    if not isinstance(changes, dict) or not changes:
        return [ValidationIssue(location, 'has no settings; write what it replaces, as in model.position = "alibi"')]
    issues = []
    for table in changes:
        if table not in VARIANT_TABLES:
            message, closest = "a variant changes settings of data, model or training", suggest(table, VARIANT_TABLES)
            issues.append(ValidationIssue(f"{location}.{table}", message, VARIANT_TABLES, closest))
        elif not isinstance(changes[table], dict):
            issues.append(ValidationIssue(f"{location}.{table}", f"is a table, as in {table}.name = value"))
    if issues:
        return issues
    return [replace(issue, location=f"{location}.{issue.location}") for issue in check_changes(changes)]


def _check_variant_changes(
    raw: RawConfig, changes: RawConfig, find_part_issues: PartIssueFinder | None
) -> list[ValidationIssue]:
    """Return the issues of the file with a variant's changes applied, restricted to those that the changes cause."""
    changed_keys = [f"{table}.{key}" for table, settings in changes.items() for key in settings]
    merged_config = apply_variant(
        {key: value for key, value in raw.items() if key not in VARIANT_INDEPENDENT_KEYS}, changes
    )
    issues = _validate_settings(merged_config)[1] + (find_part_issues(merged_config) if find_part_issues else [])
    return [
        issue
        for issue in issues
        if any(issue.location.startswith(key) or key.startswith(issue.location) for key in changed_keys)
        or issue.location in VARIANT_TABLES
    ]


def _validate_settings(raw: RawConfig) -> tuple[Experiment | None, list[ValidationIssue]]:
    """Validate settings with pydantic; return the experiment, or None, and its issues, at most one per location."""
    try:
        experiment = Experiment.model_validate(raw)
    except ValidationError as error:
        issues: dict[str, ValidationIssue] = {}
        for details in error.errors():
            issue = convert_pydantic_error(details)
            # A union type yields one error per member. Report the last and most specific one, unless it only says that
            # the value is not a string.
            if issue.location not in issues or details["type"] != "string_type":
                issues[issue.location] = issue
        for issue in _check_remaining_settings(raw, [details["loc"] for details in error.errors()]):
            issues.setdefault(issue.location, issue)
        return None, list(issues.values())
    return experiment, check_consistency(experiment)


def _check_remaining_settings(
    raw: RawConfig, invalid_locations: Sequence[Sequence[int | str]]
) -> list[ValidationIssue]:
    """Return cross-field issues, which pydantic does not check while any single setting is invalid.

    Invalid settings are removed before the check. Issues that mention them are dropped, because they may result from
    the removal.
    """
    remaining = {"question": "", **copy.deepcopy(raw)}
    removed_keys = {_remove_invalid_setting(remaining, location) for location in invalid_locations} - {""}
    try:
        issues = check_consistency(Experiment.model_validate(remaining))
    except ValidationError as error:
        issues = [convert_pydantic_error(details) for details in error.errors() if details["type"] == "value_error"]
    return [
        issue for issue in issues if not removed_keys & set(re.findall(r"\w+", f"{issue.location} {issue.message}"))
    ]


def _remove_invalid_setting(raw: RawConfig, location: Sequence[int | str]) -> str:
    """Remove the setting that pydantic rejected from an experiment file's settings, in place, and return its key.

    Items of the location that are not keys of the dict, such as union tags, are skipped.
    """
    table, key = raw, ""
    value: Any = raw
    for location_item in location:
        if isinstance(value, dict) and location_item in value:
            table, key, value = value, str(location_item), value[str(location_item)]
        elif isinstance(value, list) and isinstance(location_item, int) and location_item < len(value):
            value = value[location_item]
    table.pop(key, None)
    return key
