"""Record results that must not be lost: the checksums of finished results and the last checkpoint of each run."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file

from headtohead.atomic_io import compute_sha256
from headtohead.errors import HeadToHeadError
from headtohead.experiment.run_folder import Run
from headtohead.json_files import read_json

DURATION_KEYS = {
    *("seconds", "seconds_per_step", "peak_memory", "trial_seconds", "tokens_per_second", "seconds_per_summary"),
}
"""keys whose values differ between equal runs"""
COMPARED_FINDINGS = (
    *("verdicts", "other_verdicts", "scores", "primary_scores", "curves", "pairing", "audits", "samples", "failures"),
)
CHECKPOINT_NAME_PATTERN = re.compile(r"checkpoint-(\d+)")


class RunMonitor:
    """Watches the folder of an experiment while faults are injected."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.results: dict[str, str] = {}
        """checksum of each finished result, by run"""
        self.checkpoint_steps: dict[str, int] = {}
        self.lost: list[str] = []
        """descriptions of results and checkpoints that no longer exist"""

    def update(self) -> None:
        """Record new results and checkpoints; report a training that fell behind its last checkpoint."""
        for name, step in find_checkpoint_steps(self.folder).items():
            previous_step = self.checkpoint_steps.get(name, 0)
            if step < previous_step and not (self.folder / name / "result.json").is_file():
                self.lost.append(f"{name}: went back from step {previous_step} to {step}")
            self.checkpoint_steps[name] = max(step, previous_step)
        for run in list_run_folders(self.folder):
            name = str(run.relative_to(self.folder))
            if name not in self.results and (run / "result.json").is_file():
                self.results[name] = compute_sha256(run / "result.json")

    def verify_results(self) -> None:
        """Report every recorded result that is missing or has changed."""
        for name, checksum in self.results.items():
            path = self.folder / name / "result.json"
            if not path.is_file():
                self.lost.append(f"{name}: its finished result is gone")
            elif compute_sha256(path) != checksum:
                self.lost.append(f"{name}: its finished result was written again")


def list_run_folders(folder: Path) -> list[Path]:
    """Return the run folders; folders that are removed during the search are skipped."""
    runs = []
    for parent, folders, _ in os.walk(folder):
        runs += [Path(parent) / name for name in folders if name.startswith("seed-")]
        folders[:] = [name for name in folders if not name.startswith((".", "seed-"))]
    return sorted(runs)


def find_checkpoint_steps(folder: Path) -> dict[str, int]:
    """Return the step of the newest checkpoint of each run that has one."""
    last_steps = {}
    for run in list_run_folders(folder):
        try:
            names = [path.name for path in run.iterdir()]
        except OSError:
            continue  # it was just removed
        if steps := [int(match.group(1)) for name in names if (match := CHECKPOINT_NAME_PATTERN.fullmatch(name))]:
            last_steps[str(run.relative_to(folder))] = max(steps)
    return last_steps


def collect_results(folder: Path) -> dict[str, Any]:
    """Return the content of an experiment folder, without durations and memory."""
    results: dict[str, Any] = {}
    for path in sorted(folder.rglob("result.json")):
        run = Run(path.parent)
        result = run.result.to_json()
        contents = {key: value for key, value in result.items() if key not in {*DURATION_KEYS, "sha256", "checksum"}}
        contents["training"] = _remove_durations(result["training"])
        contents["metrics"] = [_remove_durations(line.to_json()) for line in run.metrics]
        contents["files"] = sorted(file.name for file in run.folder.iterdir())
        contents["weights"] = [compute_sha256(file) for file in run.folder.glob("model.safetensors")]
        scores = load_file(run.folder / "scores.safetensors")
        contents["examples"] = {name: array.tolist() for name, array in scores.items()}
        results[str(run.folder.relative_to(folder))] = contents
    if (folder / "findings.json").is_file():
        findings = read_json(folder / "findings.json")
        results["findings"] = {key: _remove_durations(findings[key]) for key in COMPARED_FINDINGS}
    return results


def _remove_durations(value: Any) -> Any:
    """Return a JSON value without the keys that differ between equal runs."""
    if isinstance(value, dict):
        return {key: _remove_durations(item) for key, item in value.items() if key not in DURATION_KEYS}
    return [_remove_durations(item) for item in value] if isinstance(value, list) else value


def compare_with_reference(folder: Path, expected: dict[str, Any]) -> list[str]:
    """Return differences from the results of the reference run, and files that do not match their checksum."""
    try:
        results = collect_results(folder)
        errors = [f"{name}: is missing" for name in expected if name not in results]
        errors += [f"{name}: is unexpected" for name in results if name not in expected]
        for name, contents in expected.items():
            actual = results.get(name, contents)
            differing = [key for key, value in contents.items() if actual.get(key) != value]
            errors += [f"{name}: {key} differ from the reference run" for key in differing]
        for path in sorted(folder.rglob("result.json")):
            run_name, damaged = path.parent.relative_to(folder), Run(path.parent).find_damaged_files()
            errors += [f"{run_name}/{name}: is damaged" for name in damaged]
    except (HeadToHeadError, OSError, LookupError) as error:
        return [f"{folder.name}: cannot be read ({error})"]
    return errors + [f"{path.relative_to(folder)}: was left behind" for path in find_incomplete_files(folder)]


def find_incomplete_files(folder: Path) -> list[Path]:
    """Return incomplete files that were left after a kill."""
    return sorted(path for path in folder.rglob("*") if path.name.endswith(".part") or path.name == ".arriving")
