"""Share the GPUs of this machine between local workers.

Workers are spread evenly over the GPUs; each sees one GPU. If the number of workers is given, all of them start at
once. Otherwise every GPU starts with one worker. Workers are added as long as the trials fit into the GPUs' memory and
the last addition raised the total throughput by MIN_THROUGHPUT_GAIN.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from headtohead.execution.local_worker import LocalWorker
from headtohead.execution.worker_pool import Job, MessageQueue, WorkerPool, get_training_bytes
from headtohead.training.hardware.probe_process import run_probe_code

MIN_THROUGHPUT_GAIN = 1.1
"""ratio of the throughputs after and before an addition"""
MIN_MEASURED_STEPS = 50
"""steps of a trial before its speed counts: the first ones load kernels"""
CUDA_CONTEXT_BYTES = 600 * 10**6
"""GPU memory that each process occupies in addition to its tensors"""
PROBE_TIMEOUT_SECONDS = 120.0
# Run in a child process, because a process that queries CUDA occupies memory of each GPU until it ends
_LIST_GPUS_CODE = """
import json, torch
print(json.dumps({"free_bytes": [torch.cuda.mem_get_info(i)[0] for i in range(torch.cuda.device_count())]}))
"""


@dataclass(frozen=True)
class Gpu:
    """A GPU, by its name in CUDA_VISIBLE_DEVICES."""

    name: str
    free_bytes: int


def list_gpus() -> list[Gpu]:
    """Return the GPUs that processes started now can use; an empty list without CUDA."""
    probe = run_probe_code(_LIST_GPUS_CODE, timeout_seconds=PROBE_TIMEOUT_SECONDS)
    free_bytes = probe.output["free_bytes"] if probe.output else []
    visible_devices = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpu_names = visible_devices.split(",") if visible_devices else map(str, range(len(free_bytes)))
    return [Gpu(name, num_bytes) for name, num_bytes in zip(gpu_names, free_bytes, strict=False)]


class GpuWorker(LocalWorker):
    """A local worker that sees one GPU. `workers_by_gpu` counts the running workers of each GPU."""

    def __init__(
        self,
        gpu: Gpu,
        workers_by_gpu: Counter[str],
        message_queue: MessageQueue,
        environment: dict[str, str],
        log_path: Path,
    ) -> None:
        super().__init__(message_queue, {**environment, "CUDA_VISIBLE_DEVICES": gpu.name}, log_path)
        self.gpu, self._workers_by_gpu = gpu, workers_by_gpu
        self._is_counted = True
        workers_by_gpu[gpu.name] += 1

    def close(self) -> None:
        super().close()
        if self._is_counted:
            self._workers_by_gpu[self.gpu.name] -= 1
            self._is_counted = False


@dataclass
class GpuSharing:
    """Choose how many workers share the GPUs: more of them as long as that raises the throughput."""

    gpus: Sequence[Gpu]
    max_workers: int
    size: int = field(init=False)
    throughput: float = field(default=0.0, init=False)
    """FLOPs (or steps) per second of all trials together before the last addition"""

    def __post_init__(self) -> None:
        self.size = len(self.gpus)

    def compute_size(self, jobs: Sequence[Job]) -> int:
        """Return the number of workers, given the progress of all jobs."""
        running_jobs = [job for job in jobs if job.state == "running"]
        has_room = self.size + len(self.gpus) <= min(self.max_workers, self._count_fitting_trials(jobs))
        is_measured = len(running_jobs) == self.size and all(job.step >= MIN_MEASURED_STEPS for job in running_jobs)
        if has_room and is_measured:
            self._add_workers(sum(job.steps_per_second * _get_step_flops(job) for job in running_jobs))
        return self.size

    def _count_fitting_trials(self, jobs: Sequence[Job]) -> int:
        """Return how many trials fit into the memory of all GPUs."""
        bytes_per_trial = CUDA_CONTEXT_BYTES + get_training_bytes(jobs)
        return sum(gpu.free_bytes // bytes_per_trial for gpu in self.gpus)

    def _add_workers(self, throughput: float) -> None:
        """Add a worker per GPU if the last addition raised the throughput; otherwise never add workers again."""
        if throughput < MIN_THROUGHPUT_GAIN * self.throughput:
            self.max_workers = self.size
        else:
            self.throughput, self.size = throughput, self.size + len(self.gpus)


def _get_step_flops(job: Job) -> float:
    """Return a weight for the steps of trials with models of different sizes: FLOPs per token, or 1 if unknown."""
    return float((job.model_cost and job.model_cost.flops_per_token) or 1)


def build_gpu_pool(gpus: Sequence[Gpu], num_workers: int | None, num_cores: int) -> WorkerPool:
    """Return a pool of local workers that share the GPUs: `num_workers`, or by default at most one per core."""
    workers_by_gpu: Counter[str] = Counter({gpu.name: 0 for gpu in gpus})

    def spawn(message_queue: MessageQueue, environment: dict[str, str], log_path: Path) -> GpuWorker:
        gpu = min(gpus, key=lambda candidate: workers_by_gpu[candidate.name])
        return GpuWorker(gpu, workers_by_gpu, message_queue, environment, log_path)

    if num_workers is not None:
        return WorkerPool(num_workers, spawn, can_generate_texts=True)
    sharing = GpuSharing(gpus, max(num_cores, len(gpus)))
    return WorkerPool(sharing.max_workers, spawn, can_generate_texts=True, compute_size=sharing.compute_size)
