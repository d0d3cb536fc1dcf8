"""The worker process: `python -m headtohead.execution.worker` runs trials and reports their progress.

With one process per worker, a crash affects one trial only, and environment variables can be set before torch is
imported. Requests are those of `Job.to_request`; `child_process` describes the protocol.
"""

from __future__ import annotations

import gc
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from headtohead.child_process import ParentChannel
from headtohead.config import experiment
from headtohead.errors import HeadToHeadError, RunFolderError
from headtohead.experiment.run_folder import lock_run_folder
from headtohead.experiment.schemas import FailureFile, write_record

PROGRESS_INTERVAL_SECONDS = 0.25
SendMessage = Callable[[dict[str, Any]], None]


def main() -> None:
    """Run the jobs that a worker process receives until its parent closes the channel."""
    channel = ParentChannel()
    gc.disable()  # imports create many objects and no garbage
    import torch

    torch.set_num_threads(1)
    from headtohead.training.hardware import process_memory
    from headtohead.trials import trial  # noqa: F401  # import before the first job arrives

    process_memory.retain_freed_memory()
    gc.freeze()  # later collections skip the imported modules
    gc.enable()
    channel.send({"event": "ready"})
    for request in channel.iter_requests():
        run_and_report(request, channel.send)


def run_and_report(request: dict[str, Any], send_message: SendMessage) -> None:
    """Run the job of one request in a worker process, and send its result or failure to the parent."""
    folder = Path(request["folder"])

    def send(message: dict[str, Any]) -> None:
        send_message({**message, "request": request["request"]})

    try:
        send({"event": "finished", "result": _run_job(request, folder, send)})
    except Exception as error:  # noqa: BLE001  # any error must affect this trial only
        if not isinstance(error, HeadToHeadError):
            traceback.print_exc()
        send(report_failure(error, folder, is_trial=not request["teacher_batches"]))


def _run_job(request: dict[str, Any], folder: Path, send: SendMessage) -> dict[str, Any]:
    """Run a worker's job: a trial, to return its scores, or text generation with its teacher, to return {}."""
    from headtohead.distillation.teacher_texts import generate_texts_in_worker
    from headtohead.model_cost import ModelCost
    from headtohead.tasks.registry import prepare_dataset
    from headtohead.trials.trial import run_trial

    trial = experiment.Trial.model_validate(request["trial"])
    if request["teacher_batches"]:
        dataset = prepare_dataset(trial.data, trial.task)
        for line in generate_texts_in_worker(trial, dataset, run_trial, **request["teacher_batches"]):
            send({"event": "text", "line": line})
        return {}
    if not folder.parent.parent.is_dir():
        raise RunFolderError(f"{folder.parent.parent}: was removed while its trials were running")
    with lock_run_folder(folder):
        model_cost = ModelCost(**request["model_cost"]) if request.get("model_cost") else None
        on_progress = throttle_progress(send)
        result = run_trial(trial, folder, device=request["device"], on_progress=on_progress, model_cost=model_cost)
    assert result is not None  # a worker trains alone
    return result.model_dump(mode="json", include={"scores", "training"})


def throttle_progress(send: SendMessage) -> Callable[[Any], None]:
    """Return a training callback that reports a worker's progress a few times per second, and at the last step."""
    last_report_time = 0.0

    def report(progress: Any) -> None:
        nonlocal last_report_time
        if time.monotonic() - last_report_time > PROGRESS_INTERVAL_SECONDS or progress.step == progress.total_steps:
            last_report_time = time.monotonic()
            send({"event": "progress", **asdict(progress)})

    return report


def report_failure(error: Exception, folder: Path, *, is_trial: bool = True) -> dict[str, Any]:
    """Write failure.json for a failed trial, if possible, and return the worker's message to its parent."""
    message = format_error(error, folder)
    if is_trial:
        try:
            write_record(folder / "failure.json", FailureFile(message=message, kind=type(error).__name__))
        except (HeadToHeadError, OSError):
            pass  # the parent gets the message anyway
    return {"event": "failed", "message": message, "is_request_error": getattr(error, "exit_code", 1) == 2}


def format_error(error: Exception, folder: Path) -> str:
    """Return the message that a worker reports to the user about an error in a trial."""
    if isinstance(error, HeadToHeadError):
        return str(error)
    if isinstance(error, OSError) and not folder.is_dir():
        return f"{folder}: was removed while the trial was running; --resume trains it again"
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}; --resume continues from the last checkpoint"
    return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    main()
