"""Shift the clock while experiments run, and give files modification times of 1970 or of the future."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

from .injection import RUN_NAME
from .outcome import FaultOutcome, FaultSettings
from .reference_run import get_reference_run
from .run_monitor import RunMonitor, compare_with_reference
from .single_trials import build_trial, interrupt_trial_at, run_and_get_error, use_workspace_cache
from .workspace import get_last_line

SHIFTED_CLOCK_FOLDER = Path(__file__).parent / "shifted_clock"
DAY = 86400.0
CLOCK_OFFSETS = (3 * 365 * DAY, -DAY, -20 * 365 * DAY, 3600.0, 0.0)


def shift_clock(settings: FaultSettings) -> Iterator[FaultOutcome]:
    """Check that results do not depend on the time."""
    yield _change_file_times(settings)
    if not settings.is_short:
        yield _shift_process_clock(settings)


def _change_file_times(settings: FaultSettings) -> FaultOutcome:
    """Resume a run whose files have modification times ten years ahead or of 1970."""
    reference = get_reference_run(settings)
    workspace = reference.create_workspace(settings.scratch / "times")
    folder = workspace.runs / RUN_NAME
    trial, rng = build_trial(workspace), random.Random(settings.seed)
    with use_workspace_cache(workspace):
        for step in (workspace.steps // 4, workspace.steps // 2, 3 * workspace.steps // 4):
            interrupt_trial_at(trial, folder, step)
            for path in (*workspace.runs.rglob("*"), *workspace.cache.rglob("*")):
                timestamp = rng.choice((0.0, time.time() + 3650 * DAY))
                os.utime(path, (timestamp, timestamp))
        message = run_and_get_error(trial, folder)
    errors = [f"did not resume: {message}"] if message else []
    errors += compare_with_reference(workspace.runs, {RUN_NAME: reference.results[RUN_NAME]})
    name = "files with modification times of 1970 and of the future"
    return FaultOutcome(name, "the same results", 3, errors=tuple(errors))


def _shift_process_clock(settings: FaultSettings) -> FaultOutcome:
    """Shift the clock of the processes while they run and between two starts."""
    reference = get_reference_run(settings)
    workspace = reference.create_workspace(settings.scratch / "clock")
    offset_file = workspace.folder / "clock-offset"
    workspace.variables |= {"PYTHONPATH": str(SHIFTED_CLOCK_FOLDER), "H2H_FAULTS_CLOCK": str(offset_file)}
    monitor, rng = RunMonitor(workspace.runs), random.Random(settings.seed)
    num_shifts, errors = 0, []
    for is_killed in (True, False):
        run = workspace.start()
        deadline = time.monotonic() + 0.7 * reference.seconds
        while not run.has_ended and (not is_killed or time.monotonic() < deadline):
            offset_file.write_text(str(rng.choice(CLOCK_OFFSETS)), encoding="utf-8")
            num_shifts += 1
            monitor.update()
            time.sleep(0.3)
        if is_killed:
            run.terminate()
    if run.exit_code:
        errors.append(f"exit code {run.exit_code}: {get_last_line(run.output)}")
    monitor.verify_results()
    errors += compare_with_reference(workspace.runs, reference.results)
    name, observation = "clock shifted by hours to years", "the same results, after a kill and --resume"
    return FaultOutcome(name, observation, num_shifts, 1, tuple(monitor.lost), tuple(errors))
