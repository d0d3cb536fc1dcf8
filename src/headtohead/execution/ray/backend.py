"""Run trials on a Ray cluster instead of in local worker processes.

The package, the corpus, the user's files, local weights, teacher outputs and the last checkpoint are sent to the remote
machine; progress, checkpoints and the run folder come back. No shared disk is needed, and a run folder does not depend
on where it was trained. When a machine dies, its trials continue elsewhere from the last checkpoint received.
"""

from __future__ import annotations

import logging
import math
import os
import shutil
import tempfile
import threading
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

from headtohead.child_process import SINGLE_THREAD_ENVIRONMENT
from headtohead.config import experiment
from headtohead.distillation.teacher_cache import get_cache_root
from headtohead.errors import MissingExtraError, RequestError
from headtohead.execution.ray.actor import TrialActor
from headtohead.execution.ray.artifacts import (
    Artifact,
    compute_artifact_digest,
    pack_file_or_folder,
    pack_run_folder,
    unpack_run_folder,
)
from headtohead.execution.ray.uploads import list_paths_to_upload, list_teacher_caches_to_upload
from headtohead.execution.worker import report_failure
from headtohead.execution.worker_pool import Job, MessageQueue, WorkerPool


class RayWorker:
    """An actor in the cluster, with one thread per job that forwards its messages."""

    def __init__(self, cluster: RayCluster, message_queue: MessageQueue, environment: dict[str, str]) -> None:
        """Start an actor on the Ray cluster, which will run trials."""
        self.job: Job | None = None
        self.is_ready = False
        self.exit_reason = "exited"
        self._cluster, self._message_queue = cluster, message_queue
        self._actor = cluster.create_actor({**SINGLE_THREAD_ENVIRONMENT, **environment})

    def start_job(self, job: Job, device: str) -> None:
        """Start a thread that runs the job on the actor."""
        self.job = job
        job.start()
        threading.Thread(target=self._forward_messages_of_job, args=(job, device), daemon=True).start()

    def _forward_messages_of_job(self, job: Job, device: str) -> None:
        """Run a job on the actor and forward its messages; ask for reassignment if the actor is lost."""
        import ray

        try:
            artifacts, paths, teacher_caches = self._cluster.upload_artifacts(job.trial)
            request = {**job.to_request(device), "paths": paths, "teacher_caches": teacher_caches}
            if not job.teacher_batches:
                job.folder.mkdir(parents=True, exist_ok=True)
            archive = b"" if job.teacher_batches else pack_run_folder(job.folder)
            message_refs = self._actor.run.options(num_returns="streaming").remote(request, artifacts, archive)
            for message_ref in message_refs:
                self._forward_message(job, ray.get(message_ref))
        except ray.exceptions.RayError as error:
            if not job.is_over:
                self.exit_reason = f"was lost ({type(error).__name__})"
                self._message_queue.put((self, {"event": "reassign"}))
        except Exception as error:  # noqa: BLE001  # the job must end after any error
            self._message_queue.put((self, report_failure(error, job.folder, is_trial=False)))

    def _forward_message(self, job: Job, message: dict[str, Any]) -> None:
        """Unpack a run folder that came with a message, then put the message into the queue."""
        archive = message.pop("run", None)
        if archive is not None and job is self.job:
            unpack_run_folder(archive, job.folder)
        if message["event"] == "exited":
            last_line = f" (last line of its log: {message['last_line']})" if message["last_line"] else ""
            self.exit_reason = message["reason"] + last_line
            self._message_queue.put((self, None))
        elif message["event"] != "checkpoint":
            self._message_queue.put((self, message))

    def end(self) -> None:
        """Stop the worker."""
        self.close()

    def close(self) -> None:
        """Kill the actor, which frees its CPU or GPU."""
        import ray

        ray.kill(self._actor)


