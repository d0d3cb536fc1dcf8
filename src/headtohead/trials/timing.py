"""Time a few real training steps: to estimate the duration of a trial, or to compare the step times of variants."""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from headtohead.config.experiment import Trial
from headtohead.tasks.registry import prepare_dataset
from headtohead.training.hardware import devices
from headtohead.training.loop import EVALUATION_BATCH_SIZE, Trainer
from headtohead.training.training_progress import StepTimer
from headtohead.trials.trial import build_training

MAX_TIMED_SECONDS = 2.0
"""no further step is timed once all timed steps have taken this long"""
NUM_TIMED_PASSES = 4 * EVALUATION_BATCH_SIZE
NUM_COMPARISON_ROUNDS = 7
"""rounds over all compared trials"""
STEPS_PER_ROUND = 3


def estimate_trial_seconds(trial: Trial, folder: Path, *, num_steps: int = 3) -> float:
    """Return the estimated duration of a trial on one worker, in seconds.

    A few training steps, evaluated batches and a checkpoint are timed.
    """
    dataset = prepare_dataset(trial.data, trial.task)
    start_time = time.perf_counter()
    model, trainer = build_training(trial, dataset, folder, devices.select_device("auto"), with_dependencies=False)
    build_seconds = time.perf_counter() - start_time
    model.train()
    num_threads = devices.set_num_threads(1)  # as in a worker
    _measure_step_pace(trainer, num_steps)
    _measure_pass_pace(trainer)
    start_time = time.perf_counter()
    trainer.save_checkpoint()
    checkpoint_seconds = time.perf_counter() - start_time
    devices.set_num_threads(num_threads)
    num_checkpoints = 1 + math.ceil(trainer.total_steps / trainer.checkpoint_every)
    num_passes = trainer.num_evaluations * trainer.passes_per_evaluation + trainer.passes_after_training
    training_seconds = trainer.step_timer.estimate_seconds(trainer.total_steps, num_passes)
    return build_seconds + training_seconds + num_checkpoints * checkpoint_seconds


def _measure_step_pace(trainer: Trainer, num_steps: int) -> None:
    """Let the trainer time its steps, after a step that allocates the optimizer state."""
    trainer.train_step(0)
    trainer.step_timer = StepTimer(trainer.settings.batch_size)
    for step in range(num_steps):
        if trainer.step_timer.step_seconds < MAX_TIMED_SECONDS:
            trainer.train_step(step)


def _measure_pass_pace(trainer: Trainer) -> None:
    """Let the trainer time its forward passes, on evenly spaced batches because rows differ in length."""
    examples = trainer.tracked_examples["train"].limit_passes(NUM_TIMED_PASSES)
    trainer.process.run_evaluation_pass(
        trainer.model, trainer.objective, trainer.time_batches(examples), trainer.device
    )


def compare_step_seconds(trials: Mapping[str, Trial]) -> dict[str, float]:
    """Time the training steps of several trials, on one thread; return the median seconds by the key of the trial.

    Steps of the trials alternate, so that other load on the machine affects all trials equally.
    """
    device = devices.select_device("auto")
    trainers = {}
    with tempfile.TemporaryDirectory() as scratch:
        for name, trial in trials.items():
            trial = trial.model_copy(update={"training": trial.training.model_copy(update={"budget": "1 step"})})
            dataset = prepare_dataset(trial.data, trial.task)
            model, trainers[name] = build_training(
                trial, dataset, Path(scratch) / name, device, with_dependencies=False
            )
            model.train()
        num_threads = devices.set_num_threads(1)  # as in a worker
        step_seconds: dict[str, list[float]] = {name: [] for name in trainers}
        for round_index in range(NUM_COMPARISON_ROUNDS + 1):
            for name, trainer in trainers.items():
                start_time = time.perf_counter()
                for step in range(STEPS_PER_ROUND):
                    trainer.train_step(step)
                if round_index > 0:  # the first round allocates memory
                    step_seconds[name].append((time.perf_counter() - start_time) / STEPS_PER_ROUND)
        devices.set_num_threads(num_threads)
    return {name: statistics.median(seconds) for name, seconds in step_seconds.items()}
