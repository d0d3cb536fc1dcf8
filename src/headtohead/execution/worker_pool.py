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
from headtohead.nn.flops import Count
from headtohead.training import devices

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
MEMORY_PER_WORKER = 1 << 30
MOVES = 20
"""a job whose machine is lost so often is given up"""

State = Literal["waiting", "running", "finished", "failed", "lost", "kept"]


@dataclass
class Job:
    """One trial on its way through a worker; or, with `texts`, a share of what the trial's teacher has to write."""

    trial: experiment.Trial
    folder: Path
    state: State = "waiting"
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
    sizes: Count | None = None
    """the model's, where they are known: a worker would import torch's compiler to count them"""

    @property
    def is_over(self) -> bool:
        return self.state in ("finished", "failed", "lost", "kept")

    def asked(self, device: str) -> dict[str, Any]:
        """What a worker is told."""
        trial = self.trial.model_dump(mode="json")
        sizes = None if self.sizes is None else asdict(self.sizes)
        return {"trial": trial, "folder": str(self.folder), "device": device, "texts": self.texts, "sizes": sizes}


Watch = Callable[[Sequence[Job]], None]


class Hand(Protocol):
    """Whoever takes jobs, one at a time, and says into the inbox how they go; None says that it is gone."""

    job: Job | None
    is_ready: bool

    @property
    def how_it_ended(self) -> str: ...
    def take(self, job: Job, device: str) -> None: ...
    def end(self) -> None: ...
    def close(self) -> None: ...


Inbox = queue.Queue[tuple[Hand, dict[str, Any] | None]]
Hire = Callable[[Inbox, dict[str, str], Path], Hand]


Process = subprocess.Popen[bytes]


