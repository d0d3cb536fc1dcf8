"""Trials on many machines: places in a Ray cluster instead of worker processes here.

The package, the corpus, the user's own files, weights in folders, a teacher's work and the last checkpoint travel to
the machine; progress, checkpoints and the run folder come back. No disk is shared, and whoever reads the run folder
cannot tell where it was trained. When a machine dies, its trials go on elsewhere from the last checkpoint that came
back.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import threading
import time
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

from headtohead.config import experiment, model, pretrained
from headtohead.distillation.teacher_cache import get_cache_root
from headtohead.errors import MissingExtraError, RequestError
from headtohead.execution.artifacts import Artifact, compute_digest, pack_path, pack_run_folder, unpack_run_folder
from headtohead.execution.ray_node import TrialActor
from headtohead.execution.worker import format_error
from headtohead.execution.worker_pool import SINGLE_THREAD_ENVIRONMENT, Job, MessageQueue

BACKEND_NAME = "ray"


class RayWorker:
    """A place in the cluster, and a thread that passes on what is said there."""

    def __init__(self, cluster: RayCluster, message_queue: MessageQueue, environment: dict[str, str]) -> None:
        self.job: Job | None = None
        self.is_ready = False
        self.exit_reason = "is gone"
        self._cluster, self._message_queue = cluster, message_queue
        self._actor = cluster.place({**SINGLE_THREAD_ENVIRONMENT, **environment})

    def take(self, job: Job, device: str) -> None:
        self.job = job
        job.state, job.began = "running", time.monotonic()
        threading.Thread(target=self._stream_job, args=(job, device), daemon=True).start()

    def _stream_job(self, job: Job, device: str) -> None:
        import ray

        try:
            parcels, places, kept = self._cluster.upload_artifacts(job.trial)
            asked = {**job.asked(device), "places": places, "kept": kept}
            if not job.texts:
                job.folder.mkdir(parents=True, exist_ok=True)
            packed = b"" if job.texts else pack_run_folder(job.folder)
            stream = self._actor.run.options(num_returns="streaming").remote(asked, parcels, packed)
            for said in stream:
                self._forward_message(job, ray.get(said))
        except ray.exceptions.RayError as error:
            if not job.is_over:
                self.exit_reason = f"was lost ({type(error).__name__})"
                self._message_queue.put((self, {"event": "moved"}))
        except Exception as error:  # noqa: BLE001  # whatever it is: nobody may wait for this trial for ever
            said = {"message": format_error(error, job.folder), "wrong_request": getattr(error, "exit_code", 1) == 2}
            self._message_queue.put((self, {"event": "failed", **said}))

    def _forward_message(self, job: Job, message: dict[str, Any]) -> None:
        run = message.pop("run", None)
        if run is not None and job is self.job:
            unpack_run_folder(run, job.folder)
        if message["event"] == "gone":
            self.exit_reason = message["how"] + (f" (last words: {message['words']})" if message["words"] else "")
            self._message_queue.put((self, None))
        elif message["event"] != "checkpoint":
            self._message_queue.put((self, message))

    def end(self) -> None:
        self.close()

    def close(self) -> None:
        """Give the place back."""
        import ray

        ray.kill(self._actor)


class RayCluster:
    """A Ray cluster, and what has been put into it for trials to fetch."""

    def __init__(self, device: str) -> None:
        import ray

        self.device = device
        self._actor_class = ray.remote(TrialActor)
        self._uploaded_artifacts: dict[Path, Artifact] = {}
        self._lock = threading.Lock()

    @property
    def has_gpus(self) -> bool:
        return self.device == "cuda" or (self.device == "auto" and self._count_resource("GPU") > 0)

    def room(self) -> int:
        """Trials at once: one a GPU where these are used, else one a core."""
        return max(1, self._count_resource("GPU" if self.has_gpus else "CPU"))

    def _count_resource(self, name: str) -> int:
        import ray

        return int(ray.cluster_resources().get(name, 0))

    def place(self, environment: dict[str, str]) -> Any:
        needs = {"num_cpus": 1, "num_gpus": 1} if self.has_gpus else {"num_cpus": 1}
        return self._actor_class.options(**needs).remote(environment)

    def hire(self, message_queue: MessageQueue, environment: dict[str, str], log_path: Path) -> RayWorker:
        return RayWorker(self, message_queue, environment)

    def upload_artifacts(self, trial: experiment.Trial) -> tuple[list[Artifact], dict[str, int], dict[str, int]]:
        """What the trial needs that lies here, put into the cluster once; which path each parcel stands for; and which
        folder of a teacher's work."""
        import ray

        found: list[Artifact] = []
        with self._lock:
            named, kept = list_required_paths(trial), list_teacher_caches(trial)
            for path in [*named, *kept]:
                if path not in self._uploaded_artifacts:
                    self._uploaded_artifacts[path] = Artifact(compute_digest(path), path.name, ray.put(pack_path(path)))
                found.append(self._uploaded_artifacts[path])
        places = {str(path): at for at, path in enumerate(named)}
        return found, places, {str(path.relative_to(get_cache_root())): len(named) + at for at, path in enumerate(kept)}


