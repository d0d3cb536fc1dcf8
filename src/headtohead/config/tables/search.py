"""The [search] table: the settings to search, the method and the budget.

A point assigns one value to each searched setting and is trained with several seeds. Its settings are validated and
applied in the same way as those of a variant.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from headtohead.config.base import BaseConfig, SmallCount
from headtohead.config.budget import Budget, SearchBudget, parse_budget

WINNER_VARIANT = "winner"
SEARCH_FOLDER = "search"
"""subfolder of the experiment that contains the runs of the search"""
TUNING_FOLDER = "tune"
"""subfolder of the experiment that contains a search for every variant and the baseline"""
FIRST_SEARCH_SEED = 1_000
"""first seed of a search; comparisons start at 0, so the winner is judged on fresh seeds"""
MAX_SEARCH_POINTS = 10_000
MAX_VALUES_PER_SETTING = 1_000
MAX_SETTINGS = 50
"""settings that a search may change at once"""
MAX_CHECKED_COMBINATIONS = 2_000
"""combinations that are validated before training starts"""
MAX_SHOWN_COMBINATIONS = 5
"""invalid combinations that are listed"""
SEARCHABLE_DATA_SETTINGS = ("data.word_dropout", "data.rare_words")
"""data settings that a search may change; others would change the validation set and make scores incomparable"""

SettingValues = dict[str, Any]
"""dotted name = value"""


class NumericRange(BaseConfig):
    """A range of numbers, including both ends. If both ends and the step are integers, so are the values."""

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
        """Raise ValueError if a range of the [search] table is empty or sets both log and step."""
        if not self.low < self.high:
            raise ValueError(f"low must be below high, got low = {self.low} and high = {self.high}")
        if self.log and self.low <= 0:
            raise ValueError(f"log requires low > 0, got {self.low}")
        if self.log and self.step is not None:
            raise ValueError("log and step are mutually exclusive")
        if self.step is not None and self.step <= 0:
            raise ValueError(f"step must be above 0, got {self.step}")
        return self

    @property
    def is_integer(self) -> bool:
        """True if the range contains integers only."""
        return all(isinstance(number, int) for number in (self.low, self.high, self.step or 1))

    def list_values(self) -> tuple[int | float, ...]:
        """Return the values of a searched range with a step, or () if there are too many, rounded to 12 digits."""
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


class PruningConfig(BaseConfig):
    """When to stop training further seeds of a point that is clearly worse than the best point."""

    risk: Annotated[float, Field(gt=0, le=0.5)] = 0.05
    """maximum probability of pruning the best point"""
    min_seeds: SmallCount = 1
    """seeds that every point gets before it can be pruned"""


class SearchConfig(BaseConfig):
    """The search. Its best point is then compared with the baseline on seeds not used in the search."""

    method: Literal["grid", "random", "tpe"] = "grid"
    """grid: every combination; random: random points; tpe: optuna's Parzen estimator (Bergstra et al. 2011)"""
    space: dict[str, SearchDimension] = Field(min_length=1)
    """setting = [values], or { low, high, log } or { low, high, step }"""
    seeds: SmallCount = 2
    """seeds per point"""
    budget: SearchBudget | None = None
    """"40 trials" or "30 minutes", without the comparison of the winner; optional for a grid"""
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
            value["space"] = dict(flatten_search_space(value["space"]))
        return value

    def list_values(self, setting: str) -> tuple[Any, ...] | None:
        """Return the possible values of a setting, or None for a continuous range."""
        dimension = self.space[setting]
        if isinstance(dimension, NumericRange):
            return dimension.list_values() if dimension.step is not None else None
        return dimension

    def count_points(self) -> int | None:
        """Return the number of points in the space, or None if it is infinite."""
        value_counts = [len(values) for setting in self.space if (values := self.list_values(setting)) is not None]
        return math.prod(value_counts) if len(value_counts) == len(self.space) else None

    @property
    def max_trials(self) -> int | None:
        """The maximum number of trials, or None if only time or the grid limits them."""
        return int(self.parsed_budget.amount) if self.parsed_budget and self.parsed_budget.unit == "trials" else None

    @property
    def max_seconds(self) -> float | None:
        """The time limit of the search, or None."""
        return self.parsed_budget.amount if self.parsed_budget and self.parsed_budget.unit == "seconds" else None

    @property
    def parsed_budget(self) -> Budget | None:
        """The budget as an amount and a unit."""
        return parse_budget(self.budget) if self.budget is not None else None

    def get_first_value(self, setting: str) -> Any:
        """Return the first value of a setting, or the lowest of a range."""
        dimension = self.space[setting]
        return dimension.low if isinstance(dimension, NumericRange) else dimension[0]

    def compute_planned_counts(self) -> tuple[int | None, int | None]:
        """Return the planned number of points and trials without pruning; None if only time limits them."""
        num_grid_points = self.count_points() if self.method == "grid" else None
        num_affordable_points = self.max_trials // self.seeds if self.max_trials is not None else None
        limits = [limit for limit in (num_grid_points, num_affordable_points) if limit is not None]
        return (min(limits), min(limits) * self.seeds) if limits else (None, None)

    def iter_corner_points(self) -> Iterator[SettingValues]:
        """Yield every combination of listed values and of the ends of ranges."""
        value_lists = []
        for setting, dimension in self.space.items():
            corner_values = (dimension.low, dimension.high) if isinstance(dimension, NumericRange) else dimension
            value_lists.append(corner_values if self.method != "grid" else self.list_values(setting) or corner_values)
        for values in itertools.product(*value_lists):
            yield dict(zip(self.space, values, strict=True))


class TuneConfig(SearchConfig):
    """Tune the baseline and every variant over the same search space, and compare them at their individual optima.

    Optima are selected on validation data, with seeds that are not used for the verdict. The keys are the same as in
    [search].
    """

    extend: Annotated[int, Field(ge=0, le=10)] = 2
    """values that a grid may gain beyond an end if an optimum lies there; otherwise the verdict is withheld"""

    @model_validator(mode="after")
    def _check_pruning(self) -> TuneConfig:
        """Raise ValueError if [tune] enables pruning, which would give the variants different tuning budgets."""
        if self.prune is not None:
            raise ValueError(
                "prune is only allowed in [search]: all sides of a tuned comparison must have the same budget"
            )
        return self


def flatten_search_space(space: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted names with their values. TOML parses `training.batch_size = [8, 16]` as nested tables."""
    for key, value in space.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and not value.keys() & {"low", "high", "log", "step"}:
            yield from flatten_search_space(value, f"{name}.")
        else:
            yield name, tuple(value) if isinstance(value, list) else value
