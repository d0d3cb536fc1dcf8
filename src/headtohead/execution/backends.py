"""Choose where trials run: worker processes on this machine, a Ray cluster, or a pool that exists already."""

from __future__ import annotations

from headtohead.execution.local_worker import build_local_pool
from headtohead.execution.ray.backend import connect_to_cluster
from headtohead.execution.worker_pool import WorkerPool


def build_worker_pool(backend: str | WorkerPool | None, num_workers: int | None, device: str) -> WorkerPool:
    """Return a pool of local workers, of workers in the Ray cluster that `backend` names, or `backend` itself."""
    if isinstance(backend, WorkerPool):
        return backend
    if backend is None:
        return build_local_pool(num_workers)
    cluster = connect_to_cluster(backend, device)
    return WorkerPool(num_workers or cluster.count_slots(), cluster.spawn, can_generate_texts=True)
