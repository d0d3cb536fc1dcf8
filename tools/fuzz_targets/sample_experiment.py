"""A small world to take sound files from: texts, and an experiment that is really run, in a few steps."""

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
    draw = random.Random(0)
    words = "the people will defend peace law work land and ask for schools jobs . we must honor it".split()
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in (("train", 60), ("validation", 12), ("test", 12)):
        lines = [" ".join(draw.choices(words, k=8)) for _ in range(rows)]
        if labels:
            lines = ["label\ttext", *(f"{'a' if 'peace' in line else 'b'}\t{line}" for line in lines)]
        (folder / f"{name}{'.tsv' if labels else '.txt'}").write_text("\n".join(lines) + "\n")
    return folder


def build_raw_experiment(folder: Path, *, labels: bool = False) -> dict[str, Any]:
    return {
        "question": "Does it help?",
        "task": "classify" if labels else "language-model",
        "seeds": 2,
        "data": {"source": str(folder)},
        "model": {"width": 8, "layers": 1, "heads": 2, "context": 8},
        "training": {"steps": 2, "batch_size": 4, "eval_every": 1, "checkpoint_every": 1},
        "variants": {"alibi": {"model": {"position": "alibi"}}},
        "probe": {"prompts": ["the people"], "sentences": {"one": "the people honor it ."}, "contexts": [4]},
    }


def sample_runs(scratch: Path, *, labels: bool = False) -> Path:
    """The folder of an experiment that was really run, with a checkpoint left in one of its runs."""
    folder = scratch / ("runs-labels" if labels else "runs")
    if (folder / "findings.json").is_file():
        return folder
    from headtohead.config.loading import build_trial
    from headtohead.experiment import loading
    from headtohead.experiment.journal import Journal
    from headtohead.findings import compute
    from headtohead.runner.run_experiment import prepare_folder
    from headtohead.tasks.registry import prepare_dataset
    from headtohead.training import devices
    from headtohead.trials.trial import build_training, run_trial

    os.environ["XDG_CACHE_HOME"] = str(scratch / "cache")
    texts = write_corpus(scratch / f"corpus-{labels}", labels=labels)
    experiment = loading.build_experiment(build_raw_experiment(texts, labels=labels))
    runs = prepare_folder(folder, experiment, command=["h2h"], resume=False)
    for variant in experiment.names:
        for seed in range(2):
            run = runs.run(variant, seed)
            run_trial(build_trial(experiment, variant, seed), run.folder, device="cpu")
            Journal(folder).record_finished(variant, seed, run.folder)
    first, half = build_trial(experiment, "baseline", 0), scratch / f"half-{labels}"
    _, training = build_training(first, prepare_dataset(first.data, first.task), half, devices.select_device("cpu"))
    training.run()
    for checkpoint in half.glob("checkpoint-*"):
        shutil.move(checkpoint, folder / "baseline" / "seed-0" / checkpoint.name)
    compute.write_findings(runs)
    return folder


@contextlib.contextmanager
def replace_file(path: Path, data: bytes) -> Iterator[None]:
    """Inside, the file holds this; afterwards it is as it was."""
    before = path.read_bytes() if path.is_file() else None
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    try:
        yield
    finally:
        path.write_bytes(before) if before is not None else path.unlink(missing_ok=True)


def strip_checksum(content: bytes) -> bytes:
    """JSON, or lines of it, without the checksums that they carry: whoever makes up a file makes these up too."""
    try:
        rows = [json.loads(line) for line in content.splitlines()]
        return b"".join(json.dumps(_drop_checksum(row)).encode() + b"\n" for row in rows)
    except ValueError:
        pass
    try:
        return json.dumps(_drop_checksum(json.loads(content)), indent=1).encode()
    except ValueError:
        return content


def _drop_checksum(value: Any) -> Any:
    return {key: item for key, item in value.items() if key != "checksum"} if isinstance(value, dict) else value


def chain_lines(content: bytes) -> bytes:
    """Lines of a journal with their checksums; lines that are no objects stay as they are."""
    from headtohead.atomic_io import CHECKSUM_KEY, compute_checksum

    try:
        rows = [json.loads(line) for line in content.splitlines()]
        checksum, lines = "", []
        for row in rows:
            checksum = compute_checksum(row, checksum)
            lines.append(json.dumps({**row, CHECKSUM_KEY: checksum}).encode() + b"\n")
        return b"".join(lines)
    except (ValueError, TypeError, AttributeError, RecursionError):
        return content


@contextlib.contextmanager
def replace_checked_file(folder: Path, name: str, content: bytes) -> Iterator[None]:
    """Inside, the file of an experiment's folder holds this, and the result of its run vouches for it."""
    variant, _, run_name = name.partition("/")
    seed, _, file = run_name.partition("/")
    result = folder / variant / seed / "result.json"
    with replace_file(folder / name, content):
        if not file or file == "result.json" or not result.is_file():
            yield
            return
        recorded = _drop_checksum(json.loads(result.read_bytes()))
        recorded["sha256"][file] = hashlib.sha256(content).hexdigest()
        with replace_file(result, json.dumps(recorded).encode()):
            yield
