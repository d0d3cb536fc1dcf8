"""One place in a cluster: an actor that holds a CPU or a GPU there, and in it the same worker as on one machine.

This runs on the other machine and needs no torch itself. What a trial needs is unpacked in the machine's cache folder,
once for each content; the trial works in a scratch folder, and what it leaves goes back as messages: progress, each
checkpoint as it is made, and at the end the whole run folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from headtohead.atomic_io import get_cache_folder
from headtohead.execution.artifacts import (
    Artifact,
    list_checkpoints,
    pack_run_folder,
    restore_original_paths,
    unpack_cached,
    unpack_run_folder,
)

WORKER_COMMAND = [sys.executable, "-m", "headtohead.execution.worker"]
PROGRESS_INTERVAL_SECONDS = 1.0
"""seconds between two messages of progress: with hundreds of places, one process hears them all"""
Message = dict[str, Any]


class TrialActor:
    """Runs trials one after the other, each a stream of messages."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = dict(environment)
        self._child: subprocess.Popen[str] | None = None
        self._stderr_path = Path(tempfile.mkdtemp(prefix="h2h-node-")) / "errors"

    def run(self, request: Message, artifacts: Sequence[Artifact], run_archive: bytes) -> Iterator[Message]:
        """One trial. `asked["places"]` says which path at home each parcel stands for."""
        places = {home: str(self._unpack_artifact(artifacts[at])) for home, at in request["places"].items()}
        for name, at in request["kept"].items():
            _link_teacher_cache(get_cache_folder("teachers") / name, self._unpack_artifact(artifacts[at]))
        with tempfile.TemporaryDirectory(prefix="h2h-trial-") as scratch:
            folder = Path(scratch) / "run"
            folder.mkdir()
            if run_archive:
                unpack_run_folder(run_archive, folder)
            trial = json.loads(_replace_paths(json.dumps(request["trial"]), places))
            yield from self._tell({**request, "trial": trial, "folder": str(folder)}, folder, places)

    def _tell(self, request: Message, folder: Path, local_paths: Mapping[str, str]) -> Iterator[Message]:
        child = self._ensure_worker()
        assert child.stdin is not None and child.stdout is not None
        sent, last = list_checkpoints(folder), 0.0
        with contextlib.suppress(BrokenPipeError):
            child.stdin.write(json.dumps(request) + "\n")
            child.stdin.flush()
        home = {here: there for there, here in local_paths.items()}
        for said in child.stdout:
            message: Message = json.loads(said)
            if message["event"] in ("finished", "failed"):
                restore_original_paths(folder, home)
                yield message if request["texts"] else {**message, "run": pack_run_folder(folder)}
                return
            if (there := list_checkpoints(folder)) != sent:
                sent = there
                restore_original_paths(folder, home)
                yield {"event": "checkpoint", "run": pack_run_folder(folder)}
            if message["event"] != "progress" or time.monotonic() - last > PROGRESS_INTERVAL_SECONDS:
                last = time.monotonic()
                yield message
        code = child.wait()
        self._child = None
        how = f"was killed by signal {-code}" if code < 0 else f"ended with {code}"
        yield {"event": "gone", "how": how, "words": self._read_last_error_line()}

    def _ensure_worker(self) -> subprocess.Popen[str]:
        if self._child is None or self._child.poll() is not None:
            with self._stderr_path.open("ab") as errors:
                self._child = subprocess.Popen(
                    WORKER_COMMAND,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                    env={**os.environ, **self._environment},
                )
        return self._child

    def _unpack_artifact(self, artifact: Artifact) -> Path:
        import ray

        return unpack_cached(artifact, get_cache_folder("travelled"), ray.get)

    def _read_last_error_line(self) -> str:
        lines = self._stderr_path.read_text(errors="replace").strip().splitlines()
        return lines[-1][:200] if lines else ""


def _link_teacher_cache(link_path: Path, target: Path) -> None:
    """Have a teacher's work where it is looked for. What this machine has done itself stays."""
    link_path.parent.mkdir(parents=True, exist_ok=True)
    if link_path.is_symlink():
        link_path.unlink(missing_ok=True)
    with contextlib.suppress(FileExistsError):
        link_path.symlink_to(target)


def _replace_paths(text: str, local_paths: Mapping[str, str]) -> str:
    """Every path at home by its place here, as whole JSON strings (or the file of `file.py:Name`)."""
    for home, here in local_paths.items():
        for end in ('"', ":"):
            text = text.replace(json.dumps(home)[:-1] + end, json.dumps(here)[:-1] + end)
    return text
