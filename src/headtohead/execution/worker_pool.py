"""Run trials in parallel in a pool of workers, one trial per worker at a time.

A worker that fails or is killed affects its own trial only: the trial is reported as lost, and a new worker takes the
next one. `local_worker`, `ray.backend` and `torchrun` implement workers.
"""

from __future__ import annotations

import queue
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from headtohead.config import experiment
from headtohead.model_cost import ModelCost
from headtohead.progress import format_duration
from headtohead.training.hardware import precision

MAX_SILENT_SECONDS = 3600.0
"""a worker that has reported nothing for this long is ended; audits and evaluation take a fraction of that time"""
MAX_REASSIGNMENTS = 20
"""a job whose machine was lost this often is not reassigned again"""

JobState = Literal["waiting", "running", "finished", "failed", "lost", "kept"]


@dataclass
class Job:
    """A trial to run and its progress. With `teacher_batches`, the job generates texts with the trial's teacher."""

    trial: experiment.Trial
    folder: Path
    state: JobState = "waiting"
    step: int = 0
    total_steps: int = 0
    loss: float | None = None
    steps_per_second: float = 0.0
    seconds_left: float | None = None
    """its worker's estimate at `report_time`"""
    message: str = ""
    is_request_error: bool = False
    num_reassignments: int = 0
    """number of times the job moved to a different machine because its own was lost"""
    start_time: float = 0.0
    end_time: float = 0.0
    report_time: float = 0.0
    """when its worker last reported"""
    result: dict[str, Any] = field(default_factory=dict)
    teacher_batches: dict[str, Any] | None = None
    """prompts and length limit, as arguments for `teacher_texts.generate_texts_in_worker`"""
    generated_lines: deque[dict[str, Any]] = field(default_factory=deque)
    """generated teacher texts, as lines of the teacher cache, that have not been collected yet"""
    model_cost: ModelCost | None = None
    """computed by the parent: a worker would have to import torch's compiler to count FLOPs"""

    @property
    def is_over(self) -> bool:
        """Whether the job needs no further work."""
        return self.state in ("finished", "failed", "lost", "kept")

    @property
    def silent_seconds(self) -> float:
        """Seconds since a running job's worker last reported."""
        return time.monotonic() - self.report_time if self.state == "running" else 0.0

    def start(self) -> None:
        self.state, self.start_time = "running", time.monotonic()
        self.report_time = self.start_time

    def to_request(self, device: str) -> dict[str, Any]:
        """Return the request with which a pool sends the job to a worker process."""
        return {
            "trial": self.trial.model_dump(mode="json"),
            "folder": str(self.folder),
            "device": device,
            "teacher_batches": self.teacher_batches,
            "model_cost": None if self.model_cost is None else asdict(self.model_cost),
        }


OnJobsUpdate = Callable[[Sequence[Job]], None]
"""called with all jobs whenever one of them may have changed"""


class WorkerHandle(Protocol):
    """A worker that runs one job at a time.

    It puts its messages into the queue that it was started with; None means that it has exited.
    """

    job: Job | None
    is_ready: bool

    @property
    def exit_reason(self) -> str: ...
    def start_job(self, job: Job, device: str) -> None: ...
    def end(self) -> None: ...
    def close(self) -> None: ...


MessageQueue = queue.Queue[tuple[WorkerHandle, dict[str, Any] | None]]
SpawnWorker = Callable[[MessageQueue, dict[str, str], Path], WorkerHandle]


@dataclass(frozen=True)
class WorkerPool:
    """How many workers to run at once, and how to start one."""

    size: int
    spawn: SpawnWorker
    can_generate_texts: bool = False
    """whether the workers accept jobs with `teacher_batches`"""
    compute_size: Callable[[Sequence[Job]], int] | None = None
    """returns how many workers may run at once, given all jobs; None: always `size`"""

    def get_size(self, jobs: Sequence[Job]) -> int:
        """Return how many workers may run at once now."""
        return self.size if self.compute_size is None else max(1, min(self.size, self.compute_size(jobs)))


def get_training_bytes(jobs: Sequence[Job]) -> int:
    """Return the memory of the largest trial among the unfinished jobs; 0 if it is not known."""
    return max((job.model_cost.training_bytes for job in jobs if job.model_cost and not job.is_over), default=0)


def build_environment(trials: Sequence[experiment.Trial]) -> dict[str, str]:
    """Return the environment variables that the workers of a pool need before they import torch.

    Some machines report bfloat16 as supported although it crashes, gives wrong results or is very slow. Muon multiplies
    in bfloat16 in every precision.
    """
    if not any(trial.training.optimizer.kind == "muon" or trial.training.precision == "bf16" for trial in trials):
        return {}
    bfloat16_support = precision.probe_bfloat16()
    return precision.BFLOAT16_WORKAROUND_ENV if bfloat16_support.status == "works with workaround" else {}


