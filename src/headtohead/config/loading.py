"""Read and validate experiment files. All issues are reported together, each with its line number.

A file is parsed to a plain dict, to which overlays (`[full]`, `--quick`, `--set`) are applied. Each variant is a copy
of this dict with some values replaced. The pydantic models of this package validate the results. A callback checks the
names and options of parts, which this package does not know.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from headtohead.config.base import FOLDER_NAME_PATTERN, FOLDER_NAME_RULE
from headtohead.config.experiment import BASELINE, VARIANT_INDEPENDENT_KEYS, Experiment
from headtohead.config.experiment_file import read_experiment_file
from headtohead.config.overlays import (
    VARIANT_TABLES,
    RawConfig,
    RawExperiment,
    adapt_to_other_data,
    apply_full_table,
    apply_original_setup,
    apply_overrides,
    apply_variant,
    drop_overlay_tables,
)
from headtohead.config.recipe_catalog import find_recipe, list_recipes
from headtohead.config.reduction import apply_quick_mode, select_variants
from headtohead.config.tables.report_text import ReportText
from headtohead.config.tasks import TASK_SPECS
from headtohead.config.toml import find_unsupported_values
from headtohead.config.validation.consistency import check_experiment
from headtohead.config.validation.error_messages import convert_pydantic_error
from headtohead.config.validation.search_checks import check_search, check_tuning
from headtohead.config.validation.sweep_checks import check_sweep
from headtohead.config.variant_changes import ChangeCheck
from headtohead.errors import ConfigError, RequestError, ValidationIssue, suggest

PartIssueFinder = Callable[[RawConfig], list[ValidationIssue]]
"""callable that returns the issues of the part names and options in the settings"""
MAX_VARIANTS = 1000


def read_raw_experiment(recipe_or_file: str | Path) -> RawExperiment:
    """Read a recipe or an experiment file, without validating its settings."""
    path = Path(recipe_or_file)
    if not path.is_file():
        if path.suffix == ".toml" or path.name != str(recipe_or_file):
            raise RequestError(f"{path}: no such file")
        path = find_recipe(str(recipe_or_file))
    return read_experiment_file(path)


def parse_experiment(
    recipe_or_file: str | Path,
    overrides: Sequence[str] = (),
    *,
    data_folder: Path | None = None,
    full: bool = False,
    quick: bool = False,
    only: Sequence[str] = (),
    find_part_issues: PartIssueFinder | None = None,
    import_plugins: Callable[[RawConfig, Path], None] | None = None,
) -> Experiment:
    """Read and validate an experiment file.

    Overlays are applied in the order of the arguments below.

    Args:
        recipe_or_file: Name of a recipe, or path of an experiment file.
        data_folder: Folder with the user's data. If it contains the files of `[original]`, that table is applied;
            otherwise settings that only apply to the recipe's data are removed.
        full: Apply the `[full]` table.
        only: Variants to keep; all if empty.
        quick: Reduce the experiment to a quick look.
        overrides: Settings of the form `key=value`, applied last.
        find_part_issues: Callback that returns issues of part names and options.
        import_plugins: Callback that imports custom parts before validation. Receives the settings and the file's
            folder, and may change the settings.

    Raises:
        ConfigError: If the file is invalid. The error lists every issue.
    """
    raw_experiment = read_raw_experiment(recipe_or_file)
    if data_folder is not None:
        raw_experiment = _adapt_to_data_folder(raw_experiment, data_folder)
    raw_experiment = apply_full_table(raw_experiment) if full else raw_experiment
    raw_experiment = select_variants(raw_experiment, only) if only else raw_experiment
    raw_experiment = apply_quick_mode(raw_experiment) if quick else raw_experiment
    raw_experiment = apply_overrides(drop_overlay_tables(raw_experiment), overrides)
    if import_plugins:
        import_plugins(raw_experiment.raw_config, Path(raw_experiment.source).parent)
    experiment, issues = _build_checked_experiment(raw_experiment.raw_config, raw_experiment.name, find_part_issues)
    if issues or experiment is None:
        overridden_keys = {override.partition("=")[0].strip() for override in overrides}
        issues = [_add_line_number(issue, raw_experiment.line_numbers, overridden_keys) for issue in issues]
        raise ConfigError(raw_experiment.source, issues)
    return experiment


def _adapt_to_data_folder(raw_experiment: RawExperiment, data_folder: Path) -> RawExperiment:
    """Apply the `[original]` table if the folder contains its files; otherwise adapt a recipe to the user's data."""
    original = raw_experiment.raw_config.get("original")
    original_files = original.get("files", ()) if isinstance(original, dict) else ()
    if original_files and all((data_folder / str(name)).is_file() for name in original_files):
        return apply_original_setup(raw_experiment)
    is_recipe = Path(raw_experiment.source).parent == find_recipe(list_recipes()[0]).parent
    return adapt_to_other_data(raw_experiment) if is_recipe else raw_experiment


