"""Run single trials in this process, which makes them cheap to interrupt, damage and resume."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from headtohead.config import experiment, trial_settings
from headtohead.errors import HeadToHeadError
from headtohead.execution.worker import format_error
from headtohead.experiment import loading
from headtohead.training.training_progress import TrainingProgress
from headtohead.trials.trial import run_trial

from .workspace import Workspace

ProgressCallback = Callable[[TrainingProgress], None]


class InterruptedTrialError(Exception):
    """A trial was interrupted, as by a kill."""


@contextlib.contextmanager
def use_workspace_cache(workspace: Workspace) -> Iterator[None]:
    """Use the cache of a workspace instead of the user's."""
    previous = os.environ.get("XDG_CACHE_HOME")
    os.environ["XDG_CACHE_HOME"] = str(workspace.cache)
    try:
        yield
    finally:
        if previous is None:
            del os.environ["XDG_CACHE_HOME"]
        else:
            os.environ["XDG_CACHE_HOME"] = previous


def build_trial(workspace: Workspace, variant: str = experiment.BASELINE, seed: int = 0) -> experiment.Trial:
    """Return a trial of the workspace's experiment."""
    return trial_settings.build_trial(loading.load_experiment(str(workspace.file)), variant, seed)


def run_and_get_error(
    trial: experiment.Trial, folder: Path, on_progress: ProgressCallback = lambda progress: None
) -> str | None:
    """Run or resume a trial; return the error message that a user sees, or None."""
    try:
        run_trial(trial, folder, device="cpu", on_progress=on_progress)
    except (HeadToHeadError, OSError) as error:
        return format_error(error, folder)
    return None


def interrupt_trial_at(trial: experiment.Trial, folder: Path, step: int) -> None:
    """Run or resume a trial and interrupt it at a step."""

    def interrupt(progress: TrainingProgress) -> None:
        if progress.step >= step:
            raise InterruptedTrialError

    with contextlib.suppress(InterruptedTrialError):
        run_trial(trial, folder, device="cpu", on_progress=interrupt)


def call_once_at(step: int, work: Callable[[], Any]) -> ProgressCallback:
    """Return a progress callback that calls `work` when a trial reaches a step."""
    is_done = False

    def on_progress(progress: TrainingProgress) -> None:
        nonlocal is_done
        if not is_done and progress.step >= step:
            is_done = True
            work()

    return on_progress


def copy_folder(folder: Path, target: Path) -> Path:
    """Replace `target` by a copy of a folder; return it."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(folder, target)
    return target
