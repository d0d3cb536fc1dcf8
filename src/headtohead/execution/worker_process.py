"""The process of a local worker. This module imports nothing slow, so that a worker can start before its parent imports
torch: both take seconds, and run at the same time.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from headtohead.child_process import SINGLE_THREAD_ENVIRONMENT, ChildProcess

WORKER_MODULE = "headtohead.execution.worker"
TORCHRUN_VARIABLE = "TORCHELASTIC_RUN_ID"
"""set by torchrun in the processes that it starts"""


def start_worker_process(environment: Mapping[str, str]) -> ChildProcess:
    """Start a worker with one thread."""
    return ChildProcess(WORKER_MODULE, environment={**SINGLE_THREAD_ENVIRONMENT, **environment})


@contextmanager
def start_first_worker(*, is_needed: bool) -> Iterator[list[ChildProcess]]:
    """Start a worker while this process imports torch. A pool takes it from the yielded list; otherwise it is ended.

    The list is empty if no worker is needed, if torch is imported already, and under torchrun, which has no workers.
    """
    is_early = is_needed and "torch" not in sys.modules and TORCHRUN_VARIABLE not in os.environ
    processes = [start_worker_process({})] if is_early else []
    try:
        yield processes
    finally:
        end_processes(processes)


def end_processes(processes: list[ChildProcess]) -> None:
    """Terminate worker processes that no pool has taken."""
    while processes:
        process = processes.pop()
        process.terminate()
        process.close_pipes()
