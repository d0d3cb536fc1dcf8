"""The [search] table: which settings are tried, how, and how long.

A cell is one choice of values; it is trained with several seeds. What a cell changes is written as a variant's changes
are, so that it is checked and laid over the file by the same rules.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, ValidationError, field_validator, model_validator

from headtohead.config.base import Count, Few, Table
from headtohead.config.data import Data
from headtohead.config.model import Transformer
from headtohead.config.overlays import TABLES, Raw
from headtohead.config.training import Training
from headtohead.errors import Fault

WINNER = "winner"
FOLDER = "search"
"""where the search's own runs lie, inside the experiment's folder"""
FIRST_SEED = 1_000
"""the seeds of a search begin here, those of a comparison at 0: the winner is judged by seeds that are new to it"""
MOST_CELLS = 10_000
MOST_VALUES, MOST_SETTINGS = 1_000, 50
MOST_CORNERS = 2_000
"""so many combinations are checked before anything is trained"""
MOST_FAULTS = 5
"""impossible combinations that are shown"""
COMPARABLE_DATA = ("data.unknown", "data.once")
"""what a search may change of the data: validation figures on other rows or tokens could not be compared"""

Settings = dict[str, Any]
"""dotted name = value"""


class Range(Table):
    """Numbers between two ends, both included. Whole ends give whole numbers."""

    low: int | float
    high: int | float
    log: bool = False
    """drawn evenly by size of magnitude, as rates are"""
    step: int | float | None = None
    """only low, low + step, low + 2 step and so on"""

    @model_validator(mode="after")
    def _is_a_range(self) -> Range:
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
    def is_whole(self) -> bool:
        return all(isinstance(number, int) for number in (self.low, self.high, self.step or 1))

    def steps(self) -> tuple[int | float, ...]:
        """Every value of a range with a step. Nobody wants to read 0.30000000000000004."""
        assert self.step is not None
        most = (self.high - self.low) / self.step + 1e-9
        if most >= MOST_CELLS:
            return ()
        count = math.floor(most) + 1
        made = [self.low + at * self.step for at in range(count)]
        return tuple(made if self.is_whole else (float(f"{one:.12g}") for one in made))


def _kind(value: Any) -> str:
    return "range" if isinstance(value, dict | Range) else "values"


Values = Annotated[tuple[Any, ...], Field(min_length=1)]
Axis = Annotated[Annotated[Range, Tag("range")] | Annotated[Values, Tag("values")], Discriminator(_kind)]


class Budget(Table):
    """When a search ends. Of two limits the first that is reached counts."""

    trials: Count | None = None
    minutes: Annotated[float, Field(gt=0)] | None = None
    """of the search; the comparison of its winner comes on top"""

    @model_validator(mode="after")
    def _has_a_limit(self) -> Budget:
        if self.trials is None and self.minutes is None:
            raise ValueError("give trials, minutes, or both")
        return self

    @field_validator("minutes", mode="before")
    @classmethod
    def _whole_minutes(cls, value: Any) -> Any:
        return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


class Pruning(Table):
    """A cell that is certainly behind gets no more seeds."""

    risk: Annotated[float, Field(gt=0, le=0.5)] = 0.05
    """how often, at most, the truly best cell may be lost that way"""
    after: Few = 1
    """seeds that every cell gets"""


class Search(Table):
    """What is searched. The winner is then compared with the file's baseline, on seeds that the search never used."""

    method: Literal["grid", "random", "tpe"] = "grid"
    """grid: every combination; random: drawn; tpe: drawn where it went well so far (Bergstra et al. 2011; optuna)"""
    space: dict[str, Axis] = Field(min_length=1)
    """setting = [values], or { low, high, log } or { low, high, step }"""
    seeds: Few = 2
    """for each cell"""
    budget: Budget | None = None
    """{ trials = 40 } or { minutes = 30 }; a grid needs none"""
    prune: Pruning | None = None
    """true, or { risk = 0.05, after = 1 }: cells that are certainly behind get no more seeds"""
    seed: int = 0
    """what random and tpe draw by, and the order in which a grid is walked"""

    @model_validator(mode="before")
    @classmethod
    def _plain_forms(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        value = dict(value)
        if isinstance(value.get("prune"), bool):
            value["prune"] = {} if value["prune"] else None
        if isinstance(value.get("space"), dict):
            value["space"] = dict(_leaves(value["space"]))
        return value

    @property
    def needs_optuna(self) -> bool:
        return self.method == "tpe"

    def values(self, setting: str) -> tuple[Any, ...] | None:
        """The values that the setting can take, where they can be listed."""
        axis = self.space[setting]
        if isinstance(axis, Range):
            return axis.steps() if axis.step is not None else None
        return axis

    def cells(self) -> int | None:
        """How many cells there are, where they can be counted."""
        counts = [len(listed) for setting in self.space if (listed := self.values(setting)) is not None]
        return math.prod(counts) if len(counts) == len(self.space) else None

    def planned(self) -> tuple[int | None, int | None]:
        """Cells and trials that the search will train, where nothing is pruned; None where the clock decides."""
        most = self.cells() if self.method == "grid" else None
        allowed = self.budget.trials // self.seeds if self.budget and self.budget.trials else None
        known = [one for one in (most, allowed) if one is not None]
        return (min(known), min(known) * self.seeds) if known else (None, None)

    def corners(self) -> Iterator[Settings]:
        """Every combination of listed values and of the ends of ranges."""
        listed = []
        for setting, axis in self.space.items():
            ends = (axis.low, axis.high) if isinstance(axis, Range) else axis
            listed.append(ends if self.method != "grid" else self.values(setting) or ends)
        for chosen in itertools.product(*listed):
            yield dict(zip(self.space, chosen, strict=True))


def _leaves(space: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """training.batch = [8, 16] is a table in a table to TOML; here it is one dotted name."""
    for key, value in space.items():
        name = f"{above}{key}"
        if isinstance(value, dict) and not value.keys() & {"low", "high", "log", "step"}:
            yield from _leaves(value, f"{name}.")
        else:
            yield name, tuple(value) if isinstance(value, list) else value


def changes_for(raw: Raw, settings: Settings) -> Raw:
    """The settings of a cell as a variant's changes. A name inside a part, as training.optimizer.rate, changes that
    option and keeps the others."""
    changes: Raw = {}
    for setting in sorted(settings, key=lambda name: name.count(".")):
        table, key, *inside = setting.split(".")
        into = changes.setdefault(table, {})
        if not inside:
            into[key] = copy.deepcopy(settings[setting])
            continue
        before = into[key] if key in into else _current(raw, table, key)
        into[key] = _with_inside(before, inside, settings[setting])
    return {table: _listed(inside) for table, inside in changes.items()}


def _current(raw: Raw, table: str, key: str) -> Any:
    """What the file says, or what holds where it says nothing."""
    given = raw.get(table)
    if isinstance(given, dict) and key in given:
        return given[key]
    defaults: dict[str, Table] = {"data": Data(), "model": Transformer(), "training": Training()}
    return defaults[table].model_dump(mode="json").get(key) if table in defaults else None


def _with_inside(before: Any, inside: list[str], value: Any) -> Any:
    if isinstance(before, list | tuple) and len(before) == 1:
        (before,) = before
    if isinstance(before, str):
        before = {"kind": before}
    made = copy.deepcopy(before) if isinstance(before, dict) else {}
    name, *deeper = inside
    made[name] = _with_inside(made.get(name), deeper, value) if deeper else copy.deepcopy(value)
    return made


def _listed(value: Any) -> Any:
    """As TOML and JSON have it: lists, no tuples."""
    if isinstance(value, dict):
        return {key: _listed(one) for key, one in value.items()}
    return [_listed(one) for one in value] if isinstance(value, list | tuple) else value


Try = Callable[[Raw], list[Fault]]
"""what is wrong with a variant that makes these changes; places begin at the table"""


def search_faults(raw: Raw, attempt: Try) -> list[Fault]:
    """Everything that is wrong with the search of this file, as far as it can be known before anything is trained."""
    try:
        search = Search.model_validate(raw.get("search"))
    except ValidationError:
        return []  # the tables have said so
    faults = [*_structure(raw, search), *_names(search)]
    if not faults:
        faults = _values(raw, search, attempt) or _combinations(raw, search, attempt)
    return list({(fault.place, fault.message): fault for fault in faults}.values())


def _structure(raw: Raw, search: Search) -> Iterator[Fault]:
    if search.method != "grid" and search.budget is None:
        message = f"{search.method} goes on until it is told to end: budget = {{ trials = 40 }} or {{ minutes = 30 }}"
        yield Fault("search.budget", message)
    if search.budget and search.budget.trials and search.budget.trials < search.seeds:
        message = f"{search.budget.trials} trials are not even one cell of {search.seeds} seeds"
        yield Fault("search.budget.trials", message)
    if search.method == "grid" and (search.cells() or 0) > MOST_CELLS:
        yield Fault("search.space", f"has {search.cells():,} cells; a grid can have {MOST_CELLS:,}, random any number")
    data, variants, seeds = raw.get("data"), raw.get("variants"), raw.get("seeds")
    if isinstance(data, dict) and data.get("validation") == 0 and not _has_file(data):
        yield Fault("search", "chooses its winner, and choices need validation data: data.validation is 0")
    for name in (WINNER, FOLDER):
        if isinstance(variants, dict) and name in variants:
            yield Fault(f"variants.{name}", "is a name that the search needs; give the change another one")
    if isinstance(seeds, int) and seeds > FIRST_SEED:
        yield Fault("seeds", f"beside a search there can be {FIRST_SEED:,}, not {seeds:,}")


def _has_file(data: Raw) -> bool:
    files = data.get("files")
    return isinstance(files, dict) and files.get("validation") is not None


def _names(search: Search) -> Iterator[Fault]:
    if len(search.space) > MOST_SETTINGS:
        yield Fault("search.space", f"names {len(search.space):,} settings; a search can have {MOST_SETTINGS}")
        return
    for setting, axis in search.space.items():
        place = f"search.space.{setting}"
        table, _, key = setting.partition(".")
        if table not in TABLES or not key:
            yield Fault(place, "a search changes settings of data, model or training, as training.batch", TABLES)
        elif table == "data" and not setting.startswith(COMPARABLE_DATA):
            message = "on other data the validation figures of cells could not be compared; use variants for that"
            yield Fault(place, message, COMPARABLE_DATA)
        elif setting == "model.module":
            yield Fault(place, "networks of your own are compared as variants, and not searched")
        if isinstance(axis, Range) and axis.step is None and search.method == "grid":
            yield Fault(place, "a grid needs a list of values, or a range with a step", ("list", "step"))
        elif isinstance(axis, Range) and axis.step is not None and not axis.steps():
            yield Fault(place, f"has more than {MOST_CELLS:,} steps")
        elif not isinstance(axis, Range) and len(axis) > MOST_VALUES:
            yield Fault(
                place, f"lists {len(axis):,} values; up to {MOST_VALUES:,} can be listed, a range has any number"
            )
        elif not isinstance(axis, Range) and len({repr(one) for one in axis}) < len(axis):
            yield Fault(place, "names the same value twice")


def _values(raw: Raw, search: Search, attempt: Try) -> list[Fault]:
    """Each value by itself, laid over the file."""
    faults = []
    for setting, axis in search.space.items():
        for value in (axis.low, axis.high) if isinstance(axis, Range) else axis:
            for fault in attempt(changes_for(raw, {setting: value})):
                # What is impossible only beside the file's other settings may be possible beside another cell's.
                if fault.place not in TABLES or not _has_others(search, setting):
                    place = f"search.space.{setting}"
                    faults.append(Fault(place, _said(fault, setting), fault.allowed, fault.nearest))
    return faults


def _has_others(search: Search, setting: str) -> bool:
    """Does the search also change other settings of the same table?"""
    table = setting.partition(".")[0]
    return any(other != setting and other.startswith(f"{table}.") for other in search.space)


def _said(fault: Fault, setting: str) -> str:
    inside = fault.place.removeprefix(setting).strip(".")
    return f"{inside}: {fault.message}" if inside and fault.place.startswith(setting) else fault.message


def _combinations(raw: Raw, search: Search, attempt: Try) -> list[Fault]:
    """Values that are possible each by itself and not together."""
    faults = []
    for cell in itertools.islice(search.corners(), MOST_CORNERS):
        for fault in attempt(changes_for(raw, cell))[:1]:
            said = ", ".join(f"{setting} = {value!r}" for setting, value in cell.items())
            faults.append(Fault("search.space", f"the cell with {said} is impossible: {fault.message}", fault.allowed))
    if len(faults) > MOST_FAULTS:
        rest = len(faults) - MOST_FAULTS
        faults = [*faults[:MOST_FAULTS], Fault("search.space", f"and {rest:,} more impossible cells")]
    return faults
