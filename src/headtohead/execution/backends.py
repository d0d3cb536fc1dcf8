"""Choose where trials run: worker processes on this machine, a named backend, or an existing pool."""

from __future__ import annotations

from collections.abc import Callable

from headtohead.errors import RequestError, format_suggestion
from headtohead.execution.gpu_pool import build_gpu_pool, list_gpus
from headtohead.execution.local_worker import build_local_pool
from headtohead.execution.ray.backend import build_ray_pool
from headtohead.execution.worker_pool import WorkerPool
from headtohead.training.hardware.devices import count_available_cores, select_device

BuildPool = Callable[[str, int | None, str], WorkerPool]
"""maps the --backend value, the number of workers and the device to a pool"""
BACKENDS: dict[str, BuildPool] = {"ray": build_ray_pool}
"""keyed by the part of --backend before the first colon"""


def build_backend_pool(backend: str | WorkerPool | None, num_workers: int | None, device: str) -> WorkerPool:
    """Return the workers of an execution backend: local processes, a named backend, or an existing pool.

    Args:
        backend: None for local workers, the name of a backend, or an existing pool, which is returned.
        num_workers: Number of workers; chosen automatically if None.
        device: Device to train on.
    """
    if isinstance(backend, WorkerPool):
        return backend
    if backend is None:
        gpus = list_gpus() if select_device(device).type == "cuda" else []
        return build_gpu_pool(gpus, num_workers, count_available_cores()) if gpus else build_local_pool(num_workers)
    name = backend.partition(":")[0]
    if name not in BACKENDS:
        hint = format_suggestion(name, BACKENDS)
        raise RequestError(f"--backend: unknown backend {backend!r}{hint} (allowed: {', '.join(BACKENDS)})")
    return BACKENDS[name](backend, num_workers, device)
