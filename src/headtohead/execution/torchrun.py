"""An experiment under torchrun: all processes train one trial together, and then the next.

The first process leads: it is the one that reads the request, writes the folders and shows how far things are, as it
does with workers. The others follow: they wait to be told a trial, train it with the first, and wait again.
"""

from __future__ import annotations

import signal
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headtohead.atomic_io import write_json
from headtohead.config import experiment
from headtohead.errors import DivergedError, HeadToHeadError, PeerLostError, RequestError
from headtohead.execution.worker import PROGRESS_INTERVAL_SECONDS
from headtohead.execution.worker_pool import Job, MessageQueue, WorkerPool
from headtohead.experiment.run_folder import lock_folder
from headtohead.training import checkpoints
from headtohead.training.distributed import DataParallelProcess, join_process_group, leave_process_group
from headtohead.training.loop import TrainingProgress
from headtohead.trials.trial import run_trial

BACKEND_NAME = "torchrun"
RESUME_HINT = "what was saved is whole: start it again with --resume"
TORCHRUN_VARIABLE = "TORCHELASTIC_RUN_ID"
"""torchrun tells its processes so that it started them"""


def read_ranks(environment: Mapping[str, str]) -> tuple[int, int, int]:
    """Number of this process, how many there are, number on this machine."""
    if TORCHRUN_VARIABLE not in environment:
        return 0, 1, 0
    return int(environment["RANK"]), int(environment["WORLD_SIZE"]), int(environment["LOCAL_RANK"])


def run_follower(environment: Mapping[str, str]) -> None:
    """Train what the first process says, until it says that there is no more."""
    ranks = join_process_group(*read_ranks(environment))
    _install_sigterm_handler(ranks)
    with _add_resume_hint():
        while (asked := ranks.say()) is not None:
            try:
                run_trial(
                    experiment.Trial.model_validate(asked["trial"]),
                    Path(asked["folder"]),
                    device=asked["device"],
                    ranks=ranks,
                )
            except DivergedError:
                pass  # on all processes at once; the first one tells
    leave_process_group()


@contextmanager
def open_leader(environment: Mapping[str, str]) -> Iterator[TorchrunLeader]:
    """Lead the others through the trials; then they are sent home."""
    ranks = join_process_group(*read_ranks(environment))
    _install_sigterm_handler(ranks)
    leader = TorchrunLeader(ranks)
    try:
        with _add_resume_hint():
            yield leader
    except BaseException as error:
        leader.end()
        if isinstance(error, HeadToHeadError) and leader.is_idle:
            ranks.say(None)
        raise
    with _add_resume_hint():
        ranks.say(None)
    leave_process_group()


class TorchrunLeader:
    """The only one to take jobs: the first process, with a thread that trains together with the others."""

    def __init__(self, ranks: DataParallelProcess) -> None:
        self.ranks = ranks
        self.job: Job | None = None
        self.is_ready = True
        self.exit_reason = ""
        self._fatal_error: HeadToHeadError | None = None
        self._thread: threading.Thread | None = None

    @property
    def is_idle(self) -> bool:
        return self._thread is None or not (self._thread.is_alive() or self._fatal_error)

    @property
    def crew(self) -> WorkerPool:
        return WorkerPool(1, self._spawn)

    def _spawn(self, message_queue: MessageQueue, environment: dict[str, str], log_path: Path) -> TorchrunLeader:
        self._message_queue = message_queue
        return self

    def take(self, job: Job, device: str) -> None:
        if self._fatal_error is not None:
            raise self._fatal_error
        self.job = job
        job.state, job.began = "running", time.monotonic()
        self._thread = threading.Thread(target=self._run_job, args=(job, device), daemon=True)
        self._thread.start()

    def _run_job(self, job: Job, device: str) -> None:
        last = 0.0

        def tell(progress: TrainingProgress) -> None:
            nonlocal last
            if time.monotonic() - last > PROGRESS_INTERVAL_SECONDS or progress.step == progress.steps:
                last = time.monotonic()
                self._say(
                    event="progress", step=progress.step, steps=progress.steps, loss=progress.loss, rate=progress.rate
                )

        try:
            self.ranks.say(
                {"trial": job.trial.model_dump(mode="json"), "folder": str(job.folder.absolute()), "device": device}
            )
            result = run_trial(job.trial, job.folder, device=device, on_progress=tell, ranks=self.ranks)
            self._say(event="finished", result={k: result[k] for k in ("scores", "trained")})
        except DivergedError as error:
            self._report_failure(job, error)
        except PeerLostError as error:
            self._fatal_error = error
            self.exit_reason = str(error)
            self._message_queue.put((self, None))
        except Exception as error:  # noqa: BLE001  # the others wait in the middle of a step: nothing can go on
            self._fatal_error = error if isinstance(error, HeadToHeadError) else PeerLostError(f"process 1: {error}")
            if self._fatal_error is not error:
                traceback.print_exc()
            self._report_failure(job, error)

    def _report_failure(self, job: Job, error: Exception) -> None:
        message = str(error) if isinstance(error, HeadToHeadError) else f"{type(error).__name__}: {error}"
        try:
            write_json(job.folder / "failure.json", {"message": message, "kind": type(error).__name__})
        except (HeadToHeadError, OSError):
            pass  # what could not be written is said on the line below
        self._say(event="failed", message=message, wrong_request=getattr(error, "exit_code", 1) == 2)

    def _say(self, **message: Any) -> None:
        self._message_queue.put((self, message))

    def end(self) -> None:
        """Stop in the middle of whatever is under way; the checkpoint is on disk."""
        if self._thread is not None and self._thread.is_alive() and threading.current_thread() is not self._thread:
            self.ranks.stopped.set()
            self._thread.join(timeout=5)

    def close(self) -> None:
        """Nothing is to be given back."""


def _install_sigterm_handler(ranks: DataParallelProcess) -> None:
    """torchrun ends those that are left when one has died, or when it is told to stop itself."""

    def end(number: int, frame: Any) -> None:
        raise PeerLostError(f"process {ranks.rank + 1} of {ranks.size} was ended by torchrun, as another one was")

    signal.signal(signal.SIGTERM, end)


@contextmanager
def _add_resume_hint() -> Iterator[None]:
    try:
        yield
    except PeerLostError as error:
        raise PeerLostError(f"{error}; {RESUME_HINT}") from error


def reshard_runs(folder: Path, num_processes: int) -> list[Path]:
    """Let so many processes go on with every run of an experiment that is not finished."""
    if not folder.is_dir():
        return []
    with lock_folder(folder):
        runs = [found.parent for found in sorted(folder.glob("**/seed-*/trial.json"))]
        return [run for run in runs if checkpoints.reshard(run, num_processes)]


def check_torchrun_options(backend: str | None, num_workers: int | None) -> None:
    """What means nothing where all processes train one trial together."""
    given = "--backend" if backend else "--workers" if num_workers else None
    if given:
        raise RequestError(f"{given}: under torchrun all processes train one trial together; leave it out")
