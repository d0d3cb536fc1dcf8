"""The process of a tracker: `python -m headtohead.execution.tracker_process KIND FOLDER`, started by `trackers`.

It looks at the run folders once a second and passes on what is new: each trial as a run with its settings, its metrics
as they come, its scores at the end; and the verdicts as a run of their own. What was passed on stands in
logs/KIND.json, by the last step of each split, so that nothing is passed on twice after --resume: lines that a killed
trial draws again are the same lines. The end of its input is the end of the experiment.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
import threading
import traceback
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headtohead.atomic_io import read_json, read_jsonl, write_json
from headtohead.execution.tracker_backends import BACKENDS, Metrics, TrackerBackend
from headtohead.execution.trackers import LOGS_FOLDER
from headtohead.experiment.run_folder import ExperimentRuns

POLL_INTERVAL_SECONDS = 1.0
METRIC_NAMES = ("loss", "perplexity", "accuracy")


class RunFolderPoller:
    """Reads an experiment's folder again and again, and knows what was passed on."""

    def __init__(self, tracker_name: str, folder: Path) -> None:
        self.folder = folder
        self.file = folder / LOGS_FOLDER / f"{tracker_name}.json"
        self.passed: dict[str, Any] = {"token": secrets.token_hex(8), "runs": {}, "verdicts": None}
        if self.file.is_file():
            self.passed = read_json(self.file)
        self.backend: TrackerBackend = BACKENDS[tracker_name](
            folder, ExperimentRuns(folder).experiment.name, self.passed["token"]
        )
        self.open: set[str] = set()
        self.sizes: dict[str, int] = {}

    def look(self) -> None:
        """Pass on what is new."""
        places = [*self.folder.glob("*/seed-*/trial.json"), *self.folder.glob("search/*/seed-*/trial.json")]
        changed = [self._poll_run(place.parent) for place in sorted(places)]
        if any(changed):
            self._save_state()

    def finish(self) -> None:
        """The last look, and the verdicts."""
        self.look()
        path = self.folder / "findings.json"
        rows = read_json(path)["verdicts"] if path.is_file() else []
        if rows and rows != self.passed["verdicts"]:
            self.backend.verdicts(rows, is_resumed=self.passed["verdicts"] is not None)
            self.passed["verdicts"] = rows
        self._save_state()
        self.backend.close()

    def _save_state(self) -> None:
        self.backend.flush()
        write_json(self.file, self.passed)

    def _poll_run(self, run_folder: Path) -> bool:
        name = str(run_folder.relative_to(self.folder))
        seen = self.passed["runs"].get(name)
        is_over = (run_folder / "result.json").is_file()
        metrics = run_folder / "metrics.jsonl"
        size = metrics.stat().st_size if metrics.is_file() else 0
        if (seen or {}).get("ended") or (size == self.sizes.get(name) and not is_over):
            return False
        self.sizes[name] = size
        new = [
            line
            for line in read_jsonl(metrics)
            if line["step"] > (seen or {"steps": {}})["steps"].get(line["split"], -1)
        ]
        if not new and not is_over:
            return False
        if name not in self.open:
            self.backend.begin(name, _read_settings(run_folder), is_resumed=seen is not None)
            self.open.add(name)
        seen = self.passed["runs"].setdefault(name, {"steps": {}, "at": [0, 0.0]})
        for line in new:
            self.backend.point(name, line["step"], _extract_metrics(line, seen))
            seen["steps"][line["split"]] = line["step"]
        if is_over:
            self.backend.end(
                name, max(seen["steps"].values(), default=0), _summarize_result(read_json(run_folder / "result.json"))
            )
            seen["ended"] = True
        return True


def _extract_metrics(line: dict[str, Any], run_state: dict[str, Any]) -> Metrics:
    """What a line of metrics.jsonl says, under names that trackers sort by; and how fast it went since the last."""
    found = {f"{line['split']}/{name}": line[name] for name in METRIC_NAMES if name in line}
    if "rate" in line:
        found["rate"] = line["rate"]
    step, seconds = run_state["at"]
    if line["split"] == "batches" and line["step"] > step and line["seconds"] > seconds:
        found["steps_per_second"] = (line["step"] - step) / (line["seconds"] - seconds)
        run_state["at"] = [line["step"], line["seconds"]]
    return found


def _read_settings(run_folder: Path) -> dict[str, Any]:
    """All settings of a trial, under the names that --set knows; and its size."""
    found = _flatten(read_json(run_folder / "trial.json")["trial"])
    start = read_json(run_folder / "start.json") if (run_folder / "start.json").is_file() else {}
    return found | {name: start[name] for name in ("parameters", "vocabulary", "steps", "device") if name in start}


def _flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, dict):
            found |= _flatten(value, f"{prefix}{name}.")
        elif value is not None:
            found[f"{prefix}{name}"] = json.dumps(value) if isinstance(value, list) else value
    return found


def _summarize_result(result: dict[str, Any]) -> dict[str, Any]:
    """The scores with the chosen weights, and what the training took."""
    scores = {
        f"final/{split}/{name}": values[name]
        for split, values in result["scores"].items()
        for name in METRIC_NAMES
        if name in values
    }
    taken = {f"final/{name}": result["trained"][name] for name in ("seconds", "peak_memory", "chosen_step")}
    return scores | taken


def _wait_for_stdin_close(is_finished: threading.Event) -> None:
    sys.stdin.read()
    is_finished.set()


def main() -> None:
    kind, folder = sys.argv[1:]
    # Whatever prints to stdout must not disturb the line to the parent.
    line = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def trouble(what: object) -> None:
        try:
            line.write(json.dumps({"trouble": str(what)}) + "\n")
        except BrokenPipeError:
            pass  # the parent is gone

    def warned(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        """Some trackers only warn when they cannot write."""
        sys.stderr.write(f"{category.__name__}: {message}\n")
        if issubclass(category, UserWarning):
            trouble(message)

    setattr(warnings, "showwarning", warned)  # noqa: B010  # its type names all arguments
    over = threading.Event()
    threading.Thread(target=_wait_for_stdin_close, args=(over,), daemon=True).start()
    try:
        follower = RunFolderPoller(kind, Path(folder))
        while not over.wait(POLL_INTERVAL_SECONDS):
            follower.look()
        follower.finish()
    except Exception as error:  # noqa: BLE001  # a tracker's trouble is told, whatever it is
        traceback.print_exc()
        trouble(f"{type(error).__name__}: {error}")
        sys.exit(1)


if __name__ == "__main__":
    main()
