"""Run folders that others made."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from .sample_experiment import replace_checked_file, replace_file, sample_runs, strip_checksum
from .target import fuzz_target


def file_of(data: bytes, names: Sequence[str]) -> tuple[str, bytes]:
    """The first byte says which file the rest is put in the place of."""
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


def _run_files(scratch: Path) -> list[bytes]:
    inputs = []
    for labels in (False, True):
        for index, name in enumerate(RUN_FILES):
            path = sample_runs(scratch, labels=labels) / name
            content = path.read_bytes() if path.is_file() else b'{"message": "diverged", "kind": "DivergedError"}'
            inputs.append(bytes([index]) + strip_checksum(content))
    return inputs


@fuzz_target("run", _run_files)
def _run(data: bytes, scratch: Path) -> None:
    from headtohead.experiment import run_folder
    from headtohead.findings import compute
    from headtohead.report import write

    name, content = file_of(data, RUN_FILES)
    folder = sample_runs(scratch, labels=b"accuracy" in content or b"classify" in content)
    before = (folder / "findings.json").read_bytes()
    with replace_checked_file(folder, name, content), replace_file(folder / "findings.json", before):
        opened = run_folder.open_runs(folder)
        compute.write_findings(opened)
        write(folder, ["md"], scratch / "report")


@fuzz_target("verify", _run_files)
def _verify(data: bytes, scratch: Path) -> None:
    from headtohead.runner.verify import verify_experiment

    name, content = file_of(data, (*RUN_FILES, "findings.json"))
    folder = sample_runs(scratch)
    with replace_checked_file(folder, name, content):
        [json.dumps(check.to_dict(), allow_nan=False) for check in verify_experiment(folder)]


def _found(scratch: Path) -> list[bytes]:
    return [
        strip_checksum((sample_runs(scratch, labels=labels) / "findings.json").read_bytes()) for labels in (False, True)
    ]


@fuzz_target("findings", _found)
def _findings(data: bytes, scratch: Path) -> None:
    from headtohead.report import write

    folder = sample_runs(scratch)
    with replace_file(folder / "findings.json", data):
        write(folder, ["md", "csv", "tex"], scratch / "report")


CHECKPOINT = ("state.json", "model.safetensors", "optimizer.safetensors")


def _checkpoints(scratch: Path) -> list[bytes]:
    (folder,) = (sample_runs(scratch) / "baseline" / "seed-0").glob("checkpoint-*")
    return [bytes([index]) + strip_checksum((folder / name).read_bytes()) for index, name in enumerate(CHECKPOINT)]


@fuzz_target("checkpoint", _checkpoints)
def _checkpoint(data: bytes, scratch: Path) -> None:
    import hashlib

    from headtohead.experiment.run_folder import Run
    from headtohead.tasks.registry import prepare_dataset
    from headtohead.training.checkpoints import restore
    from headtohead.trials.trial import build_initial_model

    run = sample_runs(scratch) / "baseline" / "seed-0"
    trial = Run(run).trial
    (folder,) = run.glob("checkpoint-*")
    name, content = file_of(data, CHECKPOINT)
    state = json.loads(strip_checksum((folder / "state.json").read_bytes()))
    if name != "state.json":  # with a checksum that agrees, so that what is behind it is tried
        state["sha256"][name] = hashlib.sha256(content).hexdigest()
    model = build_initial_model(trial, prepare_dataset(trial.data, trial.task))
    with replace_file(folder / "state.json", json.dumps(state).encode()), replace_file(folder / name, content):
        restore(folder, model)