def start(environment: dict[str, str]) -> Process:
    """A worker's process."""
    return subprocess.Popen(
        [sys.executable, "-m", "headtohead.execution.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **ONE_THREAD, **environment},
        start_new_session=True,  # Ctrl-C is for the parent, which ends its workers in order
    )


def end(process: Process) -> None:
    process.terminate()
    try:
        process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def close_pipes(process: Process) -> None:
    for pipe in (process.stdin, process.stdout, process.stderr):
        assert pipe is not None
        with contextlib.suppress(BrokenPipeError):
            pipe.close()


class Worker:
    """One child process, and threads that pass on what it says and complains about."""

    def __init__(self, inbox: Inbox, environment: dict[str, str], log: Path, process: Process | None = None) -> None:
        """With `process`, one that was started before."""
        self.job: Job | None = None
        self.is_ready = False
        self._log = log
        self.process = process or start(environment)
        self._threads = [
            threading.Thread(target=self._listen, args=(inbox,), daemon=True),
            threading.Thread(target=self._copy, daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    @property
    def how_it_ended(self) -> str:
        code = self.process.returncode
        how = f"was killed by signal {-code}" if code < 0 else f"ended with {code}"
        return f"{how}{_last_words(self._log)}"

    def _listen(self, inbox: Inbox) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            inbox.put((self, json.loads(line)))
        self.process.wait()
        self._threads[1].join(timeout=5)  # its last words are in the log then
        inbox.put((self, None))  # it is gone

    def _copy(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with contextlib.suppress(OSError), self._log.open("ab") as log:  # the folder may be gone, or the disk full
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
        end(self.process)
        self.close()

    def close(self) -> None:
        """Let go of the pipes once the process is gone."""
        for thread in self._threads:
            thread.join(timeout=5)
        close_pipes(self.process)


@dataclass(frozen=True)
class Crew:
    """Who runs the trials: how many at once, and how one more is hired."""

    size: int
    hire: Hire = Worker
    can_teach: bool = False
    """can these also do a teacher's writing?"""


def crew_of(on: str | Crew | None, workers: int | None, device: str) -> Crew:
    """Workers of this machine; or, with `on`, of a cluster, or who is there already."""
    if isinstance(on, Crew):
        return on
    if on is None:
        return Crew(workers or default_workers(), can_teach=True)
    from headtohead.execution.ray_backend import connect  # which needs ray

    cluster = connect(on, device)
    return Crew(workers or cluster.room(), cluster.hire, can_teach=True)


@contextlib.contextmanager
def early(crew: Crew, needed: int, environment: dict[str, str]) -> Iterator[Crew]:
    """Workers of this machine that begin while it is still found out what they will do: torch takes them a while. Those
    that nobody hires are ended."""
    if crew.hire is not Worker:
        yield crew
        return
    started = [start(environment) for _ in range(min(crew.size, needed))]

    def hire(inbox: Inbox, wanted: dict[str, str], log: Path) -> Worker:
        return Worker(inbox, wanted, log, started.pop() if started and wanted == environment else None)

    try:
        yield replace(crew, hire=hire)
    finally:
        for process in started:
            end(process)
            close_pipes(process)


def default_workers() -> int:
    """One a core, as far as memory goes."""
    room = int(psutil.virtual_memory().available // MEMORY_PER_WORKER)
    return max(1, min(devices.cores(), room))


def environment_for(trials: Sequence[experiment.Trial]) -> dict[str, str]:
    """What must be set before torch is imported: Muon multiplies in bfloat16, which some machines only claim to do."""
    if all(trial.training.optimizer.kind != "muon" for trial in trials):
        return {}
    found = devices.bfloat16()
    return devices.SAFE_BFLOAT16 if found.outcome == "works with cure" else {}


def run_jobs(
    jobs: list[Job],
    *,
    crew: Crew,
    log: Path,
    device: str = "auto",
    watch: Watch = lambda jobs: None,
    more: Callable[[int], list[Job]] = lambda free: [],
    environment: dict[str, str] | None = None,
) -> None:
    """Run the jobs that wait, and return when all are over. Their state says how each of them ended. `more` is asked
    whenever workers are free, with their number, and what it gives is added to the jobs."""
    waiting = deque(job for job in jobs if job.state == "waiting")
    inbox: Inbox = queue.Queue()
    if environment is None:
        environment = environment_for([job.trial for job in waiting])
    staff: list[Hand] = []
    try:
        while True:
            free = crew.size - sum(worker.job is not None for worker in staff) - len(waiting)
            added = more(free) if free > 0 else []
            jobs += added
            waiting += added
            for worker in staff:
                if worker.job is None and waiting:
                    worker.take(waiting.popleft(), device)
            while waiting and len(staff) < crew.size:
                worker = crew.hire(inbox, environment, log)
                staff.append(worker)
                worker.take(waiting.popleft(), device)
            if not any(worker.job for worker in staff):
                break
            try:
                worker, message = inbox.get(timeout=0.5)
            except queue.Empty:
                watch(jobs)
                continue
            if worker in staff:
                _hear(worker, message, staff, waiting)
            watch(jobs)
    finally:
        for worker in staff:
            worker.end()
            if worker.job is not None and not worker.job.is_over:
                worker.job.state = "waiting"


def _hear(worker: Hand, message: dict[str, Any] | None, staff: list[Hand], waiting: deque[Job]) -> None:
    """Act on what a worker said."""
    if message is None or message["event"] == "moved":
        if (job := _lose(worker, moved=message is not None)) is not None:
            waiting.appendleft(job)
        staff.remove(worker)
        worker.close()
    elif _heard(worker, message):
        worker.job = None
    if not waiting and any(hand.job and hand.job.moves and not hand.is_ready for hand in staff):
        # A job that moved may wait for the very place that one with nothing to do holds.
        for idle in [hand for hand in staff if hand.job is None]:
            idle.end()
            staff.remove(idle)


def _heard(worker: Hand, message: dict[str, Any]) -> bool:
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


def _lose(worker: Hand, *, moved: bool) -> Job | None:
    """Note that a worker is gone, with its job. A job whose machine was lost is given back, to go on elsewhere."""
    job, worker.job = worker.job, None
    if job is None:
        return None
    if moved and job.moves < MOVES:
        job.moves += 1
        job.state = "waiting"
        return job
    job.state, job.ended = "lost", time.monotonic()
    job.message = f"its worker {worker.how_it_ended}; --resume continues it"
    return None


def _last_words(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines() if log.is_file() else []
    return f" (last words: {lines[-1][:200]})" if lines else ""
