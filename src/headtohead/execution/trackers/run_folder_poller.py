"""The child process of a tracker: `python -m headtohead.execution.trackers.run_folder_poller NAME FOLDER`.

It polls the run folders once per second and logs new data: each trial as a run with settings, metrics and final scores,
and the verdicts as a separate run. logs/NAME.json records the last logged step of each split, so that nothing is logged
twice after --resume, when a trial writes the same lines again. The process finishes when its stdin is closed.
"""

from __future__ import annotations

import json
import secrets
import sys
import threading
import traceback
import warnings
from pathlib import Path
from typing import Any

from headtohead.child_process import ParentChannel
from headtohead.config.overlays import flatten_settings
from headtohead.execution.trackers.backends import BACKENDS, Metrics, TrackerBackend
from headtohead.execution.trackers.tracker_process import LOGS_FOLDER
from headtohead.experiment.run_folder import ExperimentRuns, Run
from headtohead.experiment.schemas import ResultFile
from headtohead.json_files import read_json, read_jsonl, write_json

POLL_INTERVAL_SECONDS = 1.0
METRIC_NAMES = ("loss", "perplexity", "accuracy")
START_FIELDS = {"parameters", "vocab_size", "steps", "device"}


class RunFolderPoller:
    """Poll an experiment's run folders, log new results to a tracker, and record what has been logged."""

    def __init__(self, tracker_name: str, folder: Path) -> None:
        """Open the tracker and read which steps an earlier process has already logged."""
        self.folder = folder
        self.state_path = folder / LOGS_FOLDER / f"{tracker_name}.json"
        self.state: dict[str, Any] = {"token": secrets.token_hex(8), "runs": {}, "verdicts": None}
        if self.state_path.is_file():
            self.state = read_json(self.state_path)
        self.backend: TrackerBackend = BACKENDS[tracker_name](
            folder, ExperimentRuns(folder).experiment.name, self.state["token"]
        )
        self.started_runs: set[str] = set()
        self.metrics_file_sizes: dict[str, int] = {}

    def poll(self) -> None:
        """Log all results that have not been logged yet."""
        trial_paths = [*self.folder.glob("*/seed-*/trial.json"), *self.folder.glob("search/*/seed-*/trial.json")]
        has_changed = [self._poll_run(path.parent) for path in sorted(trial_paths)]
        if any(has_changed):
            self._save_state()

    def finish(self) -> None:
        """Poll a last time and log the verdicts."""
        self.poll()
        findings_path = self.folder / "findings.json"
        verdicts = read_json(findings_path)["verdicts"] if findings_path.is_file() else []
        if verdicts and verdicts != self.state["verdicts"]:
            self.backend.log_verdicts(verdicts, is_resumed=self.state["verdicts"] is not None)
            self.state["verdicts"] = verdicts
        self._save_state()
        self.backend.close()

    def _save_state(self) -> None:
        """Flush the backend, then record what has been logged."""
        self.backend.flush()
        write_json(self.state_path, self.state)

    def _poll_run(self, run_folder: Path) -> bool:
        """Log a run's new metrics; return whether there were any."""
        name = str(run_folder.relative_to(self.folder))
        run_state = self.state["runs"].get(name)
        is_finished = (run_folder / "result.json").is_file()
        metrics_path = run_folder / "metrics.jsonl"
        file_size = metrics_path.stat().st_size if metrics_path.is_file() else 0
        if (run_state or {}).get("ended") or (file_size == self.metrics_file_sizes.get(name) and not is_finished):
            return False
        self.metrics_file_sizes[name] = file_size
        last_steps = (run_state or {"steps": {}})["steps"]
        new_lines = [line for line in read_jsonl(metrics_path) if line["step"] > last_steps.get(line["split"], -1)]
        if not new_lines and not is_finished:
            return False
        if name not in self.started_runs:
            self.backend.start_run(name, _read_settings(run_folder), is_resumed=run_state is not None)
            self.started_runs.add(name)
        run_state = self.state["runs"].setdefault(name, {"steps": {}, "at": [0, 0.0]})
        for line in new_lines:
            self.backend.log_metrics(name, line["step"], _extract_metrics(line, run_state))
            run_state["steps"][line["split"]] = line["step"]
        if is_finished:
            last_step = max(run_state["steps"].values(), default=0)
            self.backend.finish_run(name, last_step, _summarize_result(Run(run_folder).result))
            run_state["ended"] = True
        return True


def _extract_metrics(line: dict[str, Any], run_state: dict[str, Any]) -> Metrics:
    """Return the metrics in a polled line of metrics.jsonl as SPLIT/METRIC, and the steps per second."""
    metrics = {f"{line['split']}/{name}": line[name] for name in METRIC_NAMES if name in line}
    if "lr" in line:
        metrics["lr"] = line["lr"]
    step, seconds = run_state["at"]
    if line["split"] == "batches" and line["step"] > step and line["seconds"] > seconds:
        metrics["steps_per_second"] = (line["step"] - step) / (line["seconds"] - seconds)
        run_state["at"] = [line["step"], line["seconds"]]
    return metrics


def _read_settings(run_folder: Path) -> dict[str, Any]:
    """Return a trial's settings, named as in `--set`, and its model size, to log with the run."""
    run = Run(run_folder)
    has_start = (run_folder / "start.json").is_file()
    model_size = run.start.model_dump(include=START_FIELDS) if has_start else {}
    settings = flatten_settings(run.trial.model_dump(mode="json", exclude_none=True))
    settings |= {name: json.dumps(value) for name, value in settings.items() if isinstance(value, list)}
    return {name: value for name, value in settings.items() if value != {}} | model_size


def _summarize_result(result: ResultFile) -> dict[str, Any]:
    """Return the final scores of a run, and the time and memory that its training took, to log with the run."""
    scores = {
        f"final/{split}/{name}": value
        for split, split_scores in result.scores.items()
        for name in METRIC_NAMES
        if (value := split_scores.get_metric(name)) is not None
    }
    training = result.training.model_dump(include={"seconds", "peak_memory", "chosen_step"})
    return scores | {f"final/{name}": value for name, value in training.items()}


def main() -> None:
    """Poll the run folders and log new results until the parent closes the channel, then log the verdicts."""
    name, folder = sys.argv[1:]
    channel = ParentChannel(outlives_parent=True)

    def show_warning(message: Warning | str, category: type[Warning], *arguments: Any, **options: Any) -> None:
        """Report warnings, because some trackers only warn when they cannot write."""
        sys.stderr.write(f"{category.__name__}: {message}\n")
        if issubclass(category, UserWarning):
            channel.send({"warning": str(message)})

    setattr(warnings, "showwarning", show_warning)  # noqa: B010  # its declared type lists all arguments
    is_closed = threading.Event()
    channel.listen(lambda message: None, on_close=is_closed.set)
    try:
        poller = RunFolderPoller(name, Path(folder))
        while not is_closed.wait(POLL_INTERVAL_SECONDS):
            poller.poll()
        poller.finish()
    except Exception as error:  # noqa: BLE001  # any error of a tracker is reported, and affects nothing else
        traceback.print_exc()
        channel.send({"warning": f"{type(error).__name__}: {error}"})
        sys.exit(1)


if __name__ == "__main__":
    main()
