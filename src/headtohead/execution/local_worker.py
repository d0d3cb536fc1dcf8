"""Worker processes on this machine, with one thread each."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import psutil

from headtohead import safe_open
from headtohead.child_process import ChildProcess
from headtohead.execution.worker_pool import Job, MessageQueue, WorkerPool, get_training_bytes
from headtohead.execution.worker_process import end_processes, start_worker_process
from headtohead.training.hardware import devices

WORKER_BYTES = 420 * 10**6
"""memory of a worker that has imported torch and this package"""
JOIN_TIMEOUT_SECONDS = 5.0
LOG_TAIL_BYTES = 4096


class LocalWorker:
    """A worker process, with threads that forward its messages and copy its stderr to the log."""

    def __init__(
        self,
        message_queue: MessageQueue,
        environment: dict[str, str],
        log_path: Path,
        process: ChildProcess | None = None,
    ) -> None:
        """Start a worker process, or use `process`, which is already running."""
        self.job: Job | None = None
        self.is_ready = False
        self._log_path = log_path
        self._process = process or start_worker_process(environment)
        self._stderr_thread = self._process.copy_stderr(log_path)
        self._message_thread = threading.Thread(target=self._forward_messages, args=(message_queue,), daemon=True)
        self._message_thread.start()

    @property
    def exit_reason(self) -> str:
        """How the process ended, with the last line of its log."""
        return f"{self._process.exit_reason}{format_last_line(self._log_path)}"

    def _forward_messages(self, message_queue: MessageQueue) -> None:
        """Put the process's messages into the queue, then None when it has exited."""
        for message in self._process.iter_messages():
            message_queue.put((self, message))
        self._process.process.wait()
        self._stderr_thread.join(JOIN_TIMEOUT_SECONDS)  # so that the log is complete
        message_queue.put((self, None))

    def start_job(self, job: Job, device: str) -> None:
        """Send a job to the process."""
        self.job = job
        job.start()
        self._process.request(job.to_request(device))

    def end(self) -> None:
        """Terminate the process."""
        self._process.terminate()
        self.close()

    def close(self) -> None:
        """Close an exited process's pipes."""
        self._message_thread.join(JOIN_TIMEOUT_SECONDS)
        self._stderr_thread.join(JOIN_TIMEOUT_SECONDS)
        self._process.close_pipes()


def format_last_line(log_path: Path) -> str:
    """Return a log's last line in parentheses, or an empty string."""
    tail = safe_open.read_tail(log_path, LOG_TAIL_BYTES) if log_path.is_file() else b""
    lines = tail.decode(errors="replace").strip().splitlines()
    return f" (last line of its log: {lines[-1][:200]})" if lines else ""


def build_local_pool(num_workers: int | None = None) -> WorkerPool:
    """Return a pool of local workers; by default one per available core, as far as their trials fit into memory."""
    if num_workers is not None:
        return WorkerPool(num_workers, LocalWorker, can_generate_texts=True)
    available_bytes = psutil.virtual_memory().available

    def compute_size(jobs: Sequence[Job]) -> int:
        return available_bytes // (WORKER_BYTES + get_training_bytes(jobs))

    num_cores = devices.count_available_cores()
    return WorkerPool(num_cores, LocalWorker, can_generate_texts=True, compute_size=compute_size)


def get_default_num_workers(training_bytes: int = 0) -> int:
    """Return the number of workers that this machine can run: one per available core, as far as memory suffices."""
    num_fitting_workers = psutil.virtual_memory().available // (WORKER_BYTES + training_bytes)
    return max(1, min(devices.count_available_cores(), num_fitting_workers))


@contextlib.contextmanager
def prestart_local_workers(
    pool: WorkerPool, num_jobs: int, environment: dict[str, str], first_workers: list[ChildProcess]
) -> Iterator[WorkerPool]:
    """Start the processes of a local pool while its jobs are being prepared, because importing torch takes seconds.

    Yield a pool that uses these processes; unused ones are terminated on exit. A pool of other workers is yielded
    unchanged. Processes are taken from `first_workers` if the trials need no environment variables.
    """
    if pool.spawn is not LocalWorker or environment:
        end_processes(first_workers)
    if pool.spawn is not LocalWorker:
        yield pool
        return
    num_processes = min(pool.size, num_jobs)
    processes = [first_workers.pop() for _ in first_workers[:num_processes]]
    processes += [start_worker_process(environment) for _ in range(num_processes - len(processes))]

    def spawn(message_queue: MessageQueue, required_environment: dict[str, str], log_path: Path) -> LocalWorker:
        is_usable = bool(processes) and required_environment == environment
        process = processes.pop(0) if is_usable else None
        return LocalWorker(message_queue, required_environment, log_path, process)

    try:
        yield replace(pool, spawn=spawn)
    finally:
        end_processes(processes)
