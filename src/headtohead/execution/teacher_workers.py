"""Compute the teacher outputs for all variants of an experiment before the first trial, in parallel."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headtohead.config import experiment, loading
from headtohead.distillation.distillation_data import build_distillation_data
from headtohead.distillation.reference_runs import evaluate_references
from headtohead.distillation.teacher import describe_teacher
from headtohead.errors import TrialError
from headtohead.execution.worker_pool import Job, WorkerPool, run_jobs
from headtohead.experiment.schemas import SummarizationTeacherFile, TeacherFile, TeacherTextLine
from headtohead.progress import ProgressCallback, ignore_progress
from headtohead.tasks.registry import prepare_dataset
from headtohead.trials.trial import run_trial

MAX_BATCHES_PER_JOB = 8
"""small enough that all workers finish at about the same time"""


def run_teacher(
    experiment: experiment.Experiment,
    folder: Path,
    on_progress: ProgressCallback = ignore_progress,
    pool: WorkerPool | None = None,
) -> TeacherFile | SummarizationTeacherFile:
    """Compute every variant's teacher outputs; return the content of teacher.json."""
    trials = [loading.build_trial(experiment, variant, 0) for variant in experiment.names]
    for trial in trials:
        dataset = prepare_dataset(trial.data, trial.task)
        generators = build_teacher_workers(pool, trial, folder)
        build_distillation_data(trial, dataset, run_trial, on_progress, generators=generators)
    trial = trials[0]
    dataset = prepare_dataset(trial.data, trial.task)
    if dataset.documents is None:
        return describe_teacher(trial, dataset, run_trial, on_progress)
    generators = build_teacher_workers(pool, trial, folder)
    return evaluate_references(trial, dataset, folder, run_trial, on_progress, generators)


def build_teacher_workers(pool: WorkerPool | None, trial: experiment.Trial, folder: Path) -> TeacherWorkers | None:
    """Return workers that generate teacher texts, or None if the pool does not support it."""
    return TeacherWorkers(pool, trial, folder / "workers.log") if pool is not None and pool.can_generate_texts else None


@dataclass(frozen=True)
class TeacherWorkers:
    """Generate teacher texts in the worker pool that runs the trials afterwards."""

    pool: WorkerPool
    trial: experiment.Trial
    log_path: Path

    @property
    def size(self) -> int:
        """Number of workers."""
        return self.pool.size

    def generate(self, prompt_batches: Sequence[list[list[int]]], max_new_tokens: int) -> Iterator[TeacherTextLine]:
        """Yield cache lines in the order in which workers finish them."""
        batches_per_job = max(1, min(MAX_BATCHES_PER_JOB, len(prompt_batches) // (2 * self.size)))
        jobs = [
            Job(
                self.trial,
                self.log_path.parent,
                texts={
                    "prompt_batches": list(prompt_batches[start : start + batches_per_job]),
                    "max_new_tokens": max_new_tokens,
                },
            )
            for start in range(0, len(prompt_batches), batches_per_job)
        ]
        lines: queue.Queue[dict[str, Any] | None] = queue.Queue()

        def collect(jobs: Sequence[Job]) -> None:
            """Queue the lines that the workers have generated so far."""
            for job in jobs:
                while job.generated_lines:
                    lines.put(job.generated_lines.popleft())

        def run() -> None:
            """Run the jobs in a thread, then put None into the queue."""
            try:
                run_jobs(jobs, pool=self.pool, log_path=self.log_path, on_update=collect)
            finally:
                collect(jobs)
                lines.put(None)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        while (line := lines.get()) is not None:
            yield TeacherTextLine.model_validate(line)
        thread.join()
        if failed_job := next((job for job in jobs if job.state != "finished"), None):
            raise TrialError(f"the teacher could not generate its texts: {failed_job.message}")
