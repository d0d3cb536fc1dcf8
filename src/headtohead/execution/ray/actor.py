"""A Ray actor that occupies one CPU or GPU of a cluster and runs trials there in an ordinary worker process.

The actor runs on the remote machine and does not import torch. Artifacts are unpacked in that machine's cache, once per
content. A trial runs in a temporary folder; progress, each new checkpoint and finally the whole run folder are sent
back as messages.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from headtohead.cache_folders import get_cache_folder
from headtohead.child_process import ChildProcess
from headtohead.execution.ray.artifacts import (
    Artifact,
    list_checkpoints,
    pack_run_folder,
    restore_original_paths,
    unpack_cached,
    unpack_run_folder,
)
from headtohead.execution.worker_process import WORKER_MODULE

PROGRESS_INTERVAL_SECONDS = 1.0
"""longer than for local workers, because one process receives the progress of hundreds of workers"""
Message = dict[str, Any]


class TrialActor:
    """Run trials on a machine of the cluster, one after another, each as a stream of messages."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = dict(environment)
        self._worker: ChildProcess | None = None
        self._stderr_path = Path(tempfile.mkdtemp(prefix="h2h-node-")) / "stderr.log"

    def run(self, request: Message, artifacts: Sequence[Artifact], run_archive: bytes) -> Iterator[Message]:
        """Run one job and yield its messages.

        `request["paths"]` maps paths on the user's machine to indices into `artifacts`; `request["teacher_caches"]`
        maps names of teacher cache folders to indices.
        """
        local_paths = {path: str(self._unpack_artifact(artifacts[index])) for path, index in request["paths"].items()}
        for name, index in request["teacher_caches"].items():
            _link_unpacked_teacher_cache(get_cache_folder("teachers") / name, self._unpack_artifact(artifacts[index]))
        with tempfile.TemporaryDirectory(prefix="h2h-trial-") as scratch:
            folder = Path(scratch) / "run"
            folder.mkdir()
            if run_archive:
                unpack_run_folder(run_archive, folder)
            trial = json.loads(_localize_paths(json.dumps(request["trial"]), local_paths))
            yield from self._run_job({**request, "trial": trial, "folder": str(folder)}, folder, local_paths)

    def _run_job(self, request: Message, folder: Path, local_paths: Mapping[str, str]) -> Iterator[Message]:
        """Send a request to the worker process and yield its messages; new checkpoints come with the run folder."""
        if self._worker is None or not self._worker.is_running:
            self._worker = ChildProcess(WORKER_MODULE, environment=self._environment, log_path=self._stderr_path)
        worker = self._worker
        sent_checkpoints, last_progress_time = list_checkpoints(folder), 0.0
        original_paths = {local: original for original, local in local_paths.items()}
        worker.request(request)
        for message in worker.iter_messages():
            if message["event"] in ("finished", "failed"):
                restore_original_paths(folder, original_paths)
                yield message if request["teacher_batches"] else {**message, "run": pack_run_folder(folder)}
                return
            if (checkpoints := list_checkpoints(folder)) != sent_checkpoints:
                sent_checkpoints = checkpoints
                restore_original_paths(folder, original_paths)
                yield {"event": "checkpoint", "run": pack_run_folder(folder)}
            if message["event"] != "progress" or time.monotonic() - last_progress_time > PROGRESS_INTERVAL_SECONDS:
                last_progress_time = time.monotonic()
                yield message
        self._worker = None
        lines = self._stderr_path.read_text(errors="replace").strip().splitlines()
        yield {"event": "exited", "reason": worker.exit_reason, "last_line": lines[-1][:200] if lines else ""}

    def _unpack_artifact(self, artifact: Artifact) -> Path:
        """Return the path of an artifact in this machine's cache, after fetching and unpacking it if necessary."""
        import ray

        return unpack_cached(artifact, get_cache_folder("artifacts"), ray.get)


def _link_unpacked_teacher_cache(link_path: Path, target: Path) -> None:
    """Link a teacher cache that the actor has unpacked to where trials on this machine look for it.

    A folder that this machine wrote itself is not replaced.
    """
    link_path.parent.mkdir(parents=True, exist_ok=True)
    if link_path.is_symlink():
        link_path.unlink(missing_ok=True)
    with contextlib.suppress(FileExistsError):
        link_path.symlink_to(target)


def _localize_paths(trial_json: str, local_paths: Mapping[str, str]) -> str:
    """Replace the user's paths in a trial's settings with those of the files that the actor has unpacked.

    A path is replaced where it is a whole JSON string, or the file in `file.py:Name`.
    """
    for original, local in local_paths.items():
        for terminator in ('"', ":"):
            trial_json = trial_json.replace(json.dumps(original)[:-1] + terminator, json.dumps(local)[:-1] + terminator)
    return trial_json
