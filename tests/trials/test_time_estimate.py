"""Estimates of a trial's duration, before it starts and while it trains."""

import time
from pathlib import Path

import pytest

from headtohead.config.trial_settings import build_trial
from headtohead.experiment.loading import load_experiment
from headtohead.tasks.registry import prepare_dataset
from headtohead.training.training_progress import TrainingProgress
from headtohead.trials.timing import estimate_trial_seconds
from headtohead.trials.trial import run_trial


@pytest.mark.parametrize(("recipe", "steps"), [("window", "20 steps"), ("speeches-classifier", "0.5 epochs")])
def test_estimates_are_right_within_a_factor_of_two(
    recipe: str, steps: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Measured in CPU time of this process, so that load from other processes has no effect."""
    experiment = load_experiment(recipe, [f"training.budget={steps}"], use_quick_setting=True)
    trial = build_trial(experiment, "baseline", 0)
    prepare_dataset(trial.data, trial.task)
    monkeypatch.setattr(time, "perf_counter", time.process_time)
    before = estimate_trial_seconds(trial, tmp_path / "estimate")
    reports: list[tuple[float, TrainingProgress]] = []
    started = time.process_time()
    run_trial(trial, tmp_path / "run", on_progress=lambda progress: reports.append((time.process_time(), progress)))
    ended = time.process_time()
    assert 0.5 < before / (ended - started) < 2
    reported, progress = next(report for report in reports if report[1].step >= 10)
    assert 0.5 < progress.seconds_left / (ended - reported) < 2
    assert reports[0][1].seconds_left > reports[-1][1].seconds_left > 0


def test_progress_is_reported_before_the_first_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first evaluation of a large model takes minutes."""
    monkeypatch.setattr("headtohead.training.training_progress.MAX_REPORT_INTERVAL_SECONDS", 0.0)
    trial = build_trial(load_experiment("window", ["training.budget=2 steps"], use_quick_setting=True), "baseline", 0)
    reports: list[TrainingProgress] = []
    run_trial(trial.model_copy(update={"is_search": True}), tmp_path / "run", on_progress=reports.append)
    assert reports[0].step == 0 and reports[0].seconds_left > 0 and reports[0].loss is None
