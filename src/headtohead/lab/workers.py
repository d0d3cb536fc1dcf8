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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import psutil

from .. import spec
from ..train import devices

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
MEMORY_PER_WORKER = 1 << 30

State = Literal["waiting", "running", "finished", "failed", "lost", "kept"]


@dataclass
class Job:
    """One trial on its way through a worker."""

    trial: spec.Trial
    folder: Path
    state: State = "waiting"
    step: int = 0
    steps: int = 0
    loss: float | None = None
    rate: float = 0.0
    message: str = ""
    wrong_request: bool = False
    began: float = 0.0
    ended: float = 0.0
    result: dict[str, Any] = field(default_factory=dict)

    @property
    def is_over(self) -> bool:
        return self.state in ("finished", "failed", "lost", "kept")


Watch = Callable[[Sequence[Job]], None]


class Worker:
    """One child process, and a thread that passes on what it says."""

    def __init__(
        self, inbox: queue.Queue[tuple[Worker, dict[str, Any] | None]], environment: dict[str, str], log: Path
    ) -> None:
        self.job: Job | None = None
        self._log = log.open("ab")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "headtohead.lab.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env={**os.environ, **ONE_THREAD, **environment},
            start_new_session=True,  # Ctrl-C is for the parent, which ends its workers in order
        )
        self._listener = threading.Thread(target=self._listen, args=(inbox,), daemon=True)
        self._listener.start()

    def _listen(self, inbox: queue.Queue[tuple[Worker, dict[str, Any] | None]]) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            inbox.put((self, json.loads(line)))
        self.process.wait()
        inbox.put((self, None))  # it is gone

    def take(self, job: Job, device: str) -> None:
        assert self.process.stdin is not None
        self.job = job
        job.state, job.began = "running", time.monotonic()
        asked = {"trial": job.trial.model_dump(mode="json"), "folder": str(job.folder), "device": device}
        try:
            self.process.stdin.write(json.dumps(asked) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # it is gone; the listener says so

    def end(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.close()

    def close(self) -> None:
        """Let go of the pipes and the log once the process is gone."""
        self._listener.join(timeout=5)
        for pipe in (self.process.stdin, self.process.stdout, self._log):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


def default_workers() -> int:
    """One a core, as far as memory goes."""
    room = int(psutil.virtual_memory().available // MEMORY_PER_WORKER)
    return max(1, min(devices.cores(), room))


def environment_for(trials: Sequence[spec.Trial]) -> dict[str, str]:
    """What must be set before torch is imported: Muon multiplies in bfloat16, which some machines only claim to do."""
    if all(trial.training.optimizer.kind != "muon" for trial in trials):
        return {}
    found = devices.bfloat16()
    return devices.SAFE_BFLOAT16 if found.outcome == "works with cure" else {}


def run_jobs(
    jobs: list[Job],
    *,
    workers: int,
    log: Path,
    device: str = "auto",
    watch: Watch = lambda jobs: None,
    more: Callable[[int], list[Job]] = lambda free: [],
    environment: dict[str, str] | None = None,
) -> None:
    """Run the jobs that wait, and return when all are over. Their state says how each of them ended. `more` is asked
    whenever workers are free, with their number, and what it gives is added to the jobs."""
    waiting = deque(job for job in jobs if job.state == "waiting")
    inbox: queue.Queue[tuple[Worker, dict[str, Any] | None]] = queue.Queue()
    if environment is None:
        environment = environment_for([job.trial for job in waiting])
    staff: list[Worker] = []
    try:
        while True:
            free = workers - sum(worker.job is not None for worker in staff) - len(waiting)
            added = more(free) if free > 0 else []
            jobs += added
            waiting += added
            for worker in staff:
                if worker.job is None and waiting:
                    worker.take(waiting.popleft(), device)
            while waiting and len(staff) < workers:
                worker = Worker(inbox, environment, log)
                staff.append(worker)
                worker.take(waiting.popleft(), device)
            if not any(worker.job for worker in staff):
                break
            try:
                worker, message = inbox.get(timeout=0.5)
            except queue.Empty:
                watch(jobs)
                continue
            if message is None:
                _lose(worker, log)
                staff.remove(worker)
                worker.close()
            elif _heard(worker, message):
                worker.job = None
            watch(jobs)
    finally:
        for worker in staff:
            worker.end()
            if worker.job is not None and not worker.job.is_over:
                worker.job.state = "waiting"


def _heard(worker: Worker, message: dict[str, Any]) -> bool:
    """Note what a worker said of its job; true when the job is over."""
    job = worker.job
    if job is None or message["event"] == "ready":
        return False
    if message["event"] == "progress":
        job.step, job.steps, job.loss, job.rate = (message[k] for k in ("step", "steps", "loss", "rate"))
        return False
    job.ended = time.monotonic()
    if message["event"] == "finished":
        job.state, job.result = "finished", message["result"]
    else:
        job.state, job.message, job.wrong_request = "failed", message["message"], message["wrong_request"]
    return True


def _lose(worker: Worker, log: Path) -> None:
    job = worker.job
    if job is not None:
        code = worker.process.returncode
        how = f"was killed by signal {-code}" if code < 0 else f"ended with {code}"
        job.state, job.ended = "lost", time.monotonic()
        job.message = f"its worker {how}; --resume continues it{_last_words(log)}"
    worker.job = None


def _last_words(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines() if log.is_file() else []
    return f" (last words: {lines[-1][:200]})" if lines else ""