def list_required_paths(trial: experiment.Trial) -> list[Path]:
    """The files and folders of this machine that a trial names."""
    named = [trial.data.source, *trial.use]
    named += [str(value) for key, value in trial.data.tokens.options.items() if key in ("path", "model")]
    if isinstance(trial.model, model.CustomModelConfig):
        named.append(trial.model.module.rpartition(":")[0])
    if isinstance(trial.model, pretrained.PretrainedModelConfig):
        named.append(trial.model.pretrained)
    if trial.teacher is not None and isinstance(trial.teacher.model, str):
        named.append(trial.teacher.model)
    paths = {Path(name) for name in named if Path(name).is_absolute() and Path(name).exists()}
    return sorted(paths)


def list_teacher_caches(trial: experiment.Trial) -> list[Path]:
    """The folders of this machine's cache that hold what the trial's teacher has done."""
    if trial.teacher is None:
        return []
    from headtohead.distillation.teacher import list_cache_folders
    from headtohead.trials.dataset import prepare_dataset
    from headtohead.trials.trial import run_trial

    return list_cache_folders(trial, prepare_dataset(trial.data, trial.task), run_trial)


def connect_to_cluster(on: str, device: str) -> RayCluster:
    """Connect to the cluster given by `--backend`.

    "ray" uses RAY_ADDRESS or a local cluster, which is started if there is none; "ray:HOST:PORT" and
    "ray://HOST:PORT" name another one.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a cluster of ours reports to nobody
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError("ray", "cluster", "--backend ray") from error
    kind, _, rest = on.partition(":")
    if kind != BACKEND_NAME:
        raise RequestError(f"--backend: {on!r} is not known (allowed: ray, ray:HOST:PORT, ray://HOST:PORT)")
    if not ray.is_initialized():
        address = on if rest.startswith("//") else rest or None
        try:
            ray.init(
                address=address,
                runtime_env={"working_dir": str(_build_code_folder())},
                log_to_driver=False,
                logging_level=logging.ERROR,
                **({} if address or _has_local_cluster() else {"include_dashboard": False}),
            )
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise RequestError(f"--backend: no cluster can be used at {address or 'this machine'}: {error}") from None
    return RayCluster(device)


def _has_local_cluster() -> bool:
    """Is there a cluster that Ray would join by itself?"""
    return "RAY_ADDRESS" in os.environ or Path(tempfile.gettempdir(), "ray", "ray_current_cluster").exists()


@lru_cache(maxsize=1)
def _build_code_folder() -> Path:
    """This package as a folder that can be sent, with its version beside it as an installation has it."""
    package, version = Path(__file__).parents[1], metadata.version("headtohead")
    folder = Path(tempfile.mkdtemp(prefix="h2h-code-"))
    shutil.copytree(package, folder / "headtohead", ignore=shutil.ignore_patterns("__pycache__"))
    about = folder / f"headtohead-{version}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: headtohead\nVersion: {version}\n")
    return folder
