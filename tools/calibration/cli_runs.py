"""A/A experiments through the command line: `h2h run`, then `h2h run --resume` with the advised seeds.

Each experiment has its own file, seeds and test documents. Commands run in this process, with a worker pool in this
process, because importing torch would take longer than training; everything else is the code of the command.
"""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from headtohead.cli import app
from headtohead.config.toml import format_toml_document
from headtohead.execution import worker
from headtohead.execution.worker_pool import Job, MessageQueue, WorkerPool
from headtohead.runner import run_experiment
from headtohead.verdict.decision_rule import OPEN_OUTCOMES

from .aa_training import AA_EXPERIMENTS, allocate_examples, draw_documents
from .addresses import TRAINING_ADDRESSES, Address, normalize_letters, read_addresses
from .results import ResultStore

NUM_EXPERIMENTS = 100
FIRST_SEEDS = 3
MAX_SEEDS = 8
"""advice is followed up to this number of seeds"""
SEEDS_ADDED_BY_HAND = 2
"""seeds added to the first ones if the verdict is open and no number of seeds is advised"""
FIRST_EXPERIMENT = 1_000
"""number of the first experiment, after those of `aa_training`, whose seeds and documents differ"""
TRAINING_SENTENCES = 500
TEST_SENTENCES = 60


@dataclass(frozen=True)
class CommandRow:
    """The verdicts that the commands of one experiment printed, in order."""

    kind: str
    experiment: int
    seeds: tuple[int, ...]
    verdicts: tuple[str, ...]
    advice: tuple[int | None, ...]
    confidences: tuple[float, ...]
    seconds: float


class InProcessWorker:
    """A worker that runs each job immediately, in this process."""

    def __init__(self, message_queue: MessageQueue, environment: dict[str, str], log_path: Path) -> None:
        self.job: Job | None = None
        self.is_ready = True
        self.exit_reason = "exited"
        self._queue = message_queue

    def send(self, message: dict[str, Any]) -> None:
        self._queue.put((self, message))

    def start_job(self, job: Job, device: str) -> None:
        self.job = job
        job.start()
        worker.run_and_report({**job.to_request(device), "request": 0}, self.send)

    def end(self) -> None: ...

    def close(self) -> None: ...


def run_command(arguments: Sequence[str]) -> dict[str, Any]:
    """Run `h2h` with these arguments and `--json`; return the printed findings."""
    output = io.StringIO()
    pool = WorkerPool(1, InProcessWorker)
    with (
        mock.patch.object(run_experiment, "build_backend_pool", return_value=pool),
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        app([*arguments, "--json"], standalone_mode=False)
    findings: dict[str, Any] = json.loads(output.getvalue())
    return findings


def write_experiment(kind: str, experiment: int, folder: Path) -> Path:
    """Write the file and the corpus of an experiment.

    The command numbers seeds from 0, so experiments differ in their training sentences instead, which changes every
    batch.
    """
    rng = np.random.default_rng([experiment, 8])
    addresses = read_addresses()
    train, test = addresses[:TRAINING_ADDRESSES], [addresses[i] for i in draw_documents(kind, experiment)]
    lines_by_split = {"test": _select_test_rows(kind, test), "train": _list_tsv_rows(kind, train)}
    order = rng.permutation(len(lines_by_split["train"]))[:TRAINING_SENTENCES]
    lines_by_split["train"] = [lines_by_split["train"][index] for index in order]
    corpus = folder / "corpus"
    corpus.mkdir(parents=True)
    header = "document\tlabel\ttext" if kind == "classifier" else "document\ttext"
    for split, lines in lines_by_split.items():
        (corpus / f"{split}.tsv").write_text("\n".join([header, *lines]) + "\n")
    path = folder / "experiment.toml"
    model = {
        key: value for key, value in AA_EXPERIMENTS[kind]["model"].items() if value is not None
    }  # TOML has no null
    settings = {**AA_EXPERIMENTS[kind], "model": model, "data": {**AA_EXPERIMENTS[kind]["data"], "source": str(corpus)}}
    path.write_text(format_toml_document(settings))
    return path


def _list_tsv_rows(kind: str, addresses: Sequence[Address]) -> list[str]:
    """Return the sentences of addresses as rows of a TSV file: document, class for a classifier, and text."""
    if kind == "classifier":
        return [
            f"{address.name}\t{address.period}\t{' '.join(sentence.split())}"
            for address in addresses
            if address.period
            for sentence in address.sentences
        ]
    texts = [(address.name, normalize_letters(sentence)) for address in addresses for sentence in address.sentences]
    return [f"{name}\t{text}" for name, text in texts if text]


def _select_test_rows(kind: str, documents: Sequence[Address]) -> list[str]:
    """Return sentences from the beginning of each document, in proportion to its length."""
    counts = allocate_examples([len(document.sentences) for document in documents], TEST_SENTENCES)
    return [
        row
        for document, count in zip(documents, counts, strict=True)
        for row in _list_tsv_rows(kind, [document])[:count]
    ]


def run_cli_experiment(kind: str, experiment: int, folder: Path) -> CommandRow:
    """Run one experiment and follow its advice."""
    start_time = time.monotonic()
    shutil.rmtree(folder, ignore_errors=True)
    path = write_experiment(kind, experiment, folder)
    seed_counts, variant_rows = [FIRST_SEEDS], []
    while True:
        command = ["run", str(path), "--out", str(folder / "runs"), "--device", "cpu", "--seeds", str(seed_counts[-1])]
        (variant_row,) = run_command([*command, *(["--resume"] if variant_rows else [])])["variants"]
        variant_rows.append(variant_row)
        more_seeds = variant_row["additional_seeds"] or (SEEDS_ADDED_BY_HAND if len(variant_rows) == 1 else 0)
        if variant_row["verdict"] not in OPEN_OUTCOMES or not more_seeds or seed_counts[-1] >= MAX_SEEDS:
            break
        seed_counts.append(min(seed_counts[-1] + more_seeds, MAX_SEEDS))
    shutil.rmtree(folder)
    return CommandRow(
        kind,
        experiment,
        tuple(seed_counts),
        tuple(variant_row["verdict"] for variant_row in variant_rows),
        tuple(variant_row["additional_seeds"] for variant_row in variant_rows),
        tuple(variant_row["adjusted_confidence"] for variant_row in variant_rows),
        time.monotonic() - start_time,
    )


def run_cli_experiments(store: ResultStore, cache: Path) -> list[CommandRow]:
    """Run all experiments that are not stored yet, kinds in turn."""
    rows = []
    for offset in range(NUM_EXPERIMENTS):
        for kind in AA_EXPERIMENTS:
            experiment = FIRST_EXPERIMENT + offset
            rows.append(
                store.get(
                    "commands",
                    f"{kind}; {experiment}",
                    CommandRow,
                    lambda kind=kind, experiment=experiment: run_cli_experiment(  # type: ignore[misc]
                        kind, experiment, cache / "commands" / f"{kind.replace(' ', '-')}-{experiment}"
                    ),
                )
            )
            print(rows[-1], flush=True)
    return rows
