"""Reference runs: each experiment runs once without faults; runs with faults must end with the same results."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from .outcome import FaultSettings
from .run_monitor import collect_results
from .workspace import Workspace, get_last_line

TRIAL_LENGTHS = {"plain": (1500, 50), "search": (800, 50), "distillation": (1000, 50)}
"""steps and checkpoint interval of a trial, by kind of experiment"""
SHORT_TRIAL_LENGTH = (200, 20)


@dataclass(frozen=True)
class ReferenceRun:
    """A finished experiment without faults."""

    kind: str
    steps: int
    checkpoint_every: int
    folder: Path
    results: dict[str, Any]
    seconds: float

    def create_workspace(self, folder: Path) -> Workspace:
        """Return a workspace with the same experiment, for injecting faults."""
        return Workspace(folder, self.kind, self.steps, self.checkpoint_every)


def get_reference_run(settings: FaultSettings, kind: str = "plain") -> ReferenceRun:
    """Return the reference run of a kind of experiment. It runs once."""
    return _run_reference(settings.scratch, kind, settings.is_short, settings.print_progress)


@cache
def _run_reference(scratch: Path, kind: str, is_short: bool, report: Callable[[str], None]) -> ReferenceRun:
    steps, checkpoint_every = SHORT_TRIAL_LENGTH if is_short else TRIAL_LENGTHS[kind]
    workspace = Workspace(scratch / f"reference-{kind}", kind, steps, checkpoint_every)
    start_time = time.monotonic()
    run = workspace.run_to_end()
    if run.exit_code != 0:
        raise RuntimeError(f"{kind}: failed without a fault, exit code {run.exit_code}: {get_last_line(run.output)}")
    seconds = time.monotonic() - start_time
    results = collect_results(workspace.runs)
    report(f"  {kind}: {len(results) - 1} runs, {seconds:.0f} s without faults")
    return ReferenceRun(kind, steps, checkpoint_every, workspace.runs, results, seconds)
