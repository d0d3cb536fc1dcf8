"""Workers on this machine: trials in parallel, one process and one thread each.

A worker that fails or is killed does not take the others along: its trial is reported as lost and a new worker takes
the next one. The end of the parent ends the workers; what they had saved is continued with --resume.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol

import psutil

from headtohead.config import experiment
from headtohead.model_cost import ModelCost
from headtohead.training import devices

SINGLE_THREAD_ENVIRONMENT = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
MEMORY_PER_WORKER = 1 << 30
MAX_REASSIGNMENTS = 20
"""a job whose machine is lost so often is given up"""

JobState = Literal["waiting", "running", "finished", "failed", "lost", "kept"]


@dataclass
class Job:
    """One trial on its way through a worker; or, with `texts`, a share of what the trial's teacher has to write."""

    trial: experiment.Trial
    folder: Path
    state: JobState = "waiting"
    step: int = 0
    steps: int = 0
    loss: float | None = None
    rate: float = 0.0
    message: str = ""
    wrong_request: bool = False
    moves: int = 0
    """how often it had to go on elsewhere, because the machine it was on was lost"""
    began: float = 0.0
    ended: float = 0.0
    result: dict[str, Any] = field(default_factory=dict)
    texts: dict[str, Any] | None = None
    """prompts for the teacher, and how long what it writes may be"""
    written: deque[dict[str, Any]] = field(default_factory=deque)
    """what the teacher wrote and nobody has taken yet"""
    sizes: ModelCost | None = None
    """the model's, where they are known: a worker would import torch's compiler to count them"""

    @property
    def is_over(self) -> bool:
        return self.state in ("finished", "failed", "lost", "kept")

    def asked(self, device: str) -> dict[str, Any]:
        """What a worker is told."""
        trial = self.trial.model_dump(mode="json")
        sizes = None if self.sizes is None else asdict(self.sizes)
        return {"trial": trial, "folder": str(self.folder), "device": device, "texts": self.texts, "sizes": sizes}


OnJobsUpdate = Callable[[Sequence[Job]], None]


class WorkerHandle(Protocol):
    """Whoever takes jobs, one at a time, and says into the inbox how they go; None says that it is gone."""

    job: Job | None
    is_ready: bool

    @property
    def exit_reason(self) -> str: ...
    def take(self, job: Job, device: str) -> None: ...
    def end(self) -> None: ...
    def close(self) -> None: ...


MessageQueue = queue.Queue[tuple[WorkerHandle, dict[str, Any] | None]]
SpawnWorker = Callable[[MessageQueue, dict[str, str], Path], WorkerHandle]


WorkerProcess = subprocess.Popen[bytes]


