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

from headtohead.atomic_io import cache_folder
from headtohead.execution.artifacts import Parcel, checkpoints, homeward, pack_run, unpack_once, unpack_run

WORKER = [sys.executable, "-m", "headtohead.execution.worker"]
TELL_EVERY = 1.0
"""seconds between two messages of progress: with hundreds of places, one process hears them all"""
Message = dict[str, Any]


class Node:
    """Runs trials one after the other, each a stream of messages."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = dict(environment)
        self._child: subprocess.Popen[str] | None = None
        self._errors = Path(tempfile.mkdtemp(prefix="h2h-node-")) / "errors"

    def run(self, asked: Message, parcels: Sequence[Parcel], run_folder: bytes) -> Iterator[Message]:
        """One trial. `asked["places"]` says which path at home each parcel stands for."""
        places = {home: str(self._place(parcels[at])) for home, at in asked["places"].items()}
        for name, at in asked["kept"].items():
            _link(cache_folder("teachers") / name, self._place(parcels[at]))
        with tempfile.TemporaryDirectory(prefix="h2h-trial-") as scratch:
            folder = Path(scratch) / "run"
            folder.mkdir()
            if run_folder:
                unpack_run(run_folder, folder)
            trial = json.loads(_replaced(json.dumps(asked["trial"]), places))
            yield from self._tell({**asked, "trial": trial, "folder": str(folder)}, folder, places)

    def _tell(self, line: Message, folder: Path, places: Mapping[str, str]) -> Iterator[Message]:
        child = self._worker()
        assert child.stdin is not None and child.stdout is not None
        sent, last = checkpoints(folder), 0.0
        with contextlib.suppress(BrokenPipeError):
            child.stdin.write(json.dumps(line) + "\n")
            child.stdin.flush()
        home = {here: there for there, here in places.items()}
        for said in child.stdout:
            message: Message = json.loads(said)
            if message["event"] in ("finished", "failed"):
                homeward(folder, home)
                yield message if line["texts"] else {**message, "run": pack_run(folder)}
                return
            if (there := checkpoints(folder)) != sent:
                sent = there
                homeward(folder, home)
                yield {"event": "checkpoint", "run": pack_run(folder)}
            if message["event"] != "progress" or time.monotonic() - last > TELL_EVERY:
                last = time.monotonic()
                yield message
        code = child.wait()
        self._child = None
        how = f"was killed by signal {-code}" if code < 0 else f"ended with {code}"
        yield {"event": "gone", "how": how, "words": self._last_words()}

    def _worker(self) -> subprocess.Popen[str]:
        if self._child is None or self._child.poll() is not None:
            with self._errors.open("ab") as errors:
                self._child = subprocess.Popen(
                    WORKER,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                    env={**os.environ, **self._environment},
                )
        return self._child

    def _place(self, parcel: Parcel) -> Path:
        import ray

        return unpack_once(parcel, cache_folder("travelled"), ray.get)

    def _last_words(self) -> str:
        lines = self._errors.read_text(errors="replace").strip().splitlines()
        return lines[-1][:200] if lines else ""


def _link(place: Path, to: Path) -> None:
    """Have a teacher's work where it is looked for. What this machine has done itself stays."""
    place.parent.mkdir(parents=True, exist_ok=True)
    if place.is_symlink():
        place.unlink(missing_ok=True)
    with contextlib.suppress(FileExistsError):
        place.symlink_to(to)


def _replaced(text: str, places: Mapping[str, str]) -> str:
    """Every path at home by its place here, as whole JSON strings (or the file of `file.py:Name`)."""
    for home, here in places.items():
        for end in ('"', ":"):
            text = text.replace(json.dumps(home)[:-1] + end, json.dumps(here)[:-1] + end)
    return text
