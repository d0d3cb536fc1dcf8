"""Run the teacher of a distillation in the worker pool, before the first trial, for all variants of an experiment."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headtohead.config import experiment, trial_settings
from headtohead.distillation.reference_systems import evaluate_reference_systems
from headtohead.distillation.student_data import build_student_data
from headtohead.distillation.teacher import describe_teacher
from headtohead.errors import TrialError
from headtohead.execution.worker_pool import Job, WorkerPool, run_jobs
from headtohead.experiment.schemas import SummarizationTeacherFile, TeacherFile, TeacherTextLine
from headtohead.progress import ProgressCallback, ignore_progress
from headtohead.tasks.registry import prepare_dataset
from headtohead.trials.trial import run_trial

MAX_BATCHES_PER_JOB = 8
"""small enough that all workers finish at about the same time"""


def run_teacher_in_workers(
    experiment: experiment.Experiment,
    folder: Path,
    on_progress: ProgressCallback = ignore_progress,
    pool: WorkerPool | None = None,
) -> TeacherFile | SummarizationTeacherFile:
    """Compute the teacher outputs that the trials of all variants read; return the content of teacher.json.

    Workers of `pool` generate texts in parallel, if they support it.
    """
    trials = [trial_settings.build_trial(experiment, variant, 0) for variant in experiment.names]
    for trial in trials:
        dataset = prepare_dataset(trial.data, trial.task)
        teacher_workers = build_teacher_workers(pool, trial, folder)
        build_student_data(trial, dataset, run_trial, on_progress, generators=teacher_workers)
    trial = trials[0]
    dataset = prepare_dataset(trial.data, trial.task)
    if dataset.documents is None:
        return describe_teacher(trial, dataset, run_trial, on_progress)
    teacher_workers = build_teacher_workers(pool, trial, folder)
    return evaluate_reference_systems(trial, dataset, folder, run_trial, on_progress, teacher_workers)


def build_teacher_workers(pool: WorkerPool | None, trial: experiment.Trial, folder: Path) -> TeacherWorkers | None:
    """Return workers that generate teacher texts, or None if the pool does not support it."""
    return TeacherWorkers(pool, trial, folder / "workers.log") if pool is not None and pool.can_generate_texts else None


@dataclass(frozen=True)
class TeacherWorkers:
    """Generate texts with the teacher in the worker pool that runs the trials afterwards."""

    pool: WorkerPool
    trial: experiment.Trial
    log_path: Path

    @property
    def size(self) -> int:
        """Number of workers."""
        return self.pool.size

    def generate(self, prompt_batches: Sequence[list[list[int]]], max_new_tokens: int) -> Iterator[TeacherTextLine]:
        """Yield the lines of the teacher cache, one per prompt, in the order in which workers finish them."""
        batches_per_job = max(1, min(MAX_BATCHES_PER_JOB, len(prompt_batches) // (2 * self.size)))
        jobs = [
            Job(
                self.trial,
                self.log_path.parent,
                teacher_batches={
                    "prompt_batches": list(prompt_batches[start : start + batches_per_job]),
                    "max_new_tokens": max_new_tokens,
                },
            )
            for start in range(0, len(prompt_batches), batches_per_job)
        ]
        line_queue: queue.Queue[dict[str, Any] | None] = queue.Queue()

        def queue_generated_lines(jobs: Sequence[Job]) -> None:
            for job in jobs:
                while job.generated_lines:
                    line_queue.put(job.generated_lines.popleft())

        def run_generation() -> None:
            """Run the jobs, then put None into the queue."""
            try:
                run_jobs(jobs, pool=self.pool, log_path=self.log_path, on_update=queue_generated_lines)
            finally:
                queue_generated_lines(jobs)
                line_queue.put(None)

        thread = threading.Thread(target=run_generation, daemon=True)
        thread.start()
        while (line := line_queue.get()) is not None:
            yield TeacherTextLine.model_validate(line)
        thread.join()
        if failed_job := next((job for job in jobs if job.state != "finished"), None):
            raise TrialError(f"the teacher could not generate its texts: {failed_job.message}")
