"""Run trials in this process, one after another, so that breakpoint() works in a part: --backend inline."""

from __future__ import annotations

from pathlib import Path

from headtohead.execution.worker import run_and_report
from headtohead.execution.worker_pool import Job, MessageQueue, WorkerPool


class InlineWorker:
    """Runs each job when it is started; its messages are handled afterwards."""

    is_ready = True
    exit_reason = "exited"

    def __init__(self, message_queue: MessageQueue, environment: dict[str, str], log_path: Path) -> None:
        self.job: Job | None = None
        self._message_queue = message_queue

    def start_job(self, job: Job, device: str) -> None:
        self.job = job
        job.start()
        run_and_report(job.to_request(device), lambda message: self._message_queue.put((self, message)))

    def end(self) -> None:
        """Do nothing: there is no process to end."""

    def close(self) -> None:
        """Do nothing: there are no pipes to close."""


def build_inline_pool(backend: str, num_workers: int | None, device: str) -> WorkerPool:
    """Return a pool of one worker in this process."""
    return WorkerPool(1, InlineWorker, can_generate_texts=True)
