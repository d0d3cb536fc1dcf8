"""Checks of the [search] and [tune] tables that can be performed before training."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import replace

from pydantic import ValidationError

from headtohead.config.budget import STEP_UNITS
from headtohead.config.overlays import VARIANT_TABLES, RawConfig, apply_variant, flatten_settings
from headtohead.config.tables.search import (
    FIRST_SEARCH_SEED,
    MAX_CHECKED_COMBINATIONS,
    MAX_SEARCH_POINTS,
    MAX_SETTINGS,
    MAX_SHOWN_COMBINATIONS,
    MAX_VALUES_PER_SETTING,
    SEARCH_FOLDER,
    SEARCHABLE_DATA_SETTINGS,
    TUNING_FOLDER,
    WINNER_VARIANT,
    NumericRange,
    SearchConfig,
    TuneConfig,
)
from headtohead.config.variant_changes import ChangeCheck, build_variant_changes
from headtohead.errors import ValidationIssue


def check_search(raw_config: RawConfig, check_changes: ChangeCheck) -> list[ValidationIssue]:
    """Return the issues of the [search] table that can be detected before training.

    Args:
        raw_config: Settings of the experiment file.
        check_changes: Callback that validates a point as if it were a variant.
    """
    try:
        search = SearchConfig.model_validate(raw_config.get("search"))
    except ValidationError:
        return []  # reported when the table itself is validated
    return _check_search_table(raw_config, search, check_changes)


def check_tuning(raw_config: RawConfig, check_changes: ChangeCheck) -> list[ValidationIssue]:
    """Return the issues of the [tune] table."""
    try:
        tune = TuneConfig.model_validate(raw_config.get("tune"))
    except ValidationError:
        return []  # reported when the table itself is validated
    issues = [
        replace(issue, location=re.sub("^search", "tune", issue.location))
        for issue in _check_search_table(raw_config, tune, check_changes)
    ]
    if raw_config.get("search") is not None:
        issues.append(ValidationIssue("tune", "cannot be combined with [search]; give the settings to search here"))
    return issues + list(_check_tuned_variants(raw_config, tune))


def _check_tuned_variants(raw: RawConfig, tune: TuneConfig) -> Iterator[ValidationIssue]:
    """Yield an issue for every variant that would equal the baseline or an earlier variant after tuning."""
    settings_by_name = {"the baseline": raw} | {
        f"variant {name}": apply_variant(raw, changes)
        for name, changes in (raw.get("variants") or {}).items()
        if isinstance(changes, dict)
    }
    names_by_settings: dict[str, str] = {}
    for name, settings in settings_by_name.items():
        tables = {
            table: settings.get(table, {}) for table in VARIANT_TABLES if isinstance(settings.get(table, {}), dict)
        }
        values = {setting: tune.get_first_value(setting) for setting in tune.space}
        key = repr(sorted(flatten_settings(apply_variant(tables, build_variant_changes(tables, values))).items()))
        if key in names_by_settings:
            message = (
                f"{name} differs from {names_by_settings[key]} only in tuned settings, so both are the same once tuned"
            )
            yield ValidationIssue("tune", message)
        names_by_settings.setdefault(key, name)


def _check_search_table(
    raw_config: RawConfig, search: SearchConfig, check_changes: ChangeCheck
) -> list[ValidationIssue]:
    """Return the issues of a search or tuning table, with locations in [search]."""
    issues = [*_check_search_structure(raw_config, search), *_check_searched_settings(search)]
    if not issues:
        issues = _check_searched_values(raw_config, search, check_changes) or _check_combinations(
            raw_config, search, check_changes
        )
    return list({(issue.location, issue.message): issue for issue in issues}.values())


def _check_search_structure(raw: RawConfig, search: SearchConfig) -> Iterator[ValidationIssue]:
    """Yield issues of the search budget, the number of points, the validation data and reserved names."""
    if search.method != "grid" and search.budget is None:
        message = f'{search.method} search needs a budget, as in budget = "40 trials" or "30 minutes"'
        yield ValidationIssue("search.budget", message)
    if search.max_trials is not None and search.max_trials < search.seeds:
        message = f"{search.budget} are fewer than one point of {search.seeds} seeds"
        yield ValidationIssue("search.budget", message)
    if search.method == "grid" and (search.count_points() or 0) > MAX_SEARCH_POINTS:
        yield ValidationIssue(
            "search.space",
            f"has {search.count_points():,} points; a grid can have {MAX_SEARCH_POINTS:,}, random any number",
        )
    data, variants, seeds = raw.get("data"), raw.get("variants"), raw.get("seeds")
    if isinstance(data, dict) and data.get("validation_fraction") == 0 and not _has_validation_file(data):
        yield ValidationIssue("search", "needs validation data to select the winner, and data.validation_fraction is 0")
    for name in (WINNER_VARIANT, SEARCH_FOLDER, TUNING_FOLDER):
        if isinstance(variants, dict) and name in variants:
            yield ValidationIssue(f"variants.{name}", "is reserved for the search; choose another name")
    if isinstance(seeds, int) and seeds > FIRST_SEARCH_SEED:
        yield ValidationIssue("seeds", f"must be at most {FIRST_SEARCH_SEED:,} with a search, got {seeds:,}")


def _has_validation_file(data: RawConfig) -> bool:
    files = data.get("files")
    return isinstance(files, dict) and files.get("validation") is not None


def _check_searched_settings(search: SearchConfig) -> Iterator[ValidationIssue]:
    """Yield issues of the searched settings and the format of their values."""
    if len(search.space) > MAX_SETTINGS:
        yield ValidationIssue("search.space", f"names {len(search.space):,} settings; a search can have {MAX_SETTINGS}")
        return
    for setting, dimension in search.space.items():
        location = f"search.space.{setting}"
        table, _, key = setting.partition(".")
        if table not in VARIANT_TABLES or not key:
            yield ValidationIssue(
                location, "a search changes settings of data, model or training, as training.batch_size", VARIANT_TABLES
            )
        elif table == "data" and not setting.startswith(SEARCHABLE_DATA_SETTINGS):
            message = "scores on different validation data cannot be compared; use variants instead"
            yield ValidationIssue(location, message, SEARCHABLE_DATA_SETTINGS)
        elif setting == "training.budget" and any(
            isinstance(value, str) and not value.endswith(("step", "steps", "epoch", "epochs"))
            for value in (dimension if isinstance(dimension, tuple) else ())
        ):
            yield ValidationIssue(location, "a search compares budgets in steps or epochs", STEP_UNITS)
        elif setting == "model.module":
            yield ValidationIssue(location, "custom networks cannot be searched; compare them as variants")
        if isinstance(dimension, NumericRange) and dimension.step is None and search.method == "grid":
            yield ValidationIssue(location, "a grid needs a list of values, or a range with a step", ("list", "step"))
        elif isinstance(dimension, NumericRange) and dimension.step is not None and not dimension.list_values():
            yield ValidationIssue(location, f"has more than {MAX_SEARCH_POINTS:,} steps")
        elif not isinstance(dimension, NumericRange) and len(dimension) > MAX_VALUES_PER_SETTING:
            yield ValidationIssue(
                location,
                f"lists {len(dimension):,} values; up to {MAX_VALUES_PER_SETTING:,} can be listed, "
                "a range has any number",
            )
        elif not isinstance(dimension, NumericRange) and len({repr(value) for value in dimension}) < len(dimension):
            yield ValidationIssue(location, "lists the same value twice")


def _check_searched_values(raw: RawConfig, search: SearchConfig, check_changes: ChangeCheck) -> list[ValidationIssue]:
    """Return the issues of each searched value on its own."""
    issues = []
    for setting, dimension in search.space.items():
        for value in (dimension.low, dimension.high) if isinstance(dimension, NumericRange) else dimension:
            for issue in check_changes(build_variant_changes(raw, {setting: value})):
                # A value that conflicts only with the baseline may be valid together with other searched settings.
                if issue.location not in VARIANT_TABLES or not _has_sibling_settings(search, setting):
                    location = f"search.space.{setting}"
                    issues.append(
                        ValidationIssue(
                            location, _format_issue_message(issue, setting), issue.allowed, issue.suggestion
                        )
                    )
    return issues


def _has_sibling_settings(search: SearchConfig, setting: str) -> bool:
    """Return True if the search also changes other settings of the same table."""
    table = setting.partition(".")[0]
    return any(searched != setting and searched.startswith(f"{table}.") for searched in search.space)


def _format_issue_message(issue: ValidationIssue, setting: str) -> str:
    """Return the message of an issue, prefixed with the option of `setting` that it refers to."""
    option = issue.location.removeprefix(setting).strip(".")
    return f"{option}: {issue.message}" if option and issue.location.startswith(setting) else issue.message


def _check_combinations(raw: RawConfig, search: SearchConfig, check_changes: ChangeCheck) -> list[ValidationIssue]:
    """Return the issues of searched values that are valid on their own but not together."""
    issues = []
    for point in itertools.islice(search.iter_corner_points(), MAX_CHECKED_COMBINATIONS):
        for issue in check_changes(build_variant_changes(raw, point))[:1]:
            point_text = ", ".join(f"{setting} = {value!r}" for setting, value in point.items())
            issues.append(
                ValidationIssue(
                    "search.space", f"the point with {point_text} is impossible: {issue.message}", issue.allowed
                )
            )
    if len(issues) > MAX_SHOWN_COMBINATIONS:
        num_hidden = len(issues) - MAX_SHOWN_COMBINATIONS
        issues = [
            *issues[:MAX_SHOWN_COMBINATIONS],
            ValidationIssue("search.space", f"and {num_hidden:,} more impossible points"),
        ]
    return issues
