"""Run an experiment under torchrun: all processes train one trial together, then the next.

Rank 0 (the leader) handles the request, the folders and the progress display, as it does with workers. All other ranks
(followers) wait for a trial, train it together with the leader, and wait again.
"""

from __future__ import annotations

import signal
import threading
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headtohead.config import experiment
from headtohead.errors import DivergedError, HeadToHeadError, PeerLostError, RequestError
from headtohead.execution.worker import report_failure, throttle_progress
from headtohead.execution.worker_pool import Job, MessageQueue, WorkerPool
from headtohead.execution.worker_process import TORCHRUN_VARIABLE
from headtohead.experiment.run_folder import lock_folder
from headtohead.training import checkpoints
from headtohead.training.parallel.data_parallel import DataParallelProcess, join_process_group, leave_process_group
from headtohead.trials.trial import run_trial

RESUME_HINT = "checkpoints are intact: run the same command with --resume"
JOIN_TIMEOUT_SECONDS = 5.0


def read_ranks(environment: Mapping[str, str]) -> tuple[int, int, int]:
    """Return the rank, world size and local rank; (0, 1, 0) without torchrun."""
    if TORCHRUN_VARIABLE not in environment:
        return 0, 1, 0
    return int(environment["RANK"]), int(environment["WORLD_SIZE"]), int(environment["LOCAL_RANK"])


def run_follower(environment: Mapping[str, str]) -> None:
    """Train the trials that the leader of a torchrun job broadcasts, until it broadcasts None."""
    ranks = join_process_group(*read_ranks(environment))
    _install_sigterm_handler(ranks)
    with _add_resume_hint():
        while (request := ranks.broadcast_json()) is not None:
            trial = experiment.Trial.model_validate(request["trial"])
            try:
                run_trial(trial, Path(request["folder"]), device=request["device"], ranks=ranks)
            except DivergedError:
                pass  # raised in all processes at once; the leader reports it
    leave_process_group()


@contextmanager
def open_leader(environment: Mapping[str, str]) -> Iterator[TorchrunLeader]:
    """Yield the leader of the process group; release the followers at the end."""
    ranks = join_process_group(*read_ranks(environment))
    _install_sigterm_handler(ranks)
    leader = TorchrunLeader(ranks)
    try:
        with _add_resume_hint():
            yield leader
    except BaseException as error:
        leader.end()
        if isinstance(error, HeadToHeadError) and leader.is_idle:
            ranks.broadcast_json(None)
        raise
    with _add_resume_hint():
        ranks.broadcast_json(None)
    leave_process_group()


class TorchrunLeader:
    """The only worker in its pool: a thread in rank 0 that trains together with the followers."""

    def __init__(self, ranks: DataParallelProcess) -> None:
        """Prepare to train jobs together with the followers of the same torchrun job."""
        self.ranks = ranks
        self.job: Job | None = None
        self.is_ready = True
        self.exit_reason = ""
        self._fatal_error: HeadToHeadError | None = None
        self._thread: threading.Thread | None = None

    @property
    def is_idle(self) -> bool:
        """Whether no trial is running and the followers wait for a request."""
        return self._thread is None or not (self._thread.is_alive() or self._fatal_error)

    @property
    def pool(self) -> WorkerPool:
        """A pool that consists of this worker only."""
        return WorkerPool(1, self._spawn)

    def _spawn(self, message_queue: MessageQueue, environment: dict[str, str], log_path: Path) -> TorchrunLeader:
        self._message_queue = message_queue
        return self

    def start_job(self, job: Job, device: str) -> None:
        """Train a job in a thread, together with the followers."""
        if self._fatal_error is not None:
            raise self._fatal_error
        self.job = job
        job.start()
        self._thread = threading.Thread(target=self._run_job, args=(job, device), daemon=True)
        self._thread.start()

    def _run_job(self, job: Job, device: str) -> None:
        """Broadcast a trial to the followers, train it and report the outcome."""
        trial, folder = job.trial.model_dump(mode="json"), str(job.folder.absolute())
        try:
            self.ranks.broadcast_json({"trial": trial, "folder": folder, "device": device})
            on_progress = throttle_progress(self._send)
            result = run_trial(job.trial, job.folder, device=device, on_progress=on_progress, ranks=self.ranks)
            assert result is not None  # the leader is the main process
            result_json = result.model_dump(mode="json", include={"scores", "training"})
            self._send({"event": "finished", "result": result_json})
        except DivergedError as error:
            self._send(report_failure(error, job.folder))
        except PeerLostError as error:
            self._fatal_error = error
            self.exit_reason = str(error)
            self._message_queue.put((self, None))
        except Exception as error:  # noqa: BLE001  # followers wait in the middle of a step: the experiment cannot continue
            self._fatal_error = error if isinstance(error, HeadToHeadError) else PeerLostError(f"process 1: {error}")
            if self._fatal_error is not error:
                traceback.print_exc()
            self._send(report_failure(error, job.folder))

    def _send(self, message: dict[str, Any]) -> None:
        self._message_queue.put((self, message))

    def end(self) -> None:
        """Stop a running trial at its next collective operation. Its last checkpoint is on disk."""
        if self._thread is not None and self._thread.is_alive() and threading.current_thread() is not self._thread:
            self.ranks.stop_event.set()
            self._thread.join(JOIN_TIMEOUT_SECONDS)

    def close(self) -> None:
        """Do nothing: there is no process to release."""


def _install_sigterm_handler(ranks: DataParallelProcess) -> None:
    """Turn SIGTERM into PeerLostError: torchrun sends it when another process has died, or when it is stopped."""

    def raise_peer_lost(signal_number: int, frame: Any) -> None:
        raise PeerLostError(f"process {ranks.rank + 1} of {ranks.world_size} was terminated by torchrun")

    signal.signal(signal.SIGTERM, raise_peer_lost)


@contextmanager
def _add_resume_hint() -> Iterator[None]:
    """Append a hint about --resume to any PeerLostError of a torchrun process."""
    try:
        yield
    except PeerLostError as error:
        raise PeerLostError(f"{error}; {RESUME_HINT}") from error


def reshard_unfinished_runs(folder: Path, num_processes: int) -> list[Path]:
    """Rewrite the checkpoints of an experiment's unfinished runs for a different number of torchrun processes.

    Return the run folders that changed.
    """
    if not folder.is_dir():
        return []
    with lock_folder(folder):
        run_folders = [path.parent for path in sorted(folder.glob("**/seed-*/trial.json"))]
        return [run_folder for run_folder in run_folders if checkpoints.reshard_checkpoint(run_folder, num_processes)]


def check_torchrun_options(backend: str | None, num_workers: int | None) -> None:
    """Raise RequestError for options that are meaningless under torchrun."""
    option = "--backend" if backend else "--workers" if num_workers else None
    if option:
        raise RequestError(f"{option}: cannot be used under torchrun, where all processes train one trial together")