def build_experiment(
    raw_config: RawConfig, name: str, *, find_part_issues: PartIssueFinder | None = None
) -> Experiment:
    """Validate an experiment given as a dict.

    Args:
        raw_config: Settings with the keys of an experiment file.
        name: Name of the experiment, used as a folder name.
        find_part_issues: Callback that returns issues of part names and options.

    Raises:
        ConfigError: If a setting is invalid. The error lists every issue.
    """
    experiment, issues = _build_checked_experiment(raw_config, name, find_part_issues)
    if issues or experiment is None:
        raise ConfigError(name, issues)
    return experiment


def read_report_texts(path: Path) -> tuple[ReportText, ...]:
    """Return the `[[text]]` blocks of an experiment file; raise `ConfigError` if they are invalid."""
    raw_experiment = read_raw_experiment(path)
    try:
        return TypeAdapter(tuple[ReportText, ...]).validate_python(tuple(raw_experiment.raw_config.get("text", ())))
    except ValidationError as error:
        issues = [convert_pydantic_error({**details, "loc": ("text", *details["loc"])}) for details in error.errors()]
        issues = [_add_line_number(issue, raw_experiment.line_numbers, set()) for issue in issues]
        raise ConfigError(str(path), issues) from None


def _build_checked_experiment(
    raw: RawConfig, name: str, find_part_issues: PartIssueFinder | None
) -> tuple[Experiment | None, list[ValidationIssue]]:
    """Return the experiment (None if it is invalid) and the issues of the file, its variants and its search."""
    raw = _fill_name_and_metric(raw, name)
    if issues := find_unsupported_values(raw):
        return None, issues
    experiment, issues = _validate_experiment(raw)
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
    """Return a copy with the experiment's name and the default metric of its task."""
    raw = {"name": name, **copy.deepcopy(raw)}
    primary = raw.setdefault("primary", {})
    if isinstance(primary, dict) and raw.get("task") in TASK_SPECS:
        primary.setdefault("metric", TASK_SPECS[raw["task"]].metric)
    return raw


def _check_variant(variant: str, changes: Any, check_changes: ChangeCheck) -> list[ValidationIssue]:
    """Return the issues of one variant; their locations start with `variants.NAME`."""
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
    issues = _validate_experiment(merged_config)[1] + (find_part_issues(merged_config) if find_part_issues else [])
    return [
        issue
        for issue in issues
        if any(issue.location.startswith(key) or key.startswith(issue.location) for key in changed_keys)
        or issue.location in VARIANT_TABLES
    ]


def _validate_experiment(raw: RawConfig) -> tuple[Experiment | None, list[ValidationIssue]]:
    """Return the experiment (None if it is invalid) and its issues, at most one per location."""
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
    return experiment, check_experiment(experiment)


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
        issues = check_experiment(Experiment.model_validate(remaining))
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


def _add_line_number(
    issue: ValidationIssue, line_numbers: Mapping[str, int], overridden_keys: set[str]
) -> ValidationIssue:
    """Return the issue with its line in the experiment file, or with the `--set` option that caused it."""
    keys = issue.location.split(".")
    for end in range(len(keys), 0, -1):
        key = ".".join(keys[:end])
        if key in overridden_keys:
            return replace(issue, location=f"--set {issue.location}")
        if key in line_numbers:
            return replace(issue, location=f"{issue.location} (line {line_numbers[key]})")
    return issue
