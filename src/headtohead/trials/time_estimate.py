"""Estimate the duration of a trial before it runs."""

from __future__ import annotations

import time
from pathlib import Path

from headtohead.config.experiment import Trial
from headtohead.tasks.registry import prepare_dataset
from headtohead.training import devices
from headtohead.training.loop import EVALUATION_BATCH_SIZE
from headtohead.trials.trial import build_training


def estimate_seconds(trial: Trial, folder: Path, *, num_steps: int = 3) -> float:
    """Return the estimated seconds on one worker, from a few training steps and one evaluated batch."""
    dataset = prepare_dataset(trial.data, trial.task)
    start_time = time.perf_counter()
    device = devices.select_device("auto")
    model, trainer = build_training(trial, dataset, folder, device, with_dependencies=False)
    build_seconds = time.perf_counter() - start_time
    model.train()
    num_threads = devices.set_num_threads(1)  # as in a worker
    trainer._train_step(0)
    start_time = time.perf_counter()
    for step in range(num_steps):
        trainer._train_step(step)
    step_seconds = (time.perf_counter() - start_time) / num_steps
    batch = next(trainer.tracked_examples["train"].batches(EVALUATION_BATCH_SIZE))
    start_time = time.perf_counter()
    trainer.process.evaluate(model, trainer.objective, [batch], device)
    row_seconds = (time.perf_counter() - start_time) / len(batch.input_ids)
    devices.set_num_threads(num_threads)
    num_rows = (1 + trainer.total_steps // trainer.evaluate_every) * trainer.num_tracked_rows
    num_rows += trainer.num_rows_after_training
    return build_seconds + trainer.total_steps * step_seconds + num_rows * row_seconds
