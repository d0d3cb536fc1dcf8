"""The [sweep] table: repeat the whole comparison over corpora, sizes, budgets, learning rates or any setting.

Every combination of values is a cell: a separate experiment with the variants and seeds of the file.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from pydantic import Field, model_validator

from headtohead.config.base import BaseConfig
from headtohead.config.overlays import VARIANT_TABLES, RawConfig
from headtohead.config.tables.search import flatten_search_space

CELLS_FOLDER = "cells"
"""subfolder of the experiment that contains the cells"""
CORPUS_AXIS = "corpus"
SIZE_AXIS = "size"
MAX_CELLS = 1000
MAX_CELL_NAME_LENGTH = 80


class SweepConfig(BaseConfig):
    """The values over which the comparison is repeated; each combination is a cell."""

    corpora: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """list of sources, or name = source or settings of [data]; settings of the [data] table that describe its corpus
    are not applied to other sources"""
    sizes: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """name = settings that change together, as in { model.width = 128, model.layers = 6 }"""
    settings: dict[str, tuple[Any, ...]] = Field(default_factory=dict)
    """setting = list of values; write them in [sweep] itself, as in training.optimizer.lr = [3e-4, 1e-3]"""

    @model_validator(mode="before")
    @classmethod
    def _expand_shorthand(cls, value: Any) -> Any:
        """Convert a list of corpora to a dict by name, and move top-level settings into `settings`."""
        if not isinstance(value, dict):
            return value
        swept_tables = {key: value[key] for key in value if key.partition(".")[0] in VARIANT_TABLES}
        expanded = {key: item for key, item in value.items() if key not in swept_tables}
        if isinstance(expanded.get("corpora"), list | tuple):
            expanded["corpora"] = _name_corpora(expanded["corpora"])
        if isinstance(expanded.get("corpora"), dict):
            expanded["corpora"] = {
                name: corpus if isinstance(corpus, dict) else {"source": corpus}
                for name, corpus in expanded["corpora"].items()
            }
        settings = expanded.get("settings", {})
        if swept_tables and isinstance(settings, dict):
            expanded["settings"] = {**settings, **dict(flatten_search_space(swept_tables))}
        if isinstance(expanded.get("settings"), dict):
            for name, values in expanded["settings"].items():
                if not isinstance(values, list | tuple) or not values:
                    raise ValueError(f"{name} requires a list of values, as in {name} = [1, 2]")
            expanded["settings"] = {name: tuple(values) for name, values in expanded["settings"].items()}
        return expanded

    def list_axes(self) -> list[SweepAxis]:
        """Return the axes in the order corpora, sizes, settings."""
        axes = []
        if self.corpora:
            axes.append(SweepAxis(CORPUS_AXIS, {name: {"data": data} for name, data in self.corpora.items()}))
        if self.sizes:
            axes.append(SweepAxis(SIZE_AXIS, self.sizes))
        for setting, values in self.settings.items():
            axes.append(SweepAxis(setting, {format_axis_label(value): {setting: value} for value in values}))
        return axes

    def count_cells(self) -> int:
        return math.prod(len(axis.values) for axis in self.list_axes())

    def list_cells(self) -> list[SweepCell]:
        """Return every combination of values; the last axis varies fastest."""
        axes = self.list_axes()
        cells = []
        for number, labels in enumerate(itertools.product(*(axis.values for axis in axes)), start=1):
            coordinates = {axis.name: label for axis, label in zip(axes, labels, strict=True)}
            cells.append(SweepCell(_build_cell_name(coordinates), coordinates))
            if len(cells[-1].name) > MAX_CELL_NAME_LENGTH:
                cells[-1] = SweepCell(f"cell-{number:03d}", coordinates)
        return cells


@dataclass(frozen=True)
class SweepAxis:
    """One axis of a sweep: for each value, its label and the settings it changes.

    For a corpus these are settings of [data], for a size nested or dotted settings, and for any other axis a single
    dotted setting.
    """

    name: str
    """corpus, size, or a dotted setting"""
    values: Mapping[str, RawConfig]


@dataclass(frozen=True)
class SweepCell:
    """One combination of values."""

    name: str
    """folder name"""
    coordinates: Mapping[str, str]
    """label of the value on each axis"""


def _name_corpora(sources: Any) -> dict[str, Any]:
    """Return the corpora that a [sweep] lists by name: the last part of a source's path, without its extension."""
    corpora: dict[str, Any] = {}
    for source in sources:
        location = source.get("source") if isinstance(source, dict) else source
        name = PurePath(str(location)).stem or str(location)
        if name in corpora:
            raise ValueError(
                f"two corpora have the name {name!r}; set their names, as in corpora = {{ first = ..., second = ... }}"
            )
        corpora[name] = source
    return corpora


def format_axis_label(value: Any) -> str:
    """Return the label of a value on an axis of the table [sweep], unique on it: 0.001, 500 steps, alibi (slope 1)."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, dict):
        options = ", ".join(f"{key} {format_axis_label(item)}" for key, item in value.items() if key != "kind")
        kind = str(value.get("kind", ""))
        return f"{kind} ({options})" if kind and options else kind or options
    if isinstance(value, list | tuple):
        return " + ".join(format_axis_label(item) for item in value)
    return str(value)


def _build_cell_name(coordinates: Mapping[str, str]) -> str:
    """Return the folder name of a cell of the table [sweep], such as sotu_lr-0.001_budget-500-steps."""
    name_parts = []
    for axis, label in coordinates.items():
        name_part = label if axis in (CORPUS_AXIS, SIZE_AXIS) else f"{axis.rpartition('.')[2]}-{label}"
        name_parts.append(re.sub(r"[^A-Za-z0-9.+-]+", "-", name_part).strip("-.") or "x")
    return "_".join(name_parts)
