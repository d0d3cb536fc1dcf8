"""Run the cells of a sweep, each an ordinary experiment in a separate folder, one after another.

An interrupted sweep continues with the first unfinished cell. Values may be added to the file later; their cells run in
the same folder.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from headtohead.config.experiment import Experiment
from headtohead.experiment.experiment_folder import create_experiment_folder
from headtohead.experiment.provenance.environment import collect_versions
from headtohead.experiment.run_folder import ExperimentRuns, lock_folder
from headtohead.experiment.sweep_cells import CellExperiment, build_cell_experiments
from headtohead.progress import ProgressCallback, ProgressUpdate

OutcomeT = TypeVar("OutcomeT")
RunCell = Callable[[Experiment, Path, bool], OutcomeT]
"""runs a cell's experiment: (experiment, folder, resume)"""


def run_sweep(
    experiment: Experiment,
    folder: Path,
    run_cell: RunCell[OutcomeT],
    *,
    resume: bool,
    on_progress: ProgressCallback,
    command: list[str],
) -> tuple[ExperimentRuns, list[OutcomeT]]:
    """Run all cells of an experiment.

    Args:
        experiment: The experiment with a sweep.
        folder: Folder of the sweep.
        run_cell: Runs the experiment of one cell.
        resume: Continue an existing sweep.
        on_progress: Called with the progress over cells.
        command: Command line to record.

    Returns:
        The folder of the sweep and the outcomes of the cells.
    """
    cells = build_cell_experiments(experiment)
    with lock_folder(folder):
        runs = create_experiment_folder(
            folder, experiment, corpus_digests={}, versions=collect_versions(), command=command, resume=resume
        )
        outcomes = [
            _run_cell(cell, folder, run_cell, on_progress, f"cell {number} of {len(cells)}")
            for number, cell in enumerate(cells, start=1)
        ]
    return runs, outcomes


def _run_cell(
    cell: CellExperiment, folder: Path, run_cell: RunCell[OutcomeT], on_progress: ProgressCallback, position: str
) -> OutcomeT:
    """Run the unfinished trials of a cell, after reporting its number and its value on each axis as progress."""
    axis_values = ", ".join(f"{axis} {label}" for axis, label in cell.cell.coordinates.items())
    on_progress(ProgressUpdate(f"{position}: {axis_values}", 0, 0))
    cell_folder = cell.get_folder(folder)
    return run_cell(cell.experiment, cell_folder, (cell_folder / "experiment.json").is_file())
