"""The cells of a sweep: one experiment for each combination of values, in an order that covers all values early."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headtohead.config.experiment import Experiment
from headtohead.config.overlays import RawConfig, RawExperiment, adapt_to_other_data, apply_variant
from headtohead.config.tables.sweep import CELLS_FOLDER, CORPUS_AXIS, SweepCell
from headtohead.config.variant_changes import build_cell_changes
from headtohead.errors import ConfigError, ValidationIssue
from headtohead.experiment import loading

KEYS_OUTSIDE_CELLS = ("sweep", "published", "claims", "original", "conclusions", "text", "probe", "axis")
"""keys that the experiments of cells do not inherit: those that describe the whole sweep, and probes"""


AxisValues = tuple[tuple[str, str], ...]
"""one or two (axis, label of its value)"""


@dataclass(frozen=True)
class CellExperiment:
    """A cell of a sweep: one value per axis, and the experiment with these values."""

    cell: SweepCell
    experiment: Experiment

    @property
    def name(self) -> str:
        return self.cell.name

    def get_folder(self, sweep_folder: Path) -> Path:
        return get_cell_folder(sweep_folder, self.name)


def get_cell_folder(sweep_folder: Path, name: str) -> Path:
    """Return the experiment's folder of a cell."""
    return sweep_folder / CELLS_FOLDER / name


def build_cell_experiments(experiment: Experiment) -> list[CellExperiment]:
    """Return the experiments of a sweep's cells in the order in which they run.

    Raise ConfigError with the issues of all cells if any of them is invalid.
    """
    assert experiment.sweep is not None
    cells, issues = [], []
    for cell in order_cells_by_coverage(experiment.sweep.list_cells()):
        try:
            cells.append(
                CellExperiment(cell, loading.build_experiment(_build_raw_cell(experiment, cell), experiment.name))
            )
        except ConfigError as error:
            issues += [
                ValidationIssue(f"sweep, cell {cell.name}: {issue.location}", issue.message, issue.allowed)
                for issue in error.issues
            ]
    if issues:
        raise ConfigError(experiment.name, issues)
    return cells


def _build_raw_cell(experiment: Experiment, cell: SweepCell) -> RawConfig:
    """Return the experiment of a cell with the keys of an experiment file."""
    assert experiment.sweep is not None
    raw_cell: RawConfig = experiment.model_dump(mode="json", exclude_defaults=True, exclude_none=True, exclude={"name"})
    for axis in experiment.sweep.list_axes():
        change = axis.values[cell.coordinates[axis.name]]
        if axis.name == CORPUS_AXIS and change["data"].get("source") != experiment.data.source:
            raw_cell = adapt_to_other_data(RawExperiment(experiment.name, experiment.name, raw_cell)).raw_config
        raw_cell = apply_variant(raw_cell, build_cell_changes(raw_cell, axis.name, change))
    return {key: value for key, value in raw_cell.items() if key not in KEYS_OUTSIDE_CELLS}


def order_cells_by_coverage(cells: Sequence[SweepCell]) -> list[SweepCell]:
    """Return a sweep's cells in the order in which they run.

    Each next cell is the one with the most axis values, and then the most pairs of values, that no earlier cell has.
    Ties keep the order of the file. An interrupted sweep therefore covers as many values of every axis as possible.
    """
    remaining_cells, ordered_cells = list(cells), list[SweepCell]()
    covered_values: set[AxisValues] = set()
    while remaining_cells:
        next_cell = max(remaining_cells, key=lambda cell: _count_new_values(cell, covered_values))  # ties: the first
        remaining_cells.remove(next_cell)
        ordered_cells.append(next_cell)
        covered_values |= _list_axis_values(next_cell) | _list_axis_value_pairs(next_cell)
    return ordered_cells


def _count_new_values(cell: SweepCell, covered_values: set[AxisValues]) -> tuple[int, int]:
    """Return the number of axis values, and of pairs of them, that a cell would be the first to cover."""
    return len(_list_axis_values(cell) - covered_values), len(_list_axis_value_pairs(cell) - covered_values)


def _list_axis_values(cell: SweepCell) -> set[AxisValues]:
    return {(axis_value,) for axis_value in cell.coordinates.items()}


def _list_axis_value_pairs(cell: SweepCell) -> set[AxisValues]:
    return set(itertools.combinations(cell.coordinates.items(), 2))
