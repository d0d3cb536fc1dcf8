"""A worker that is started before its parent imports torch is used by the pool, or ended."""

import sys
from dataclasses import replace
from queue import Queue

import pytest

from headtohead.child_process import ChildProcess
from headtohead.execution.local_worker import build_local_pool, prestart_local_workers
from headtohead.execution.worker_process import TORCHRUN_VARIABLE, start_first_worker


@pytest.fixture(autouse=True)
def without_torch(monkeypatch):
    """Let this process look like one that has not imported torch."""
    monkeypatch.delitem(sys.modules, "torch")


def has_ended(process: ChildProcess) -> bool:
    return process.process.returncode is not None


def test_the_first_worker_of_a_pool_is_the_process_started_early(tmp_path):
    with start_first_worker(is_needed=True) as processes:
        (process,) = processes
        with prestart_local_workers(build_local_pool(2), 2, {}, processes) as pool:
            assert processes == []
            workers = [pool.spawn(Queue(), {}, tmp_path / "log") for _ in range(2)]
            assert workers[0]._process is process
            assert workers[1]._process is not process
            assert process.is_running
            for worker in workers:
                worker.end()


def test_a_process_that_no_pool_takes_is_ended():
    with start_first_worker(is_needed=True) as processes:
        (process,) = processes
    assert has_ended(process)


@pytest.mark.parametrize(("size", "environment"), [(1, {"X": "1"}), (0, {})])
def test_trials_that_need_environment_variables_or_no_worker_do_not_use_it(size, environment):
    with start_first_worker(is_needed=True) as processes:
        (process,) = processes
        with prestart_local_workers(build_local_pool(1), size, environment, processes):
            assert has_ended(process) == bool(environment)
    assert has_ended(process)


def test_another_kind_of_pool_does_not_use_it():
    with start_first_worker(is_needed=True) as processes:
        (process,) = processes
        pool = replace(build_local_pool(1), spawn=lambda *arguments: None)
        with prestart_local_workers(pool, 1, {}, processes) as same_pool:
            assert same_pool is pool
            assert has_ended(process)


def test_no_worker_is_started_early_if_torch_is_imported_or_under_torchrun(monkeypatch):
    with start_first_worker(is_needed=False) as processes:
        assert processes == []
    monkeypatch.setenv(TORCHRUN_VARIABLE, "1")
    with start_first_worker(is_needed=True) as processes:
        assert processes == []
    monkeypatch.delenv(TORCHRUN_VARIABLE)
    monkeypatch.setitem(sys.modules, "torch", None)
    with start_first_worker(is_needed=True) as processes:
        assert processes == []
