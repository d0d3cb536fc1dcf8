"""Retrain a finished run and compare all files with the recorded ones."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from headtohead.atomic_io import compute_sha256
from headtohead.experiment import trust
from headtohead.experiment.provenance.user_files import find_code_files
from headtohead.experiment.run_folder import Run
from headtohead.json_files import read_json_object, read_jsonl
from headtohead.runner.verification.json_differences import find_json_differences
from headtohead.runner.verification.recompute import LOSS_TOLERANCE, compare_scores
from headtohead.trials.trial import run_trial

UNREPRODUCIBLE_KEYS = {
    *("seconds", "seconds_per_step", "seconds_per_summary", "trial_seconds", "peak_memory", "costs"),
    *("versions", "sha256", "checksum"),
}
"""measurements of time and memory, versions, and checksums of files that contain them"""
IGNORED_FILES = ("README.md", "trial.json")
"""a description, and the input of the trial"""


def retrain_and_compare(run: Run) -> str:
    """Train a run again; return the first difference between the recorded and the new files, or an empty string.

    Times and memory are not compared. Runs of several processes are compared up to rounding.
    """
    trust.check_trusted(run.folder, list(find_code_files(run.trial).values()))
    with tempfile.TemporaryDirectory() as scratch:
        retrained_run = Run(Path(scratch) / "run")
        run_trial(run.trial, retrained_run.folder, device=run.start.device)
        training = run.result.training
        is_reproducible = training.processes == 1 and not training.resharded
        if mismatch := _compare_metrics(run, retrained_run, rtol=0 if is_reproducible else LOSS_TOLERANCE):
            return mismatch
        if is_reproducible and (mismatch := _compare_files(run, retrained_run)):
            return mismatch
        return compare_scores(run, retrained_run.scores, "after training again")


def _compare_metrics(run: Run, retrained: Run, *, rtol: float) -> str:
    """Compare the lines of metrics.jsonl of a run and of its repetition; return the first difference."""
    recorded_lines, lines = (
        [_remove_unreproducible(line) for line in read_jsonl(compared_run.folder / "metrics.jsonl")]
        for compared_run in (run, retrained)
    )
    for recorded_line, line in zip(recorded_lines, lines, strict=False):
        if any(find_json_differences(recorded_line, line, rtol=rtol)):
            return (
                f"differs from step {line['step']} on ({line['split']}: loss {recorded_line.get('loss'):.6g} in the "
                f"file and {line['loss']:.6g} after training again); same versions and machine?"
            )
    if len(recorded_lines) != len(lines):
        return f"metrics.jsonl has {len(recorded_lines)} lines instead of {len(lines)}"
    return ""


def _compare_files(run: Run, retrained: Run) -> str:
    """Compare all files of a run and of its repetition, except the scores; return the first difference."""
    names, new_names = set(run.result.sha256), set(retrained.result.sha256)
    if names != new_names:
        return f"training does not write the same files: {', '.join(sorted(names ^ new_names)[:3])}"
    for name in sorted(names - {*IGNORED_FILES, "metrics.jsonl", "scores.safetensors"} | {"result.json"}):
        path, new_path = run.folder / name, retrained.folder / name
        if compute_sha256(path) == compute_sha256(new_path):
            continue
        if path.suffix != ".json":
            return f"{name} is not what training gives"
        contents = (_remove_unreproducible(read_json_object(file_path)) for file_path in (path, new_path))
        if key_path := next(find_json_differences(*contents), ""):
            return f"{name}: {key_path} is not what training gives"
    return ""


def _remove_unreproducible(value: Any) -> Any:
    """Return a JSON value without the keys that differ between repeated runs of a trial."""
    if isinstance(value, dict):
        return {key: _remove_unreproducible(item) for key, item in value.items() if key not in UNREPRODUCIBLE_KEYS}
    return [_remove_unreproducible(item) for item in value] if isinstance(value, list) else value
