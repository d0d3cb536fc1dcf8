"""Fuzz targets for run folders: their files, findings and checkpoints."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from .sample_experiment import build_sample_runs, replace_checksummed_file, replace_file, strip_checksums
from .target import register_fuzz_target


def select_file(data: bytes, names: Sequence[str]) -> tuple[str, bytes]:
    """Return the file that the first byte of an input selects, and the remaining bytes as its content."""
    return names[data[0] % len(names)] if data else names[0], data[1:]


RUN_FILES = (
    "experiment.json",
    "corpus.json",
    "baseline/seed-0/trial.json",
    "baseline/seed-0/start.json",
    "baseline/seed-0/metrics.jsonl",
    "baseline/seed-0/result.json",
    "baseline/seed-0/audits.json",
    "baseline/seed-0/probes.json",
    "baseline/seed-0/lengths.json",
    "baseline/seed-0/attention.json",
    "alibi/seed-1/result.json",
    "alibi/seed-1/metrics.jsonl",
    "baseline/seed-7/failure.json",
    "baseline/seed-0/scores.safetensors",
)


def _build_run_files(scratch: Path) -> list[bytes]:
    inputs = []
    for labels in (False, True):
        for index, name in enumerate(RUN_FILES):
            path = build_sample_runs(scratch, labels=labels) / name
            content = path.read_bytes() if path.is_file() else b'{"message": "diverged", "kind": "DivergedError"}'
            inputs.append(bytes([index]) + strip_checksums(content))
    return inputs


@register_fuzz_target("run", _build_run_files)
def _compute_findings(data: bytes, scratch: Path) -> None:
    from headtohead.experiment import run_folder
    from headtohead.findings import compute
    from headtohead.report import write

    name, content = select_file(data, RUN_FILES)
    folder = build_sample_runs(scratch, labels=b"accuracy" in content or b"classify" in content)
    findings_before = (folder / "findings.json").read_bytes()
    with replace_checksummed_file(folder, name, content), replace_file(folder / "findings.json", findings_before):
        runs = run_folder.open_experiment_runs(folder)
        compute.write_findings(runs)
        write(folder, ["md"], scratch / "report")


@register_fuzz_target("verify", _build_run_files)
def _verify_experiment(data: bytes, scratch: Path) -> None:
    from headtohead.runner.verification.verify import verify_experiment

    name, content = select_file(data, (*RUN_FILES, "findings.json"))
    folder = build_sample_runs(scratch)
    with replace_checksummed_file(folder, name, content):
        [json.dumps(check.to_dict(), allow_nan=False) for check in verify_experiment(folder)]


def _build_findings_files(scratch: Path) -> list[bytes]:
    return [
        strip_checksums((build_sample_runs(scratch, labels=labels) / "findings.json").read_bytes())
        for labels in (False, True)
    ]


@register_fuzz_target("findings", _build_findings_files)
def _write_reports(data: bytes, scratch: Path) -> None:
    from headtohead.report import write

    folder = build_sample_runs(scratch)
    with replace_file(folder / "findings.json", data):
        write(folder, ["md", "csv", "tex"], scratch / "report")


CHECKPOINT_FILES = ("state.json", "model.safetensors", "optimizer.safetensors")


def _build_checkpoint_files(scratch: Path) -> list[bytes]:
    (folder,) = (build_sample_runs(scratch) / "baseline" / "seed-0").glob("checkpoint-*")
    return [
        bytes([index]) + strip_checksums((folder / name).read_bytes()) for index, name in enumerate(CHECKPOINT_FILES)
    ]


@register_fuzz_target("checkpoint", _build_checkpoint_files)
def _restore_checkpoint(data: bytes, scratch: Path) -> None:
    import hashlib

    from headtohead.experiment.run_folder import Run
    from headtohead.tasks.registry import prepare_dataset
    from headtohead.training.checkpoints import restore_checkpoint
    from headtohead.trials.trial import build_initial_model

    run = build_sample_runs(scratch) / "baseline" / "seed-0"
    trial = Run(run).trial
    (folder,) = run.glob("checkpoint-*")
    name, content = select_file(data, CHECKPOINT_FILES)
    state = json.loads(strip_checksums((folder / "state.json").read_bytes()))
    if name != "state.json":  # with a valid checksum, so that the content is read
        state["sha256"][name] = hashlib.sha256(content).hexdigest()
    model = build_initial_model(trial, prepare_dataset(trial.data, trial.task))
    with replace_file(folder / "state.json", json.dumps(state).encode()), replace_file(folder / name, content):
        restore_checkpoint(folder, model)
