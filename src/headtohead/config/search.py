"""The [search] table: the settings to search, the method and the budget.

A point is one value for each searched setting, trained with several seeds. Its settings are validated and applied like
those of a variant.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, ValidationError, field_validator, model_validator

from headtohead.config.base import BaseConfig, Count, SmallCount
from headtohead.config.data import DataConfig
from headtohead.config.model import TransformerConfig
from headtohead.config.overlays import VARIANT_TABLES, RawConfig
from headtohead.config.training import TrainingConfig
from headtohead.errors import ValidationIssue

WINNER_VARIANT = "winner"
SEARCH_FOLDER = "search"
"""subfolder of the experiment that holds the runs of the search"""
FIRST_SEARCH_SEED = 1_000
"""first seed of a search; comparisons start at 0, so the winner is judged on fresh seeds"""
MAX_SEARCH_POINTS = 10_000
MAX_VALUES_PER_SETTING, MAX_SETTINGS = 1_000, 50
MAX_CHECKED_COMBINATIONS = 2_000
"""combinations that are validated before training starts"""
MAX_SHOWN_COMBINATIONS = 5
"""invalid combinations that are listed"""
SEARCHABLE_DATA_SETTINGS = ("data.word_dropout", "data.rare_words")
"""data settings that a search may change; others would change the validation set and make scores incomparable"""

SettingValues = dict[str, Any]
"""dotted name = value"""


class NumericRange(BaseConfig):
    """A range of numbers, ends included. If both ends and the step are integers, so are the values."""

    low: int | float
    """smallest value"""
    high: int | float
    """largest value"""
    log: bool = False
    """sample uniformly on a logarithmic scale, as is usual for learning rates"""
    step: int | float | None = None
    """restrict the values to low, low + step, low + 2 * step, ..."""

    @model_validator(mode="after")
    def _check_bounds(self) -> NumericRange:
        """Raise ValueError for an empty range or for log and step together."""
        if not self.low < self.high:
            raise ValueError(f"low must be below high, and {self.low} is not below {self.high}")
        if self.log and self.low <= 0:
            raise ValueError(f"log needs a low end above 0, not {self.low}")
        if self.log and self.step is not None:
            raise ValueError("log and step exclude each other")
        if self.step is not None and self.step <= 0:
            raise ValueError(f"step must be above 0, not {self.step}")
        return self

    @property
    def is_integer(self) -> bool:
        """True if the range contains integers only."""
        return all(isinstance(number, int) for number in (self.low, self.high, self.step or 1))

    def steps(self) -> tuple[int | float, ...]:
        """Return the values of a range with a step, or () if there are too many. Floats are rounded to 12 digits."""
        assert self.step is not None
        last_index = (self.high - self.low) / self.step + 1e-9
        if last_index >= MAX_SEARCH_POINTS:
            return ()
        count = math.floor(last_index) + 1
        values = [self.low + index * self.step for index in range(count)]
        return tuple(values if self.is_integer else (float(f"{value:.12g}") for value in values))


def _get_dimension_tag(value: Any) -> str:
    return "range" if isinstance(value, dict | NumericRange) else "values"


ValueList = Annotated[tuple[Any, ...], Field(min_length=1)]
SearchDimension = Annotated[
    Annotated[NumericRange, Tag("range")] | Annotated[ValueList, Tag("values")], Discriminator(_get_dimension_tag)
]


class SearchBudget(BaseConfig):
    """The limits of a search. It ends when the first of them is reached."""

    trials: Count | None = None
    """maximum number of trials"""
    minutes: Annotated[float, Field(gt=0)] | None = None
    """time limit of the search, without the comparison of its winner"""

    @model_validator(mode="after")
    def _check_has_limit(self) -> SearchBudget:
        if self.trials is None and self.minutes is None:
            raise ValueError("give trials, minutes, or both")
        return self

    @field_validator("minutes", mode="before")
    @classmethod
    def _convert_minutes_to_float(cls, value: Any) -> Any:
        return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


class PruningConfig(BaseConfig):
    """When to stop giving seeds to a point that is clearly worse than the best."""

    risk: Annotated[float, Field(gt=0, le=0.5)] = 0.05
    """maximum probability of pruning the best point"""
    min_seeds: SmallCount = 1
    """seeds that every point gets before it can be pruned"""


class SearchConfig(BaseConfig):
    """The search. Its best point is then compared with the baseline on seeds that the search did not use."""

    method: Literal["grid", "random", "tpe"] = "grid"
    """grid: every combination; random: random points; tpe: optuna's Parzen estimator (Bergstra et al. 2011)"""
    space: dict[str, SearchDimension] = Field(min_length=1)
    """setting = [values], or { low, high, log } or { low, high, step }"""
    seeds: SmallCount = 2
    """seeds per point"""
    budget: SearchBudget | None = None
    """{ trials = 40 } or { minutes = 30 }; optional for a grid"""
    prune: PruningConfig | None = None
    """true, or { risk = 0.05, min_seeds = 1 }: stop points that are clearly worse than the best"""
    seed: int = 0
    """seed of random and tpe sampling, and of the order of grid points"""

    @model_validator(mode="before")
    @classmethod
    def _expand_shorthand(cls, value: Any) -> Any:
        """Expand `prune = true` and flatten nested tables of the search space."""
        if not isinstance(value, dict):
            return value
        value = dict(value)
        if isinstance(value.get("prune"), bool):
            value["prune"] = {} if value["prune"] else None
        if isinstance(value.get("space"), dict):
            value["space"] = dict(_flatten_space(value["space"]))
        return value

    def values(self, setting: str) -> tuple[Any, ...] | None:
        """Return the possible values of a setting, or None for a continuous range."""
        dimension = self.space[setting]
        if isinstance(dimension, NumericRange):
            return dimension.steps() if dimension.step is not None else None
        return dimension

    def count_points(self) -> int | None:
        """Return the number of points in the space, or None if it is infinite."""
        counts = [len(values) for setting in self.space if (values := self.values(setting)) is not None]
        return math.prod(counts) if len(counts) == len(self.space) else None

    def compute_planned_counts(self) -> tuple[int | None, int | None]:
        """Return the planned number of points and trials without pruning; None if only time limits them."""
        num_grid_points = self.count_points() if self.method == "grid" else None
        num_affordable_points = self.budget.trials // self.seeds if self.budget and self.budget.trials else None
        limits = [limit for limit in (num_grid_points, num_affordable_points) if limit is not None]
        return (min(limits), min(limits) * self.seeds) if limits else (None, None)

    def iter_corner_points(self) -> Iterator[SettingValues]:
        """Yield every combination of listed values and of the ends of ranges."""
        value_lists = []
        for setting, dimension in self.space.items():
            ends = (dimension.low, dimension.high) if isinstance(dimension, NumericRange) else dimension
            value_lists.append(ends if self.method != "grid" else self.values(setting) or ends)
        for values in itertools.product(*value_lists):
            yield dict(zip(self.space, values, strict=True))


