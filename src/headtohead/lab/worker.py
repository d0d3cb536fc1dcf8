"""A worker: a process that takes trials as lines of JSON and tells how they go, also as lines of JSON.

A process of its own, with one thread, started as `python -m headtohead.lab.worker`: a crash takes one trial along and
no other, and the environment can be set before torch is imported.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from .. import spec
from ..errors import HeadToHeadError
from ..files import write_json

TELL_EVERY = 0.25


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
    from .trial import run_trial

    say(event="ready")
    for job in sys.stdin:
        asked = json.loads(job)
        trial = spec.Trial.model_validate(asked["trial"])
        folder = Path(asked["folder"])
        last = 0.0

        def tell(progress: Any) -> None:
            nonlocal last
            if time.monotonic() - last > TELL_EVERY or progress.step == progress.steps:
                last = time.monotonic()
                say(
                    event="progress",
                    step=progress.step,
                    steps=progress.steps,
                    loss=progress.loss,
                    rate=progress.rate,
                )

        try:
            result = run_trial(trial, folder, device=asked["device"], tell=tell)
            say(event="finished", result={k: result[k] for k in ("scores", "trained")})
        except Exception as error:  # noqa: BLE001  # whatever it is, it must cost this one trial only
            known = isinstance(error, HeadToHeadError)
            message = str(error) if known else f"{type(error).__name__}: {error}"
            if not known:
                traceback.print_exc()
            try:
                write_json(folder / "failure.json", {"message": message, "kind": type(error).__name__})
            except (HeadToHeadError, OSError):
                pass  # what could not be written is said on the line below
            say(event="failed", message=message, wrong_request=getattr(error, "exit_code", 1) == 2)


if __name__ == "__main__":
    main()
