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

from headtohead.atomic_io import read_json, read_lines, write_json
from headtohead.execution.tracker_backends import TRACKERS, Tracker, Values
from headtohead.execution.trackers import PLACE
from headtohead.experiment.run_folder import Runs

EVERY = 1.0
FIGURES = ("loss", "perplexity", "accuracy")


class Follower:
    """Reads an experiment's folder again and again, and knows what was passed on."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.folder = folder
        self.file = folder / PLACE / f"{kind}.json"
        self.passed: dict[str, Any] = {"token": secrets.token_hex(8), "runs": {}, "verdicts": None}
        if self.file.is_file():
            self.passed = read_json(self.file)
        self.tracker: Tracker = TRACKERS[kind](folder, Runs(folder).experiment.name, self.passed["token"])
        self.open: set[str] = set()
        self.sizes: dict[str, int] = {}

    def look(self) -> None:
        """Pass on what is new."""
        places = [*self.folder.glob("*/seed-*/trial.json"), *self.folder.glob("search/*/seed-*/trial.json")]
        changed = [self._look_at(place.parent) for place in sorted(places)]
        if any(changed):
            self._remember()

    def conclude(self) -> None:
        """The last look, and the verdicts."""
        self.look()
        path = self.folder / "findings.json"
        rows = read_json(path)["verdicts"] if path.is_file() else []
        if rows and rows != self.passed["verdicts"]:
            self.tracker.verdicts(rows, again=self.passed["verdicts"] is not None)
            self.passed["verdicts"] = rows
        self._remember()
        self.tracker.close()

    def _remember(self) -> None:
        self.tracker.pause()
        write_json(self.file, self.passed)

    def _look_at(self, place: Path) -> bool:
        name = str(place.relative_to(self.folder))
        seen = self.passed["runs"].get(name)
        is_over = (place / "result.json").is_file()
        metrics = place / "metrics.jsonl"
        size = metrics.stat().st_size if metrics.is_file() else 0
        if (seen or {}).get("ended") or (size == self.sizes.get(name) and not is_over):
            return False
        self.sizes[name] = size
        new = [
            line
            for line in read_lines(metrics)
            if line["step"] > (seen or {"steps": {}})["steps"].get(line["split"], -1)
        ]
        if not new and not is_over:
            return False
        if name not in self.open:
            self.tracker.begin(name, _settings(place), again=seen is not None)
            self.open.add(name)
        seen = self.passed["runs"].setdefault(name, {"steps": {}, "at": [0, 0.0]})
        for line in new:
            self.tracker.point(name, line["step"], _values(line, seen))
            seen["steps"][line["split"]] = line["step"]
        if is_over:
            self.tracker.end(name, max(seen["steps"].values(), default=0), _summary(read_json(place / "result.json")))
            seen["ended"] = True
        return True


def _values(line: dict[str, Any], seen: dict[str, Any]) -> Values:
    """What a line of metrics.jsonl says, under names that trackers sort by; and how fast it went since the last."""
    found = {f"{line['split']}/{name}": line[name] for name in FIGURES if name in line}
    if "rate" in line:
        found["rate"] = line["rate"]
    step, seconds = seen["at"]
    if line["split"] == "batches" and line["step"] > step and line["seconds"] > seconds:
        found["steps_per_second"] = (line["step"] - step) / (line["seconds"] - seconds)
        seen["at"] = [line["step"], line["seconds"]]
    return found


def _settings(place: Path) -> dict[str, Any]:
    """All settings of a trial, under the names that --set knows; and its size."""
    found = _flat(read_json(place / "trial.json")["trial"])
    start = read_json(place / "start.json") if (place / "start.json").is_file() else {}
    return found | {name: start[name] for name in ("parameters", "vocabulary", "steps", "device") if name in start}


def _flat(table: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{before}{name}.")
        elif value is not None:
            found[f"{before}{name}"] = json.dumps(value) if isinstance(value, list) else value
    return found


def _summary(result: dict[str, Any]) -> dict[str, Any]:
    """The scores with the chosen weights, and what the training took."""
    scores = {
        f"final/{split}/{name}": values[name]
        for split, values in result["scores"].items()
        for name in FIGURES
        if name in values
    }
    taken = {f"final/{name}": result["trained"][name] for name in ("seconds", "peak_memory", "chosen_step")}
    return scores | taken


def _wait_for_end(over: threading.Event) -> None:
    sys.stdin.read()
    over.set()


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
    threading.Thread(target=_wait_for_end, args=(over,), daemon=True).start()
    try:
        follower = Follower(kind, Path(folder))
        while not over.wait(EVERY):
            follower.look()
        follower.conclude()
    except Exception as error:  # noqa: BLE001  # a tracker's trouble is told, whatever it is
        traceback.print_exc()
        trouble(f"{type(error).__name__}: {error}")
        sys.exit(1)


if __name__ == "__main__":
    main()