def _flatten_space(space: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted names with their values. TOML parses `training.batch_size = [8, 16]` as nested tables."""
    for key, value in space.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and not value.keys() & {"low", "high", "log", "step"}:
            yield from _flatten_space(value, f"{name}.")
        else:
            yield name, tuple(value) if isinstance(value, list) else value


def build_variant_changes(raw_config: RawConfig, settings: SettingValues) -> RawConfig:
    """Return the settings of a point as the changes of a variant.

    A dotted name inside a component, such as training.optimizer.lr, changes that option and keeps the others.
    """
    changes: RawConfig = {}
    for setting in sorted(settings, key=lambda name: name.count(".")):
        table, key, *option_path = setting.split(".")
        table_changes = changes.setdefault(table, {})
        if not option_path:
            table_changes[key] = copy.deepcopy(settings[setting])
            continue
        current_value = table_changes[key] if key in table_changes else _get_current_value(raw_config, table, key)
        table_changes[key] = _set_nested_option(current_value, option_path, settings[setting])
    return {table: _convert_tuples_to_lists(option_path) for table, option_path in changes.items()}


def _get_current_value(raw: RawConfig, table: str, key: str) -> Any:
    """Return the file's value of a setting, or its default."""
    settings = raw.get(table)
    if isinstance(settings, dict) and key in settings:
        return settings[key]
    defaults: dict[str, BaseConfig] = {"data": DataConfig(), "model": TransformerConfig(), "training": TrainingConfig()}
    return defaults[table].model_dump(mode="json").get(key) if table in defaults else None


def _set_nested_option(current_value: Any, option_path: list[str], value: Any) -> Any:
    """Return a copy of a searched setting's value with the option at `option_path` set to `value`."""
    if isinstance(current_value, list | tuple) and len(current_value) == 1:
        (current_value,) = current_value
    if isinstance(current_value, str):
        current_value = {"kind": current_value}
    options = copy.deepcopy(current_value) if isinstance(current_value, dict) else {}
    name, *remaining_path = option_path
    options[name] = (
        _set_nested_option(options.get(name), remaining_path, value) if remaining_path else copy.deepcopy(value)
    )
    return options


def _convert_tuples_to_lists(value: Any) -> Any:
    """Convert tuples to lists recursively, as in TOML and JSON."""
    if isinstance(value, dict):
        return {key: _convert_tuples_to_lists(item) for key, item in value.items()}
    return [_convert_tuples_to_lists(item) for item in value] if isinstance(value, list | tuple) else value


ChangeCheck = Callable[[RawConfig], list[ValidationIssue]]
"""returns the issues of a variant with these changes; places begin with the table"""


def check_search(raw_config: RawConfig, check_changes: ChangeCheck) -> list[ValidationIssue]:
    """Return the issues of the [search] table that can be detected before training.

    `check_changes` validates a point as if it were a variant.
    """
    try:
        search = SearchConfig.model_validate(raw_config.get("search"))
    except ValidationError:
        return []  # reported when the table itself is validated
    issues = [*_check_structure(raw_config, search), *_check_settings(search)]
    if not issues:
        issues = _check_values(raw_config, search, check_changes) or _check_combinations(
            raw_config, search, check_changes
        )
    return list({(issue.location, issue.message): issue for issue in issues}.values())


def _check_structure(raw: RawConfig, search: SearchConfig) -> Iterator[ValidationIssue]:
    """Yield issues of the budget, the number of points, the validation data and reserved names."""
    if search.method != "grid" and search.budget is None:
        message = f"{search.method} search needs a budget, as in budget = {{ trials = 40 }} or {{ minutes = 30 }}"
        yield ValidationIssue("search.budget", message)
    if search.budget and search.budget.trials and search.budget.trials < search.seeds:
        message = f"{search.budget.trials} trials are fewer than one point of {search.seeds} seeds"
        yield ValidationIssue("search.budget.trials", message)
    if search.method == "grid" and (search.count_points() or 0) > MAX_SEARCH_POINTS:
        yield ValidationIssue(
            "search.space",
            f"has {search.count_points():,} points; a grid can have {MAX_SEARCH_POINTS:,}, random any number",
        )
    data, variants, seeds = raw.get("data"), raw.get("variants"), raw.get("seeds")
    if isinstance(data, dict) and data.get("validation_fraction") == 0 and not _has_validation_file(data):
        yield ValidationIssue("search", "needs validation data to select the winner, and data.validation_fraction is 0")
    for name in (WINNER_VARIANT, SEARCH_FOLDER):
        if isinstance(variants, dict) and name in variants:
            yield ValidationIssue(f"variants.{name}", "is reserved for the search; choose another name")
    if isinstance(seeds, int) and seeds > FIRST_SEARCH_SEED:
        yield ValidationIssue("seeds", f"beside a search there can be {FIRST_SEARCH_SEED:,}, not {seeds:,}")


def _has_validation_file(data: RawConfig) -> bool:
    files = data.get("files")
    return isinstance(files, dict) and files.get("validation") is not None


def _check_settings(search: SearchConfig) -> Iterator[ValidationIssue]:
    """Yield issues of the searched settings and the form of their values."""
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
            message = "scores on other validation data cannot be compared; use variants instead"
            yield ValidationIssue(location, message, SEARCHABLE_DATA_SETTINGS)
        elif setting == "model.module":
            yield ValidationIssue(location, "custom networks cannot be searched; compare them as variants")
        if isinstance(dimension, NumericRange) and dimension.step is None and search.method == "grid":
            yield ValidationIssue(location, "a grid needs a list of values, or a range with a step", ("list", "step"))
        elif isinstance(dimension, NumericRange) and dimension.step is not None and not dimension.steps():
            yield ValidationIssue(location, f"has more than {MAX_SEARCH_POINTS:,} steps")
        elif not isinstance(dimension, NumericRange) and len(dimension) > MAX_VALUES_PER_SETTING:
            yield ValidationIssue(
                location,
                f"lists {len(dimension):,} values; up to {MAX_VALUES_PER_SETTING:,} can be listed, "
                "a range has any number",
            )
        elif not isinstance(dimension, NumericRange) and len({repr(value) for value in dimension}) < len(dimension):
            yield ValidationIssue(location, "lists the same value twice")


def _check_values(raw: RawConfig, search: SearchConfig, check_changes: ChangeCheck) -> list[ValidationIssue]:
    """Return the issues of each value on its own."""
    issues = []
    for setting, dimension in search.space.items():
        for value in (dimension.low, dimension.high) if isinstance(dimension, NumericRange) else dimension:
            for issue in check_changes(build_variant_changes(raw, {setting: value})):
                # A value that conflicts only with the baseline may be valid together with other searched settings.
                if issue.location not in VARIANT_TABLES or not _has_sibling_settings(search, setting):
                    location = f"search.space.{setting}"
                    issues.append(
                        ValidationIssue(location, _format_issue(issue, setting), issue.allowed, issue.suggestion)
                    )
    return issues


def _has_sibling_settings(search: SearchConfig, setting: str) -> bool:
    """Return True if the search also changes other settings of the same table."""
    table = setting.partition(".")[0]
    return any(other != setting and other.startswith(f"{table}.") for other in search.space)


def _format_issue(issue: ValidationIssue, setting: str) -> str:
    """Return the message of an issue, prefixed with the option inside `setting` that it is about."""
    option = issue.location.removeprefix(setting).strip(".")
    return f"{option}: {issue.message}" if option and issue.location.startswith(setting) else issue.message


def _check_combinations(raw: RawConfig, search: SearchConfig, check_changes: ChangeCheck) -> list[ValidationIssue]:
    """Return the issues of values that are valid on their own but not together."""
    issues = []
    for point in itertools.islice(search.iter_corner_points(), MAX_CHECKED_COMBINATIONS):
        for issue in check_changes(build_variant_changes(raw, point))[:1]:
            text = ", ".join(f"{setting} = {value!r}" for setting, value in point.items())
            issues.append(
                ValidationIssue("search.space", f"the point with {text} is impossible: {issue.message}", issue.allowed)
            )
    if len(issues) > MAX_SHOWN_COMBINATIONS:
        num_hidden = len(issues) - MAX_SHOWN_COMBINATIONS
        issues = [
            *issues[:MAX_SHOWN_COMBINATIONS],
            ValidationIssue("search.space", f"and {num_hidden:,} more impossible points"),
        ]
    return issues
