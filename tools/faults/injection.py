"""Inject one fault into a running experiment.

The fault is applied at the first checkpoint, must be reported in plain words, and is removed again; `--resume` must
then end with the results of the reference run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from headtohead.errors import HeadToHeadError

from .outcome import FaultOutcome, FaultSettings
from .reference_run import get_reference_run
from .run_monitor import RunMonitor, compare_with_reference
from .single_trials import build_trial, call_once_at, run_and_get_error, use_workspace_cache
from .workspace import Workspace, get_last_line, wait_for_file

CHECKPOINT_PATTERN = "*/seed-*/checkpoint-0000[2-9]*"
MAX_RESUMES = 3
RUN_NAME = "baseline/seed-0"


@dataclass(frozen=True)
class FolderFault:
    """A fault in a run folder: how to apply and remove it, and what the error message must contain."""

    name: str
    apply: Callable[[Path], None]
    required_texts: tuple[str, ...]
    remove: Callable[[], None] = lambda: None
    removes_results: bool = False
    """whether finished results are removed too"""


def inject_fault(settings: FaultSettings, fault: FolderFault, workspace: Workspace, runs: Path) -> FaultOutcome:
    """Inject a fault into a single trial in a short run, otherwise into the complete command."""
    inject = _inject_into_trial if settings.is_short else _inject_into_command
    outcome = inject(settings, fault, workspace, runs)
    fault.remove()
    return outcome


def _inject_into_trial(settings: FaultSettings, fault: FolderFault, workspace: Workspace, runs: Path) -> FaultOutcome:
    """Apply the fault to a trial in this process, then resume it."""
    reference = get_reference_run(settings)
    trial, folder = build_trial(workspace), runs / RUN_NAME
    with use_workspace_cache(workspace):
        on_progress = call_once_at(2 * workspace.checkpoint_every, lambda: fault.apply(folder))
        message = run_and_get_error(trial, folder, on_progress)
        errors = _check_message(fault, message or "")
        fault.remove()
        resume_error = run_and_get_error(trial, folder)
    errors += [f"did not resume: {resume_error}"] if resume_error else []
    errors += compare_with_reference(runs, {RUN_NAME: reference.results[RUN_NAME]})
    observation = f"message: {_shorten_message(message)}; resumed to the same results"
    return FaultOutcome(f"{fault.name} (a trial)", observation, errors=tuple(errors))


def _inject_into_command(settings: FaultSettings, fault: FolderFault, workspace: Workspace, runs: Path) -> FaultOutcome:
    """Apply the fault to a command in a child process, then resume it."""
    reference, monitor = get_reference_run(settings), RunMonitor(runs)
    run = workspace.start(out=runs)
    checkpoint = wait_for_file(run, CHECKPOINT_PATTERN, runs)
    if checkpoint is None:
        return FaultOutcome(fault.name, "none", errors=(f"no checkpoint was written: {get_last_line(run.output)}",))
    monitor.update()
    fault.apply(checkpoint.parent)
    run.wait()
    output = " ".join(run.output.split())
    errors = _check_message(fault, output) if run.exit_code else [f"{fault.name}: not noticed"]
    fault.remove()
    for _ in range(MAX_RESUMES):
        resumed = workspace.run_to_end(out=runs)
        if resumed.exit_code == 0:
            break
    if not fault.removes_results:
        monitor.verify_results()
    errors += [f"did not resume: {get_last_line(resumed.output)}"] if resumed.exit_code else []
    errors += compare_with_reference(runs, reference.results)
    message = next((line for line in run.output.splitlines() if fault.required_texts[0] in line), output)
    observation = (
        f"exit code {run.exit_code}, message: {_shorten_message(message)}; --resume ended with the same results"
    )
    return FaultOutcome(fault.name, observation, lost=tuple(monitor.lost), errors=tuple(errors))


def _check_message(fault: FolderFault, message: str) -> list[str]:
    """Return errors if a message does not name the fault or contains a traceback."""
    errors = [
        f"the message lacks {text!r}: {_shorten_message(message)}"
        for text in fault.required_texts
        if text not in message
    ]
    return errors + (["printed a traceback"] if "Traceback" in message else [])


def _shorten_message(message: str | None) -> str:
    text = " ".join((message or "none").split())
    return text if len(text) < 220 else f"{text[:140]} ... {text[-70:]}"


def get_error_message(work: Callable[[], object]) -> str | None:
    """Return the message of the HeadToHeadError that `work` raises, or None."""
    with contextlib.suppress(OSError):
        try:
            work()
        except HeadToHeadError as error:
            return str(error)
    return None
