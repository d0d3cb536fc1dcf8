"""Running an experiment: its trials through the workers, into run folders, and what came out."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from .. import spec
from ..errors import RequestError
from ..files import read_json
from ..spec.loading import trial as trial_of
from .folders import Runs, create_runs, locked, trials
from .trial import begin, estimate, prepare, run_trial, versions
from .workers import Job, Watch, default_workers, run_jobs

DEFAULT_FOLDER = Path("runs")


@dataclass(frozen=True)
class Outcome:
    """What an experiment left behind."""

    runs: Runs
    jobs: tuple[Job, ...]

    @property
    def failures(self) -> list[Job]:
        return [job for job in self.jobs if job.state in ("failed", "lost")]


def run(
    experiment: spec.Experiment,
    out: Path | None = None,
    *,
    workers: int | None = None,
    device: str = "auto",
    resume: bool = False,
    watch: Watch = lambda jobs: None,
    command: Sequence[str] = (),
) -> Outcome:
    """Run every trial of the experiment that is not there yet."""
    folder = out or DEFAULT_FOLDER / experiment.name
    check_runnable(experiment)
    existed = folder.exists()
    with locked(folder):
        try:
            about = {"versions": versions(), "command": list(command or sys.argv)}
            runs = create_runs(folder, experiment, about, resume=resume)
        except BaseException:
            if not existed:
                _remove_if_empty(folder)
            raise
        jobs = _jobs(runs, experiment, range(seed_count(experiment)))
        needed = sum(job.state == "waiting" for job in jobs)
        run_jobs(
            jobs,
            workers=max(1, min(workers or default_workers(), needed)),
            log=folder / "workers.log",
            device=device,
            watch=watch,
        )
    return Outcome(runs, tuple(jobs))


def seed_count(experiment: spec.Experiment) -> int:
    return experiment.seeds if isinstance(experiment.seeds, int) else 5


def _jobs(runs: Runs, experiment: spec.Experiment, seeds: range) -> list[Job]:
    made = []
    for trial in trials(experiment, seeds):
        run_folder = runs.run(trial.variant, trial.seed)
        made.append(Job(trial, run_folder.folder, "kept" if run_folder.is_finished else "waiting"))
    return made


def _remove_if_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:
        pass


def check_runnable(experiment: spec.Experiment) -> None:
    """Everything that can be wrong with the request is found before anything is written: corpus, tokens, models."""
    for variant in experiment.names:
        trial = trial_of(experiment, variant, 0)
        prepared = prepare(trial.data, trial.task)
        unknown = [name for name in trial.data.watch if name not in prepared.corpus.splits]
        if unknown:
            there = ", ".join(split.name for split in prepared.corpus.held_out())
            raise RequestError(f"data.watch: no held-out text named {unknown[0]!r} (there are: {there})")
        primary = experiment.primary.split
        if primary not in ("test", *prepared.corpus.splits):
            raise RequestError(
                f"primary.split: no split named {primary!r} (there are: {', '.join(prepared.corpus.splits)})"
            )
        with tempfile.TemporaryDirectory() as scratch:
            begin(trial, prepared, Path(scratch), torch.device("cpu"))


@dataclass(frozen=True)
class Plan:
    """What a run would do, known before it is started."""

    variant: str
    settings: dict[str, Any]
    parameters: int
    flops_per_token: int
    training_bytes: int
    steps: int
    seconds: float
    """for one trial on one worker"""

    def as_row(self) -> dict[str, Any]:
        return asdict(self)


def plan(experiment: spec.Experiment) -> list[Plan]:
    """Sizes and a time for each variant, from the real model and a few real steps."""
    found = []
    for variant in experiment.names:
        trial = trial_of(experiment, variant, 0)
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            seconds = estimate(trial, folder)
            start = read_json(folder / "start.json")
        settings = spec.changes_of(experiment, variant)
        found.append(
            Plan(
                variant,
                settings,
                start["parameters"],
                start["flops_per_token"],
                start["training_bytes"],
                start["steps"],
                seconds,
            )
        )
    return found


__all__ = ["DEFAULT_FOLDER", "Outcome", "Plan", "default_workers", "plan", "run", "run_trial"]