class RayCluster:
    """A connected Ray cluster, with the artifacts uploaded to it."""

    def __init__(self, device: str) -> None:
        """Prepare to start actors on the Ray cluster that this process is connected to."""
        import ray

        self.device = device
        self.workers_per_gpu = 1
        self._actor_class = ray.remote(TrialActor)
        self._uploaded_artifacts: dict[Path, Artifact] = {}
        self._lock = threading.Lock()

    @property
    def has_gpus(self) -> bool:
        """Whether trials run on GPUs."""
        return self.device == "cuda" or (self.device == "auto" and self._count_resource("GPU") > 0)

    def count_slots(self) -> int:
        """Return the number of concurrent trials: one per GPU if GPUs are used, else one per core."""
        return max(1, self._count_resource("GPU" if self.has_gpus else "CPU"))

    def _count_resource(self, name: str) -> int:
        import ray

        return int(ray.cluster_resources().get(name, 0))

    def create_actor(self, environment: dict[str, str]) -> Any:
        """Create an actor that occupies one CPU, and its share of a GPU if GPUs are used."""
        resources = {"num_cpus": 1.0, "num_gpus": 1 / self.workers_per_gpu} if self.has_gpus else {"num_cpus": 1.0}
        return self._actor_class.options(**resources).remote(environment)

    def spawn(self, message_queue: MessageQueue, environment: dict[str, str], log_path: Path) -> RayWorker:
        """Start a worker; a `SpawnWorker` for a pool."""
        return RayWorker(self, message_queue, environment)

    def upload_artifacts(self, trial: experiment.Trial) -> tuple[list[Artifact], dict[str, int], dict[str, int]]:
        """Upload all files that a trial reads from this machine to the cluster, once.

        Returns the artifacts, the artifact index of each path that the trial names, and that of each teacher cache.
        """
        import ray

        artifacts: list[Artifact] = []
        with self._lock:
            paths, teacher_caches = list_paths_to_upload(trial), list_teacher_caches_to_upload(trial)
            for path in [*paths, *teacher_caches]:
                if path not in self._uploaded_artifacts:
                    archive_ref = ray.put(pack_file_or_folder(path))
                    self._uploaded_artifacts[path] = Artifact(compute_artifact_digest(path), path.name, archive_ref)
                artifacts.append(self._uploaded_artifacts[path])
        cache_names = [str(path.relative_to(get_cache_root())) for path in teacher_caches]
        path_indices = {str(path): index for index, path in enumerate(paths)}
        return artifacts, path_indices, {name: len(paths) + index for index, name in enumerate(cache_names)}


def build_ray_pool(address: str, num_workers: int | None, device: str) -> WorkerPool:
    """Return a pool of workers on the cluster selected by `--backend`, by default one per core or GPU.

    More workers than GPUs share them evenly.
    """
    cluster = connect_to_cluster(address, device)
    if cluster.has_gpus and num_workers is not None:
        cluster.workers_per_gpu = math.ceil(num_workers / cluster.count_slots())
    return WorkerPool(num_workers or cluster.count_slots(), cluster.spawn, can_generate_texts=True)


def connect_to_cluster(address: str, device: str) -> RayCluster:
    """Connect to the cluster selected by `--backend`.

    "ray" is the cluster that RAY_ADDRESS names or that runs on this machine; if there is none, a new one is started
    with this machine's cores. "ray:HOST:PORT" and "ray://HOST:PORT" name a remote cluster.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no telemetry
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError("ray", "cluster", "--backend ray") from error
    location = address.partition(":")[2]
    if not ray.is_initialized():
        ray_address = address if location.startswith("//") else location or None
        try:
            ray.init(
                address=ray_address,
                runtime_env={"working_dir": str(_build_code_folder())},
                log_to_driver=False,
                logging_level=logging.ERROR,
                **({} if ray_address or _has_local_cluster() else {"include_dashboard": False}),
            )
        except (ConnectionError, RuntimeError, ValueError) as error:
            cluster_name = ray_address or "this machine"
            raise RequestError(f"--backend: cannot connect to a Ray cluster at {cluster_name}: {error}") from None
    return RayCluster(device)


def _has_local_cluster() -> bool:
    """Return whether `ray.init` would join an existing cluster."""
    return "RAY_ADDRESS" in os.environ or Path(tempfile.gettempdir(), "ray", "ray_current_cluster").exists()


@lru_cache(maxsize=1)
def _build_code_folder() -> Path:
    """Return a folder with this package and its metadata, laid out like an installation, to send to the Ray cluster."""
    package, version = Path(__file__).parents[2], metadata.version("headtohead")
    folder = Path(tempfile.mkdtemp(prefix="h2h-code-"))
    shutil.copytree(package, folder / "headtohead", ignore=shutil.ignore_patterns("__pycache__"))
    dist_info = folder / f"headtohead-{version}.dist-info"
    dist_info.mkdir()
    (dist_info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: headtohead\nVersion: {version}\n")
    return folder
