"""Valid sample files for fuzzing: texts, and a real experiment of a few steps."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TEXT = "The people ask for peace. We don't forget them: the law, the work, the land.\n"


def write_corpus(folder: Path, *, labels: bool = False) -> Path:
    """Write a small corpus, with labels for a classifier."""
    rng = random.Random(0)
    words = "the people will defend peace law work land and ask for schools jobs . we must honor it".split()
    folder.mkdir(parents=True, exist_ok=True)
    for split, num_lines in (("train", 60), ("validation", 12), ("test", 12)):
        lines = [" ".join(rng.choices(words, k=8)) for _ in range(num_lines)]
        if labels:
            lines = ["label\ttext", *(f"{'a' if 'peace' in line else 'b'}\t{line}" for line in lines)]
        (folder / f"{split}{'.tsv' if labels else '.txt'}").write_text("\n".join(lines) + "\n")
    return folder


def build_raw_experiment(folder: Path, *, labels: bool = False) -> dict[str, Any]:
    """Return an experiment file with two variants and two seeds of two steps."""
    return {
        "question": "Does it help?",
        "task": "classify" if labels else "language-model",
        "seeds": 2,
        "data": {"source": str(folder)},
        "model": {"width": 8, "layers": 1, "heads": 2, "context": 8},
        "training": {"budget": "2 steps", "batch_size": 4, "eval_every": 1, "checkpoint_every": 1},
        "variants": {"alibi": {"model": {"position": "alibi"}}},
        "probe": {"prompts": ["the people"], "sentences": {"one": "the people honor it ."}, "contexts": [4]},
    }


def build_sample_runs(scratch: Path, *, labels: bool = False) -> Path:
    """Return the folder of a real finished experiment, with a checkpoint in one of its runs."""
    folder = scratch / ("runs-labels" if labels else "runs")
    if (folder / "findings.json").is_file():
        return folder
    from headtohead.config.trial_settings import build_trial
    from headtohead.experiment import loading
    from headtohead.experiment.journal import Journal
    from headtohead.findings import compute
    from headtohead.runner.run_experiment import create_folder_with_corpus
    from headtohead.tasks.registry import prepare_dataset
    from headtohead.training.hardware import devices
    from headtohead.trials.trial import build_training, run_trial

    os.environ["XDG_CACHE_HOME"] = str(scratch / "cache")
    corpus_folder = write_corpus(scratch / f"corpus-{labels}", labels=labels)
    experiment = loading.build_experiment(build_raw_experiment(corpus_folder, labels=labels))
    runs = create_folder_with_corpus(folder, experiment, command=["h2h"], resume=False)
    for variant in experiment.names:
        for seed in range(2):
            run = runs.run(variant, seed)
            run_trial(build_trial(experiment, variant, seed), run.folder, device="cpu")
            Journal(folder).record_finished(variant, seed, run.folder)
    trial, unfinished_folder = build_trial(experiment, "baseline", 0), scratch / f"half-{labels}"
    dataset = prepare_dataset(trial.data, trial.task)
    _, trainer = build_training(trial, dataset, unfinished_folder, devices.select_device("cpu"))
    trainer.run()
    for checkpoint in unfinished_folder.glob("checkpoint-*"):
        shutil.move(checkpoint, folder / "baseline" / "seed-0" / checkpoint.name)
    compute.write_findings(runs)
    return folder


@contextlib.contextmanager
def replace_file(path: Path, data: bytes) -> Iterator[None]:
    """Replace the content of a file while the context is open, then restore it."""
    previous_content = path.read_bytes() if path.is_file() else None
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    try:
        yield
    finally:
        path.write_bytes(previous_content) if previous_content is not None else path.unlink(missing_ok=True)


def strip_checksums(content: bytes) -> bytes:
    """Remove the checksums from JSON or JSON lines, as an attacker would recompute them."""
    try:
        records = [json.loads(line) for line in content.splitlines()]
        return b"".join(json.dumps(_drop_checksum(record)).encode() + b"\n" for record in records)
    except ValueError:
        pass
    try:
        return json.dumps(_drop_checksum(json.loads(content)), indent=1).encode()
    except ValueError:
        return content


def _drop_checksum(value: Any) -> Any:
    """Return a JSON object without its checksum."""
    return {key: item for key, item in value.items() if key != "checksum"} if isinstance(value, dict) else value


def chain_journal_checksums(content: bytes) -> bytes:
    """Add chained checksums to journal lines; lines that are not objects are unchanged."""
    from headtohead.json_files import CHECKSUM_KEY, compute_json_checksum

    try:
        events = [json.loads(line) for line in content.splitlines()]
        checksum, lines = "", []
        for event in events:
            checksum = compute_json_checksum(event, checksum)
            lines.append(json.dumps({**event, CHECKSUM_KEY: checksum}).encode() + b"\n")
        return b"".join(lines)
    except (ValueError, TypeError, AttributeError, RecursionError):
        return content


@contextlib.contextmanager
def replace_checksummed_file(folder: Path, name: str, content: bytes) -> Iterator[None]:
    """Replace a file of an experiment folder and update its checksum in result.json while the context is open."""
    variant, _, run_name = name.partition("/")
    seed, _, file = run_name.partition("/")
    result_path = folder / variant / seed / "result.json"
    with replace_file(folder / name, content):
        if not file or file == "result.json" or not result_path.is_file():
            yield
            return
        result = _drop_checksum(json.loads(result_path.read_bytes()))
        result["sha256"][file] = hashlib.sha256(content).hexdigest()
        with replace_file(result_path, json.dumps(result).encode()):
            yield