def run_jobs(
    jobs: list[Job],
    *,
    pool: WorkerPool,
    log_path: Path,
    device: str = "auto",
    on_start: Callable[[Job], None] = lambda job: None,
    on_update: OnJobsUpdate = lambda jobs: None,
    next_jobs: Callable[[int], list[Job]] = lambda num_free: [],
    environment: dict[str, str] | None = None,
) -> None:
    """Run all waiting jobs and return when none is left. The outcome is in the state of each job.

    Args:
        jobs: All jobs; those that `next_jobs` returns are appended.
        pool: Number of workers, and how to start one.
        log_path: File for the workers' stderr.
        device: Device to train on.
        on_start: Called with each job before it is sent to a worker.
        on_update: Called with all jobs whenever one of them may have changed.
        next_jobs: Called with the number of free workers; returns further jobs.
        environment: The workers' environment variables; by default those that the trials need.
    """
    waiting_jobs = deque(job for job in jobs if job.state == "waiting")
    message_queue: MessageQueue = queue.Queue()
    if environment is None:
        environment = build_environment([job.trial for job in waiting_jobs])
    workers: list[WorkerHandle] = []

    def start_next_job(worker: WorkerHandle) -> None:
        job = waiting_jobs.popleft()
        on_start(job)
        worker.start_job(job, device)

    try:
        while True:
            size = pool.get_size(jobs)
            num_free = size - sum(worker.job is not None for worker in workers) - len(waiting_jobs)
            new_jobs = next_jobs(num_free) if num_free > 0 else []
            jobs += new_jobs
            waiting_jobs += new_jobs
            for worker in workers:
                if worker.job is None and waiting_jobs:
                    start_next_job(worker)
            while waiting_jobs and len(workers) < size:
                worker = pool.spawn(message_queue, environment, log_path)
                workers.append(worker)
                start_next_job(worker)
            if not any(worker.job for worker in workers):
                break
            try:
                worker, message = message_queue.get(timeout=0.5)
                _handle_worker_message(worker, message, workers, waiting_jobs)
            except queue.Empty:
                pass
            _end_silent_workers(workers)
            on_update(jobs)
    finally:
        for worker in workers:
            worker.end()
            if worker.job is not None and not worker.job.is_over:
                worker.job.state = "waiting"


def _end_silent_workers(workers: list[WorkerHandle]) -> None:
    """End workers that have reported nothing for too long; their trials are lost, the others continue.

    A worker that is not ready may be waiting for a slot in a cluster and is not ended."""
    for worker in list(workers):
        if worker.job is None or not worker.is_ready or worker.job.silent_seconds <= MAX_SILENT_SECONDS:
            continue
        worker.job.state, worker.job.end_time = "lost", time.monotonic()
        worker.job.message = f"reported no progress for {format_duration(MAX_SILENT_SECONDS)} and was ended"
        worker.job = None
        workers.remove(worker)
        worker.end()


def _handle_worker_message(
    worker: WorkerHandle, message: dict[str, Any] | None, workers: list[WorkerHandle], waiting_jobs: deque[Job]
) -> None:
    """Update a worker's job, or replace a worker that has exited. Messages from removed workers are ignored."""
    if worker not in workers:
        return
    if message is None or message["event"] == "reassign":
        if (job := _detach_job_of_lost_worker(worker, is_reassignable=message is not None)) is not None:
            waiting_jobs.appendleft(job)
        workers.remove(worker)
        worker.close()
    elif _update_job(worker, message):
        worker.job = None
    if not waiting_jobs and any(
        candidate.job and candidate.job.num_reassignments and not candidate.is_ready for candidate in workers
    ):
        # A reassigned job may be queued for the very slot that an idle worker occupies.
        for idle_worker in [candidate for candidate in workers if candidate.job is None]:
            idle_worker.end()
            workers.remove(idle_worker)


def _update_job(worker: WorkerHandle, message: dict[str, Any]) -> bool:
    """Record a message of a pool's worker in its job; return whether the job is over."""
    worker.is_ready = True
    job = worker.job
    if job is None or message["event"] == "ready":
        return False
    job.report_time = time.monotonic()
    if message["event"] == "progress":
        for key in ("step", "total_steps", "loss", "steps_per_second", "seconds_left"):
            setattr(job, key, message[key])
        return False
    if message["event"] == "text":
        job.generated_lines.append(message["line"])
        return False
    job.end_time = time.monotonic()
    if message["event"] == "finished":
        job.state, job.result = "finished", message["result"]
    else:
        job.state, job.message, job.is_request_error = "failed", message["message"], message["is_request_error"]
    return True


def _detach_job_of_lost_worker(worker: WorkerHandle, *, is_reassignable: bool) -> Job | None:
    """Detach an exited worker's job; return it if it should continue on a different machine."""
    job, worker.job = worker.job, None
    if job is None:
        return None
    if is_reassignable and job.num_reassignments < MAX_REASSIGNMENTS:
        job.num_reassignments += 1
        job.state = "waiting"
        return job
    job.state, job.end_time = "lost", time.monotonic()
    job.message = f"its worker {worker.exit_reason}; --resume continues it"
    return None
