"""Single trials in this process: cheap to stop, to damage and to go on with."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from headtohead.config import experiment
from headtohead.config import loading as config_loading
from headtohead.errors import HeadToHeadError
from headtohead.execution.worker import format_error
from headtohead.experiment import loading
from headtohead.training.loop import TrainingProgress
from headtohead.trials.trial import run_trial

from .world import World

Tell = Callable[[TrainingProgress], None]


class StoppedError(Exception):
    """A trial was stopped in the middle, as a kill does it."""


@contextlib.contextmanager
def cache_of(world: World) -> Iterator[None]:
    """Tokens and teachers' work are kept in this world, and not among the user's."""
    before = os.environ.get("XDG_CACHE_HOME")
    os.environ["XDG_CACHE_HOME"] = str(world.cache)
    try:
        yield
    finally:
        if before is None:
            del os.environ["XDG_CACHE_HOME"]
        else:
            os.environ["XDG_CACHE_HOME"] = before


def trial_of(world: World, variant: str = experiment.BASELINE, seed: int = 0) -> experiment.Trial:
    return config_loading.build_trial(loading.load_experiment(str(world.file)), variant, seed)


def outcome(trial: experiment.Trial, folder: Path, tell: Tell = lambda progress: None) -> str | None:
    """Run a trial, or go on with it; gives what went wrong, in the words that a person is shown."""
    try:
        run_trial(trial, folder, device="cpu", on_progress=tell)
    except (HeadToHeadError, OSError) as error:
        return format_error(error, folder)
    return None


def stop_at(trial: experiment.Trial, folder: Path, step: int) -> None:
    """Leave a run in the middle, with its checkpoint."""

    def tell(progress: TrainingProgress) -> None:
        if progress.step >= step:
            raise StoppedError

    with contextlib.suppress(StoppedError):
        run_trial(trial, folder, device="cpu", on_progress=tell)


def once(step: int, work: Callable[[], Any]) -> Tell:
    """Do something when a trial has come so far."""
    done = []

    def tell(progress: TrainingProgress) -> None:
        if not done and progress.step >= step:
            done.append(progress.step)
            work()

    return tell


def copied(folder: Path, to: Path) -> Path:
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(folder, to)
    return to
