"""Account of what must not get lost: finished results by their checksum, and how far each training has come."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file

from headtohead.atomic_io import compute_sha256, read_json
from headtohead.errors import HeadToHeadError
from headtohead.experiment.run_folder import Run

TIMES = ("seconds", "seconds_per_step", "peak_memory", "trial_seconds", "tokens_per_second", "seconds_per_summary")
"""what differs from one run to the next, and may"""
FINDINGS = (
    "verdicts",
    "other_verdicts",
    "scores",
    "primary_scores",
    "curves",
    "pairing",
    "audits",
    "samples",
    "failures",
)
STEP = re.compile(r"checkpoint-(\d+)")


class Ledger:
    """What was seen in an experiment's folder while it was disturbed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.results: dict[str, str] = {}
        self.reached: dict[str, int] = {}
        self.lost: list[str] = []

    def look(self) -> None:
        """Note what is new; a training may not have gone back behind a checkpoint."""
        for name, step in steps_in(self.folder).items():
            before = self.reached.get(name, 0)
            if step < before and not (self.folder / name / "result.json").is_file():
                self.lost.append(f"{name}: went back from step {before} to {step}")
            self.reached[name] = max(step, before)
        for run in runs_in(self.folder):
            name = str(run.relative_to(self.folder))
            if name not in self.results and (run / "result.json").is_file():
                self.results[name] = compute_sha256(run / "result.json")

    def close(self) -> None:
        """At the end: is every result that was ever seen still the same?"""
        for name, was in self.results.items():
            path = self.folder / name / "result.json"
            if not path.is_file():
                self.lost.append(f"{name}: was finished, and its result is gone")
            elif compute_sha256(path) != was:
                self.lost.append(f"{name}: was finished, and its result was written again")


def runs_in(folder: Path) -> list[Path]:
    """The folders of runs, while they come and go: what vanishes under the search is passed over."""
    found = []
    for place, folders, _ in os.walk(folder):
        found += [Path(place) / name for name in folders if name.startswith("seed-")]
        folders[:] = [name for name in folders if not name.startswith((".", "seed-"))]
    return sorted(found)


def steps_in(folder: Path) -> dict[str, int]:
    """The step of the newest checkpoint of each run that has one."""
    found = {}
    for run in runs_in(folder):
        try:
            steps = [int(step.group(1)) for path in run.iterdir() if (step := STEP.fullmatch(path.name))]
        except OSError:
            continue  # it has just been removed
        if steps:
            found[str(run.relative_to(folder))] = max(steps)
    return found


def numbers(folder: Path) -> dict[str, Any]:
    """All that an experiment's folder holds, but for times and memory."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("result.json")):
        run = Run(path.parent)
        about = {k: v for k, v in run.result.to_json().items() if k not in (*TIMES, "sha256", "training", "checksum")}
        about["training"] = _timeless(run.result.to_json()["training"])
        about["metrics"] = [_timeless(line.to_json()) for line in run.metrics]
        about["files"] = sorted(p.name for p in run.folder.iterdir())
        about["weights"] = [compute_sha256(file) for file in run.folder.glob("model.safetensors")]
        about["examples"] = {k: v.tolist() for k, v in load_file(run.folder / "scores.safetensors").items()}
        found[str(run.folder.relative_to(folder))] = about
    findings = folder / "findings.json"
    if findings.is_file():
        said = read_json(findings)
        found["findings"] = {key: _timeless(said[key]) for key in FINDINGS}
    return found


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _timeless(v) for k, v in value.items() if k not in TIMES}
    return [_timeless(one) for one in value] if isinstance(value, list) else value


def compare(folder: Path, wanted: dict[str, Any]) -> list[str]:
    """What is not as in the undisturbed runs, or does not agree with its checksum."""
    try:
        there = numbers(folder)
        wrong = [f"{name}: is missing" for name in wanted if name not in there]
        wrong += [f"{name}: nobody asked for it" for name in there if name not in wanted]
        for name, about in wanted.items():
            differing = [key for key, value in about.items() if there.get(name, about).get(key) != value]
            wrong += [f"{name}: {key} differ from the undisturbed" for key in differing]
        for path in sorted(folder.rglob("result.json")):
            wrong += [
                f"{path.parent.relative_to(folder)}/{name}: is damaged"
                for name in Run(path.parent).find_damaged_files()
            ]
    except (HeadToHeadError, OSError, LookupError) as error:
        return [f"{folder.name}: cannot be read ({error})"]
    return wrong + [f"{path.relative_to(folder)}: was left behind" for path in rests(folder)]


def rests(folder: Path) -> list[Path]:
    """Halves of files that a kill left and nobody took away."""
    return sorted(path for path in folder.rglob("*") if path.name.endswith(".part") or path.name == ".arriving")