def start_process(environment: dict[str, str]) -> WorkerProcess:
    """A worker's process."""
    return subprocess.Popen(
        [sys.executable, "-m", "headtohead.execution.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **SINGLE_THREAD_ENVIRONMENT, **environment},
        start_new_session=True,  # Ctrl-C is for the parent, which ends its workers in order
    )


def terminate_process(process: WorkerProcess) -> None:
    process.terminate()
    try:
        process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def close_pipes(process: WorkerProcess) -> None:
    for pipe in (process.stdin, process.stdout, process.stderr):
        assert pipe is not None
        with contextlib.suppress(BrokenPipeError):
            pipe.close()


class LocalWorker:
    """One child process, and threads that pass on what it says and complains about."""

    def __init__(
        self,
        message_queue: MessageQueue,
        environment: dict[str, str],
        log_path: Path,
        process: WorkerProcess | None = None,
    ) -> None:
        """With `process`, one that was started before."""
        self.job: Job | None = None
        self.is_ready = False
        self._log_path = log_path
        self.process = process or start_process(environment)
        self._threads = [
            threading.Thread(target=self._listen, args=(message_queue,), daemon=True),
            threading.Thread(target=self._copy_stderr, daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    @property
    def exit_reason(self) -> str:
        code = self.process.returncode
        how = f"was killed by signal {-code}" if code < 0 else f"ended with {code}"
        return f"{how}{_read_last_log_line(self._log_path)}"

    def _listen(self, inbox: MessageQueue) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            inbox.put((self, json.loads(line)))
        self.process.wait()
        self._threads[1].join(timeout=5)  # its last words are in the log then
        inbox.put((self, None))  # it is gone

    def _copy_stderr(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with (
                contextlib.suppress(OSError),
                self._log_path.open("ab") as log,
            ):  # the folder may be gone, or the disk full
                log.write(line)

    def take(self, job: Job, device: str) -> None:
        assert self.process.stdin is not None
        self.job = job
        job.state, job.began = "running", time.monotonic()
        try:
            self.process.stdin.write(json.dumps(job.asked(device)).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # it is gone; the listener says so

    def end(self) -> None:
        terminate_process(self.process)
        self.close()

    def close(self) -> None:
        """Let go of the pipes once the process is gone."""
        for thread in self._threads:
            thread.join(timeout=5)
        close_pipes(self.process)


@dataclass(frozen=True)
class WorkerPool:
    """Who runs the trials: how many at once, and how one more is hired."""

    size: int
    hire: SpawnWorker = LocalWorker
    can_teach: bool = False
    """can these also do a teacher's writing?"""


def build_worker_pool(backend: str | WorkerPool | None, num_workers: int | None, device: str) -> WorkerPool:
    """Workers of this machine; or, with `on`, of a cluster, or who is there already."""
    if isinstance(backend, WorkerPool):
        return backend
    if backend is None:
        return WorkerPool(num_workers or default_num_workers(), can_teach=True)
    from headtohead.execution.ray_backend import connect_to_cluster  # which needs ray

    cluster = connect_to_cluster(backend, device)
    return WorkerPool(num_workers or cluster.room(), cluster.hire, can_teach=True)


@contextlib.contextmanager
def prestart_workers(pool: WorkerPool, num_jobs: int, environment: dict[str, str]) -> Iterator[WorkerPool]:
    """Workers of this machine that begin while it is still found out what they will do: torch takes them a while. Those
    that nobody hires are ended."""
    if pool.hire is not LocalWorker:
        yield pool
        return
    started = [start_process(environment) for _ in range(min(pool.size, num_jobs))]

    def hire(inbox: MessageQueue, wanted: dict[str, str], log: Path) -> LocalWorker:
        return LocalWorker(inbox, wanted, log, started.pop() if started and wanted == environment else None)

    try:
        yield replace(pool, hire=hire)
    finally:
        for process in started:
            terminate_process(process)
            close_pipes(process)


def default_num_workers() -> int:
    """One a core, as far as memory goes."""
    room = int(psutil.virtual_memory().available // MEMORY_PER_WORKER)
    return max(1, min(devices.count_available_cores(), room))


def build_environment(trials: Sequence[experiment.Trial]) -> dict[str, str]:
    """What must be set before torch is imported: Muon multiplies in bfloat16, which some machines only claim to do."""
    if all(trial.training.optimizer.kind != "muon" for trial in trials):
        return {}
    found = devices.probe_bfloat16()
    return devices.BFLOAT16_WORKAROUND_ENV if found.outcome == "works with cure" else {}


def run_jobs(
    jobs: list[Job],
    *,
    pool: WorkerPool,
    log_path: Path,
    device: str = "auto",
    on_update: OnJobsUpdate = lambda jobs: None,
    next_jobs: Callable[[int], list[Job]] = lambda free: [],
    environment: dict[str, str] | None = None,
) -> None:
    """Run the jobs that wait, and return when all are over. Their state says how each of them ended. `more` is asked
    whenever workers are free, with their number, and what it gives is added to the jobs."""
    waiting = deque(job for job in jobs if job.state == "waiting")
    inbox: MessageQueue = queue.Queue()
    if environment is None:
        environment = build_environment([job.trial for job in waiting])
    staff: list[WorkerHandle] = []
    try:
        while True:
            free = pool.size - sum(worker.job is not None for worker in staff) - len(waiting)
            added = next_jobs(free) if free > 0 else []
            jobs += added
            waiting += added
            for worker in staff:
                if worker.job is None and waiting:
                    worker.take(waiting.popleft(), device)
            while waiting and len(staff) < pool.size:
                worker = pool.hire(inbox, environment, log_path)
                staff.append(worker)
                worker.take(waiting.popleft(), device)
            if not any(worker.job for worker in staff):
                break
            try:
                worker, message = inbox.get(timeout=0.5)
            except queue.Empty:
                on_update(jobs)
                continue
            if worker in staff:
                _handle_message(worker, message, staff, waiting)
            on_update(jobs)
    finally:
        for worker in staff:
            worker.end()
            if worker.job is not None and not worker.job.is_over:
                worker.job.state = "waiting"


def _handle_message(
    worker: WorkerHandle, message: dict[str, Any] | None, workers: list[WorkerHandle], pending_jobs: deque[Job]
) -> None:
    """Act on what a worker said."""
    if message is None or message["event"] == "moved":
        if (job := _handle_lost_worker(worker, is_reassignable=message is not None)) is not None:
            pending_jobs.appendleft(job)
        workers.remove(worker)
        worker.close()
    elif _update_job(worker, message):
        worker.job = None
    if not pending_jobs and any(hand.job and hand.job.moves and not hand.is_ready for hand in workers):
        # A job that moved may wait for the very place that one with nothing to do holds.
        for idle in [hand for hand in workers if hand.job is None]:
            idle.end()
            workers.remove(idle)


def _update_job(worker: WorkerHandle, message: dict[str, Any]) -> bool:
    """Note what a worker said of its job; true when the job is over."""
    worker.is_ready = True
    job = worker.job
    if job is None or message["event"] == "ready":
        return False
    if message["event"] == "progress":
        job.step, job.steps, job.loss, job.rate = (message[k] for k in ("step", "steps", "loss", "rate"))
        return False
    if message["event"] == "text":
        job.written.append(message["line"])
        return False
    job.ended = time.monotonic()
    if message["event"] == "finished":
        job.state, job.result = "finished", message["result"]
    else:
        job.state, job.message, job.wrong_request = "failed", message["message"], message["wrong_request"]
    return True


def _handle_lost_worker(worker: WorkerHandle, *, is_reassignable: bool) -> Job | None:
    """Note that a worker is gone, with its job. A job whose machine was lost is given back, to go on elsewhere."""
    job, worker.job = worker.job, None
    if job is None:
        return None
    if is_reassignable and job.moves < MAX_REASSIGNMENTS:
        job.moves += 1
        job.state = "waiting"
        return job
    job.state, job.ended = "lost", time.monotonic()
    job.message = f"its worker {worker.exit_reason}; --resume continues it"
    return None


def _read_last_log_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines() if log.is_file() else []
    return f" (last words: {lines[-1][:200]})" if lines else ""
