"""`headtohead.run`, which runs an experiment from Python and returns its results."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from headtohead.config import experiment as config_experiment
from headtohead.errors import TrialError
from headtohead.execution.progress_display import open_progress_display
from headtohead.execution.trackers.group import TrackerGroup
from headtohead.runner.api.experiment import load_experiment
from headtohead.runner.api.results import Results
from headtohead.runner.run_experiment import DEFAULT_RUNS_FOLDER, run_experiment


def run(
    experiment: config_experiment.Experiment | str | Path,
    out: str | Path | None = None,
    *,
    workers: int | None = None,
    device: str = "auto",
    resume: bool = False,
    overrides: Sequence[str] = (),
    trackers: Sequence[str] = (),
) -> Results:
    """Run an experiment from Python and return its results.

    Args:
        experiment: An experiment, the name of a recipe, or the path of an experiment file.
        out: Output folder; by default runs/NAME.
        workers: Number of worker processes.
        device: Device to train on, such as "cpu" or "cuda"; "auto" selects one.
        resume: Continue an experiment whose folder already exists.
        overrides: Settings of the form "name=value", for recipes and files.
        trackers: Experiment trackers to log to: tensorboard, wandb, trackio.

    Raises:
        TrialError: If any trial fails. Raised after all trials have ended.
    """
    if not isinstance(experiment, config_experiment.Experiment):
        experiment = load_experiment(experiment, overrides)
    folder = Path(out) if out is not None else DEFAULT_RUNS_FOLDER / experiment.name
    with ExitStack() as stack:
        display = open_progress_display(experiment)
        stack.enter_context(display)
        tracker_group = stack.enter_context(TrackerGroup(folder, trackers, display.print_line))
        outcome = run_experiment(
            experiment,
            folder,
            num_workers=workers,
            device=device,
            resume=resume,
            on_update=tracker_group.wrap_callback(display.update),
            on_progress=display.show_progress,
        )
    if outcome.findings is None or outcome.failed_jobs:
        raise TrialError(outcome.failure_message)
    return Results(outcome.runs, outcome.findings)
