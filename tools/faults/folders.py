"""Remove folders during training, and start an experiment several times in one folder."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from headtohead.experiment import loading
from headtohead.experiment.run_folder import lock_folder
from headtohead.runner import run_experiment

from .injection import CHECKPOINT_PATTERN, FolderFault, get_error_message, inject_fault
from .outcome import FaultOutcome, FaultSettings
from .reference_run import get_reference_run
from .run_monitor import RunMonitor, compare_with_reference
from .single_trials import use_workspace_cache
from .workspace import get_last_line

LOCKED_MESSAGE = "another process is running this experiment"


def remove_folders(settings: FaultSettings) -> Iterator[FaultOutcome]:
    """Remove the folder of one run and, in a full run, that of the experiment."""
    reference = get_reference_run(settings)
    workspace = reference.create_workspace(settings.scratch / "removed")

    def move_away(folder: Path) -> None:
        folder.rename(settings.scratch / f"gone-{folder.name}-{folder.stat().st_ino}")

    run_fault = FolderFault("run folder removed during training", move_away, ("was removed while",))
    yield inject_fault(settings, run_fault, workspace, workspace.runs)
    if not settings.is_short:
        other = reference.create_workspace(settings.scratch / "all-removed")
        experiment_fault = FolderFault(
            "experiment folder removed during training",
            lambda folder: move_away(other.runs),
            ("removed",),
            removes_results=True,
        )
        yield inject_fault(settings, experiment_fault, other, other.runs)


def start_twice(settings: FaultSettings) -> Iterator[FaultOutcome]:
    """Start an experiment in a folder in which it already runs."""
    if settings.is_short:
        yield _start_in_locked_folder(settings)
        return
    reference = get_reference_run(settings)
    workspace = reference.create_workspace(settings.scratch / "twice")
    link = workspace.folder / "link"
    link.symlink_to(workspace.runs)
    runs, monitor = [workspace.start() for _ in range(3)], RunMonitor(workspace.runs)
    while not (all(run.has_ended for run in runs) or any(workspace.runs.glob(CHECKPOINT_PATTERN))):
        monitor.update()
        time.sleep(0.01)
    training_runs = [run for run in runs if run.list_workers()]
    workers = [worker for run in training_runs for worker in run.list_workers()]
    with suspend_processes(workers):  # otherwise the experiment could finish before the next ones have started
        late_runs = [workspace.start(), workspace.start(out=link)]
        for run in late_runs:
            run.wait()
    runs += late_runs
    while not all(run.has_ended for run in runs):
        monitor.update()
        time.sleep(0.05)
    monitor.verify_results()
    refused = [run for run in runs if run.exit_code]
    errors = [
        f"message: {get_last_line(run.output)}" for run in refused if "another process is running" not in run.output
    ]
    errors += [] if len(refused) == 4 else [f"{len(refused)} of 5 were refused, not 4"]
    errors += [] if len(training_runs) == 1 else [f"{len(training_runs)} of 5 had workers, not 1"]
    errors += compare_with_reference(workspace.runs, reference.results)
    message = get_last_line(refused[0].output) if refused else "none"
    observation = f"{len(refused)} of 5 were refused ({message}); every result was written once"
    name = "experiment started five times in one folder, once through a link"
    yield FaultOutcome(name, observation, 5, lost=tuple(monitor.lost), errors=tuple(errors))


@contextlib.contextmanager
def suspend_processes(processes: list[psutil.Process]) -> Iterator[None]:
    """Suspend processes while the context is open."""
    for process in processes:
        process.suspend()
    try:
        yield
    finally:
        for process in processes:
            process.resume()


def _start_in_locked_folder(settings: FaultSettings) -> FaultOutcome:
    reference = get_reference_run(settings)
    experiment = loading.load_experiment(str(reference.folder.parent / f"{reference.kind}.toml"))

    def read_times() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in reference.folder.rglob("*")}

    times_before = read_times()
    workspace = reference.create_workspace(settings.scratch / "twice")
    with lock_folder(reference.folder), use_workspace_cache(workspace):
        message = get_error_message(
            lambda: run_experiment.run_experiment(
                experiment, reference.folder, num_workers=1, device="cpu", resume=True
            )
        )
    errors = [] if message and LOCKED_MESSAGE in message else [f"was not refused: {message}"]
    errors += [] if times_before == read_times() else ["files were written"]
    return FaultOutcome("experiment started twice in one folder", f"refused: {message}", errors=tuple(errors))
