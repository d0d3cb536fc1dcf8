"""GPU sharing, as far as it can be tested without a GPU: placement and number of workers."""

import queue
import time
from pathlib import Path
from typing import Any

import pytest

from headtohead.config.trial_settings import build_trial
from headtohead.execution import gpu_pool
from headtohead.execution.gpu_pool import CUDA_CONTEXT_BYTES, Gpu, GpuSharing, build_gpu_pool
from headtohead.execution.local_worker import build_local_pool, get_default_num_workers
from headtohead.execution.worker_pool import Job
from headtohead.model_cost import ModelCost

GIGABYTE = 10**9
GPUS = [Gpu("0", 8 * GIGABYTE), Gpu("3", 8 * GIGABYTE)]


@pytest.fixture
def build_jobs(small: Any, tmp_path: Path) -> Any:
    def build(
        num_running: int, *, steps_per_second: float = 10.0, step: int = 100, training_bytes: int = GIGABYTE
    ) -> list[Job]:
        trial = build_trial(small(), "baseline", 0)
        cost = ModelCost(parameters=1, flops_per_token=100, weights_bytes=1, training_bytes=training_bytes)
        jobs = [Job(trial, tmp_path / str(i), model_cost=cost) for i in range(num_running + 20)]
        for job in jobs[:num_running]:
            job.state, job.steps_per_second, job.step = "running", steps_per_second, step
        return jobs

    return build


def test_workers_are_spread_over_the_gpus_and_see_one_each(tmp_path: Path) -> None:
    pool = build_gpu_pool(GPUS, None, num_cores=8)
    messages: Any = queue.Queue()
    workers = [pool.spawn(messages, {"OTHER": "kept"}, tmp_path / "log") for _ in range(3)]
    try:
        assert [read_environment(worker)["CUDA_VISIBLE_DEVICES"] for worker in workers] == ["0", "3", "0"]
        assert all(read_environment(worker)["OTHER"] == "kept" for worker in workers)
        workers[0].end()
        workers[0].close()  # a second time counts nothing
        workers[2].end()
        workers.append(pool.spawn(messages, {}, tmp_path / "log"))
        assert read_environment(workers[-1])["CUDA_VISIBLE_DEVICES"] == "0"
    finally:
        for worker in workers:
            worker.end()


def read_environment(worker: Any) -> dict[str, str]:
    path = Path(f"/proc/{worker._process.process.pid}/environ")
    deadline = time.monotonic() + 30
    while not (content := path.read_bytes()) and time.monotonic() < deadline:
        time.sleep(0.01)  # empty for a moment after exec
    return dict(entry.decode().split("=", 1) for entry in content.split(b"\0") if entry)


def test_a_worker_per_gpu_is_added_while_the_speed_rises(build_jobs: Any) -> None:
    sharing = GpuSharing(GPUS, max_workers=16)
    assert sharing.compute_size([]) == 2
    assert sharing.compute_size(build_jobs(2, step=3)) == 2  # not measured yet
    assert sharing.compute_size(build_jobs(2, steps_per_second=10)) == 4
    assert sharing.compute_size(build_jobs(3, steps_per_second=10)) == 4  # the fourth is not running yet
    assert sharing.compute_size(build_jobs(4, steps_per_second=8)) == 6  # 32 instead of 20 steps/s
    assert sharing.compute_size(build_jobs(6, steps_per_second=5.5)) == 6  # 33 instead of 32
    assert sharing.compute_size(build_jobs(6, steps_per_second=50)) == 6  # settled


def test_gpus_get_no_more_trials_than_fit_into_their_memory(build_jobs: Any) -> None:
    sharing = GpuSharing(GPUS, max_workers=16)
    large = 4 * GIGABYTE  # one fits on each GPU beside the context, two do not
    assert CUDA_CONTEXT_BYTES + large <= 8 * GIGABYTE < 2 * (CUDA_CONTEXT_BYTES + large)
    assert sharing.compute_size(build_jobs(2, training_bytes=large)) == 2
    assert sharing.compute_size(build_jobs(2, training_bytes=GIGABYTE)) == 4


def test_a_requested_number_of_workers_is_started_at_once(build_jobs: Any) -> None:
    assert build_gpu_pool(GPUS, 5, num_cores=2).get_size(build_jobs(0)) == 5
    assert build_gpu_pool(GPUS, None, num_cores=1).get_size(build_jobs(0)) == 2


def test_visible_devices_name_the_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_pool, "_LIST_GPUS_CODE", "print('{\"free_bytes\": [5, 6]}')")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert gpu_pool.list_gpus() == [Gpu("0", 5), Gpu("1", 6)]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,GPU-abc")
    assert gpu_pool.list_gpus() == [Gpu("2", 5), Gpu("GPU-abc", 6)]
    monkeypatch.setattr(gpu_pool, "_LIST_GPUS_CODE", "raise SystemExit(1)")
    assert gpu_pool.list_gpus() == []


def test_default_workers_fit_into_memory(build_jobs: Any) -> None:
    assert get_default_num_workers(training_bytes=10**15) == 1
    pool = build_local_pool()
    assert pool.get_size(build_jobs(0, training_bytes=10**15)) == 1
    assert build_local_pool(3).get_size(build_jobs(0, training_bytes=10**15)) == 3
