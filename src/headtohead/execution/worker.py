"""A worker: a process that takes trials as lines of JSON and tells how they go, also as lines of JSON.

A process of its own, with one thread, started as `python -m headtohead.execution.worker`: a crash
takes one trial along and no other, and the environment can be set before torch is imported.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from headtohead.atomic_io import lock_run_folder, write_json
from headtohead.config import experiment
from headtohead.errors import HeadToHeadError, RunFolderError

PROGRESS_INTERVAL_SECONDS = 0.25


def main() -> None:
    # Whatever prints to stdout must not disturb the line to the parent.
    line = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def say(**message: Any) -> None:
        try:
            line.write(json.dumps(message) + "\n")
        except BrokenPipeError:
            os._exit(1)  # the parent is gone; the checkpoint is on disk

    import torch

    torch.set_num_threads(1)
    from headtohead.training import memory
    from headtohead.trials import trial  # noqa: F401  # imported before the first job comes

    memory.retain_freed_memory()

    say(event="ready")
    for job in _read_jobs():
        asked = json.loads(job)
        folder = Path(asked["folder"])
        try:
            say(event="finished", result=_run_job(asked, folder, say))
        except Exception as error:  # noqa: BLE001  # whatever it is, it must cost this one trial only
            message = format_error(error, folder)
            if not isinstance(error, HeadToHeadError):
                traceback.print_exc()
            try:
                if not asked["texts"]:
                    write_json(folder / "failure.json", {"message": message, "kind": type(error).__name__})
            except (HeadToHeadError, OSError):
                pass  # what could not be written is said on the line below
            say(event="failed", message=message, wrong_request=getattr(error, "exit_code", 1) == 2)


def _run_job(request: dict[str, Any], folder: Path, send: Callable[..., None]) -> dict[str, Any]:
    """Run a trial, or write a share of a teacher's texts; gives what the parent wants to know of the result."""
    from headtohead.distillation.teacher_texts import generate_batches
    from headtohead.model_cost import ModelCost
    from headtohead.trials.dataset import prepare_dataset
    from headtohead.trials.trial import run_trial

    trial = experiment.Trial.model_validate(request["trial"])
    if request["texts"]:
        dataset = prepare_dataset(trial.data, trial.task)
        for text in generate_batches(trial, dataset, run_trial, **request["texts"]):
            send(event="text", line=text)
        return {}
    last = 0.0

    def tell(progress: Any) -> None:
        nonlocal last
        if time.monotonic() - last > PROGRESS_INTERVAL_SECONDS or progress.step == progress.steps:
            last = time.monotonic()
            send(event="progress", **{k: getattr(progress, k) for k in ("step", "steps", "loss", "rate")})

    if not folder.parent.parent.is_dir():
        raise RunFolderError(f"{folder.parent.parent}: was removed while its trials were at work in it")
    with lock_run_folder(folder):
        sizes = ModelCost(**request["sizes"]) if request.get("sizes") else None
        result = run_trial(trial, folder, device=request["device"], on_progress=tell, model_size=sizes)
    return {k: result[k] for k in ("scores", "trained")}


def _read_jobs() -> Iterator[str]:
    """The lines that the parent sends. When it is gone, this process ends in the middle of whatever it does: the
    experiment may be started again at once, and two must not write one run."""
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()

    def read() -> None:
        for line in sys.stdin:
            lines.put(line)
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    while True:
        yield lines.get()


def format_error(error: Exception, folder: Path) -> str:
    """What went wrong with a trial, for the person who asked for it."""
    if isinstance(error, HeadToHeadError):
        return str(error)
    if isinstance(error, OSError) and not folder.is_dir():
        return f"{folder}: was removed while the trial was at work in it; --resume trains it anew"
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}; what was written before is whole, and --resume goes on from there"
    return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    main()
