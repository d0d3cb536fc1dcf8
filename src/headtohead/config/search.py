"""The [search] table: which settings are tried, how, and how long.

A point is one choice of values, trained with several seeds. It is written like the changes of a variant, and
checked and applied by the same rules.
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
"""where the search's own runs lie, inside the experiment's folder"""
FIRST_SEARCH_SEED = 1_000
"""the seeds of a search begin here, those of a comparison at 0: the winner is judged by seeds that are new to it"""
MAX_SEARCH_POINTS = 10_000
MAX_VALUES_PER_SETTING, MAX_SETTINGS = 1_000, 50
MAX_CHECKED_COMBINATIONS = 2_000
"""so many combinations are checked before anything is trained"""
MAX_SHOWN_COMBINATIONS = 5
"""impossible combinations that are shown"""
SEARCHABLE_DATA_SETTINGS = ("data.word_dropout", "data.rare_words")
"""what a search may change of the data: validation figures on other rows or tokens could not be compared"""

SettingValues = dict[str, Any]
"""dotted name = value"""


class NumericRange(BaseConfig):
    """Numbers between two ends, both included. Whole ends give whole numbers."""

    low: int | float
    high: int | float
    log: bool = False
    """drawn evenly by size of magnitude, as rates are"""
    step: int | float | None = None
    """only low, low + step, low + 2 step and so on"""

    @model_validator(mode="after")
    def _check_bounds(self) -> NumericRange:
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
        return all(isinstance(number, int) for number in (self.low, self.high, self.step or 1))

    def steps(self) -> tuple[int | float, ...]:
        """Every value of a range with a step. Nobody wants to read 0.30000000000000004."""
        assert self.step is not None
        most = (self.high - self.low) / self.step + 1e-9
        if most >= MAX_SEARCH_POINTS:
            return ()
        count = math.floor(most) + 1
        made = [self.low + at * self.step for at in range(count)]
        return tuple(made if self.is_integer else (float(f"{one:.12g}") for one in made))


def _get_dimension_tag(value: Any) -> str:
    return "range" if isinstance(value, dict | NumericRange) else "values"


ValueList = Annotated[tuple[Any, ...], Field(min_length=1)]
SearchDimension = Annotated[
    Annotated[NumericRange, Tag("range")] | Annotated[ValueList, Tag("values")], Discriminator(_get_dimension_tag)
]


class SearchBudget(BaseConfig):
    """When a search ends. Of two limits the first that is reached counts."""

    trials: Count | None = None
    minutes: Annotated[float, Field(gt=0)] | None = None
    """of the search; the comparison of its winner comes on top"""

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
    """A point that is certainly behind gets no more seeds."""

    risk: Annotated[float, Field(gt=0, le=0.5)] = 0.05
    """how often, at most, the truly best point may be lost that way"""
    after: SmallCount = 1
    """seeds that every point gets"""


class SearchConfig(BaseConfig):
    """What is searched. The winner is then compared with the file's baseline, on seeds that the search never used."""

    method: Literal["grid", "random", "tpe"] = "grid"
    """grid: every combination; random: drawn; tpe: drawn where it went well so far (Bergstra et al. 2011; optuna)"""
    space: dict[str, SearchDimension] = Field(min_length=1)
    """setting = [values], or { low, high, log } or { low, high, step }"""
    seeds: SmallCount = 2
    """for each point"""
    budget: SearchBudget | None = None
    """{ trials = 40 } or { minutes = 30 }; a grid needs none"""
    prune: PruningConfig | None = None
    """true, or { risk = 0.05, after = 1 }: points that are certainly behind get no more seeds"""
    seed: int = 0
    """what random and tpe draw by, and the order in which a grid is walked"""

    @model_validator(mode="before")
    @classmethod
    def _expand_shorthand(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        value = dict(value)
        if isinstance(value.get("prune"), bool):
            value["prune"] = {} if value["prune"] else None
        if isinstance(value.get("space"), dict):
            value["space"] = dict(_flatten_space(value["space"]))
        return value

    @property
    def needs_optuna(self) -> bool:
        return self.method == "tpe"

    def values(self, setting: str) -> tuple[Any, ...] | None:
        """The values that the setting can take, where they can be listed."""
        axis = self.space[setting]
        if isinstance(axis, NumericRange):
            return axis.steps() if axis.step is not None else None
        return axis

    def count_points(self) -> int | None:
        """How many points there are, where they can be counted."""
        counts = [len(listed) for setting in self.space if (listed := self.values(setting)) is not None]
        return math.prod(counts) if len(counts) == len(self.space) else None

    def compute_planned_counts(self) -> tuple[int | None, int | None]:
        """Cells and trials that the search will train, where nothing is pruned; None where the clock decides."""
        most = self.count_points() if self.method == "grid" else None
        allowed = self.budget.trials // self.seeds if self.budget and self.budget.trials else None
        known = [one for one in (most, allowed) if one is not None]
        return (min(known), min(known) * self.seeds) if known else (None, None)

    def iter_corner_points(self) -> Iterator[SettingValues]:
        """Every combination of listed values and of the ends of ranges."""
        listed = []
        for setting, axis in self.space.items():
            ends = (axis.low, axis.high) if isinstance(axis, NumericRange) else axis
            listed.append(ends if self.method != "grid" else self.values(setting) or ends)
        for chosen in itertools.product(*listed):
            yield dict(zip(self.space, chosen, strict=True))


def _flatten_space(space: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """training.batch_size = [8, 16] is a table in a table to TOML; here it is one dotted name."""
    for key, value in space.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and not value.keys() & {"low", "high", "log", "step"}:
            yield from _flatten_space(value, f"{name}.")
        else:
            yield name, tuple(value) if isinstance(value, list) else value


def build_variant_changes(raw_config: RawConfig, settings: SettingValues) -> RawConfig:
    """The settings of a point as a variant's changes. A name inside a part, as training.optimizer.lr, changes that
    option and keeps the others."""
    changes: RawConfig = {}
    for setting in sorted(settings, key=lambda name: name.count(".")):
        table, key, *inside = setting.split(".")
        into = changes.setdefault(table, {})
        if not inside:
            into[key] = copy.deepcopy(settings[setting])
            continue
        before = into[key] if key in into else _get_current_value(raw_config, table, key)
        into[key] = _set_nested_option(before, inside, settings[setting])
    return {table: _convert_tuples_to_lists(inside) for table, inside in changes.items()}


def _get_current_value(raw: RawConfig, table: str, key: str) -> Any:
    """What the file says, or what holds where it says nothing."""
    given = raw.get(table)
    if isinstance(given, dict) and key in given:
        return given[key]
    defaults: dict[str, BaseConfig] = {"data": DataConfig(), "model": TransformerConfig(), "training": TrainingConfig()}
    return defaults[table].model_dump(mode="json").get(key) if table in defaults else None


def _set_nested_option(current_value: Any, option_path: list[str], value: Any) -> Any:
    if isinstance(current_value, list | tuple) and len(current_value) == 1:
        (current_value,) = current_value
    if isinstance(current_value, str):
        current_value = {"kind": current_value}
    made = copy.deepcopy(current_value) if isinstance(current_value, dict) else {}
    name, *deeper = option_path
    made[name] = _set_nested_option(made.get(name), deeper, value) if deeper else copy.deepcopy(value)
    return made


def _convert_tuples_to_lists(value: Any) -> Any:
    """As TOML and JSON have it: lists, no tuples."""
    if isinstance(value, dict):
        return {key: _convert_tuples_to_lists(one) for key, one in value.items()}
    return [_convert_tuples_to_lists(one) for one in value] if isinstance(value, list | tuple) else value


ChangeCheck = Callable[[RawConfig], list[ValidationIssue]]
"""what is wrong with a variant that makes these changes; places begin at the table"""


def check_search(raw_config: RawConfig, check_changes: ChangeCheck) -> list[ValidationIssue]:
    """Everything that is wrong with the search of this file, as far as it can be known before anything is trained."""
    try:
        search = SearchConfig.model_validate(raw_config.get("search"))
    except ValidationError:
        return []  # the tables have said so
    faults = [*_check_structure(raw_config, search), *_check_settings(search)]
    if not faults:
        faults = _check_values(raw_config, search, check_changes) or _check_combinations(
            raw_config, search, check_changes
        )
    return list({(fault.place, fault.message): fault for fault in faults}.values())


def _check_structure(raw: RawConfig, search: SearchConfig) -> Iterator[ValidationIssue]:
    if search.method != "grid" and search.budget is None:
        message = f"{search.method} goes on until it is told to end: budget = {{ trials = 40 }} or {{ minutes = 30 }}"
        yield ValidationIssue("search.budget", message)
    if search.budget and search.budget.trials and search.budget.trials < search.seeds:
        message = f"{search.budget.trials} trials are not even one point of {search.seeds} seeds"
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
            yield ValidationIssue(f"variants.{name}", "is a name that the search needs; give the change another one")
    if isinstance(seeds, int) and seeds > FIRST_SEARCH_SEED:
        yield ValidationIssue("seeds", f"beside a search there can be {FIRST_SEARCH_SEED:,}, not {seeds:,}")


def _has_validation_file(data: RawConfig) -> bool:
    files = data.get("files")
    return isinstance(files, dict) and files.get("validation") is not None


def _check_settings(search: SearchConfig) -> Iterator[ValidationIssue]:
    if len(search.space) > MAX_SETTINGS:
        yield ValidationIssue("search.space", f"names {len(search.space):,} settings; a search can have {MAX_SETTINGS}")
        return
    for setting, axis in search.space.items():
        place = f"search.space.{setting}"
        table, _, key = setting.partition(".")
        if table not in VARIANT_TABLES or not key:
            yield ValidationIssue(
                place, "a search changes settings of data, model or training, as training.batch_size", VARIANT_TABLES
            )
        elif table == "data" and not setting.startswith(SEARCHABLE_DATA_SETTINGS):
            message = "on other data the validation figures of points could not be compared; use variants for that"
            yield ValidationIssue(place, message, SEARCHABLE_DATA_SETTINGS)
        elif setting == "model.module":
            yield ValidationIssue(place, "networks of your own are compared as variants, and not searched")
        if isinstance(axis, NumericRange) and axis.step is None and search.method == "grid":
            yield ValidationIssue(place, "a grid needs a list of values, or a range with a step", ("list", "step"))
        elif isinstance(axis, NumericRange) and axis.step is not None and not axis.steps():
            yield ValidationIssue(place, f"has more than {MAX_SEARCH_POINTS:,} steps")
        elif not isinstance(axis, NumericRange) and len(axis) > MAX_VALUES_PER_SETTING:
            yield ValidationIssue(
                place,
                f"lists {len(axis):,} values; up to {MAX_VALUES_PER_SETTING:,} can be listed, a range has any number",
            )
        elif not isinstance(axis, NumericRange) and len({repr(one) for one in axis}) < len(axis):
            yield ValidationIssue(place, "names the same value twice")


def _check_values(raw: RawConfig, search: SearchConfig, check_changes: ChangeCheck) -> list[ValidationIssue]:
    """Each value by itself, laid over the file."""
    faults = []
    for setting, axis in search.space.items():
        for value in (axis.low, axis.high) if isinstance(axis, NumericRange) else axis:
            for fault in check_changes(build_variant_changes(raw, {setting: value})):
                # What is impossible only beside the file's other settings may be possible beside another point's.
                if fault.place not in VARIANT_TABLES or not _has_sibling_settings(search, setting):
                    place = f"search.space.{setting}"
                    faults.append(
                        ValidationIssue(place, _format_issue(fault, setting), fault.allowed, fault.suggestion)
                    )
    return faults


def _has_sibling_settings(search: SearchConfig, setting: str) -> bool:
    """Does the search also change other settings of the same table?"""
    table = setting.partition(".")[0]
    return any(other != setting and other.startswith(f"{table}.") for other in search.space)


def _format_issue(fault: ValidationIssue, setting: str) -> str:
    inside = fault.place.removeprefix(setting).strip(".")
    return f"{inside}: {fault.message}" if inside and fault.place.startswith(setting) else fault.message


def _check_combinations(raw: RawConfig, search: SearchConfig, check_changes: ChangeCheck) -> list[ValidationIssue]:
    """Values that are possible each by itself and not together."""
    faults = []
    for point in itertools.islice(search.iter_corner_points(), MAX_CHECKED_COMBINATIONS):
        for fault in check_changes(build_variant_changes(raw, point))[:1]:
            said = ", ".join(f"{setting} = {value!r}" for setting, value in point.items())
            faults.append(
                ValidationIssue("search.space", f"the point with {said} is impossible: {fault.message}", fault.allowed)
            )
    if len(faults) > MAX_SHOWN_COMBINATIONS:
        rest = len(faults) - MAX_SHOWN_COMBINATIONS
        faults = [
            *faults[:MAX_SHOWN_COMBINATIONS],
            ValidationIssue("search.space", f"and {rest:,} more impossible points"),
        ]
    return faults
