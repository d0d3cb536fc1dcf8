"""Real A/A experiments: train both sides of experiments whose two sides differ in nothing that can matter.

The variant rotates the heads before the output projection, which absorbs the rotation: under random initialisation both
sides have the same distribution, and equal seeds share initial weights and batches. Every experiment has its own seeds
and its own draw of test documents.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headtohead.experiment import loading

from .addresses import (
    PERIODS,
    TRAINING_ADDRESSES,
    Address,
    cut_into_blocks,
    keep_letters,
    pad_sentences,
    read_addresses,
    write_classification_corpus,
    write_language_model_corpus,
)
from .batched_training import TinyModels

EXPERIMENTS = 1_000
SEEDS = 24
"""seeds per side and experiment: enough for `auto` and for following the advice of the tool"""
FIRST_SEED = 1_000
DOCUMENT_COUNTS = (3, 5, 8, 12, 20)
"""test documents of an experiment, in turn"""
EXAMPLES = 120
"""test examples of an experiment, distributed over its documents in proportion to their length; for a classifier, half
of them for each class"""
MIN_EXAMPLES = 2
"""examples of the shortest document"""
EXPERIMENTS_PER_FILE = 20
EXPERIMENTS_AT_ONCE = 10
ROWS_PER_CLASS = 250

_MODEL = {"layers": 1, "heads": 2, "context": 16, "feedforward": "none"}
_TRAINING = {"eval_every": 1000, "optimizer": {"kind": "adam", "lr": 3e-2}}
LANGUAGE_MODEL: dict[str, Any] = {
    "question": "Does rotating the heads matter?",
    "task": "language-model",
    "data": {"tokenizer": "characters", "validation_fraction": 0.0},
    "model": {**_MODEL, "width": 12},
    "training": {**_TRAINING, "steps": 32, "batch_size": 8},
    "variants": {"shift": {"model": {"merge": "shift"}}},
}
CLASSIFIER: dict[str, Any] = {
    "question": "Does rotating the heads matter?",
    "task": "classify",
    "data": {"tokenizer": {"kind": "words", "min_count": 5}, "validation_fraction": 0.0},
    "model": {**_MODEL, "width": 8, "position": "none", "classifier_hidden": None},
    "training": {**_TRAINING, "steps": 40, "batch_size": 12},
    "variants": {"shift": {"model": {"merge": "shift"}}},
}
KINDS = {"language model": LANGUAGE_MODEL, "classifier": CLASSIFIER}


@dataclass(frozen=True, eq=False)
class TestExamples:
    """Test examples of one experiment."""

    input_ids: Tensor
    labels: Tensor
    mask: Tensor
    documents: np.ndarray
    """index of the address of each example, into `read_addresses()`"""
    weights: np.ndarray
    """predictions per example"""


def prepare_sides(kind: str, corpora: Path) -> tuple[TinyModels, TinyModels]:
    """Return both sides of the A/A experiments of a kind."""
    folder, raw = corpora / kind.replace(" ", "-"), KINDS[kind]
    addresses = read_addresses()
    train, test = addresses[:TRAINING_ADDRESSES], addresses[-20:]
    if kind == "classifier":
        write_classification_corpus(folder, train, test, ROWS_PER_CLASS)
    else:
        write_language_model_corpus(folder, train, test, normalize=keep_letters)
    experiment = loading.build_experiment({**raw, "data": {**raw["data"], "source": str(folder)}}, "calibration")
    return TinyModels.prepare(experiment, "baseline"), TinyModels.prepare(experiment, "shift")


def draw_documents(kind: str, experiment: int) -> list[int]:
    """Return the test documents of an experiment; for a classifier, about as many of each class."""
    rng = np.random.default_rng([experiment, 7])
    count, addresses = DOCUMENT_COUNTS[experiment % len(DOCUMENT_COUNTS)], read_addresses()
    held_out = range(TRAINING_ADDRESSES, len(addresses))
    if kind == "language model":
        return sorted(int(i) for i in rng.choice(held_out, count, replace=False))
    chosen: list[int] = []
    for index, period in enumerate(PERIODS):
        pool = [i for i in held_out if addresses[i].period == period]
        share = count // 2 + (count % 2 and experiment // len(DOCUMENT_COUNTS) % 2 == index)
        chosen += [int(i) for i in rng.choice(pool, share, replace=False)]
    return sorted(chosen)


def allocate_examples(lengths: Sequence[int], total: int) -> list[int]:
    """Return the number of examples of each document, in proportion to its length."""
    return [min(length, max(MIN_EXAMPLES, round(total * length / sum(lengths)))) for length in lengths]


def allocate_by_class(documents: Sequence[Address]) -> list[int]:
    """Return the number of examples of each document of a classifier; both classes have half of them."""
    counts = dict.fromkeys((document.name for document in documents), 0)
    for period in PERIODS:
        members = [document for document in documents if document.period == period]
        shares = allocate_examples([len(document.sentences) for document in members], EXAMPLES // len(PERIODS))
        counts |= {document.name: share for document, share in zip(members, shares, strict=True)}
    return [counts[document.name] for document in documents]


def build_test_examples(kind: str, experiment: int, models: TinyModels) -> TestExamples:
    """Return the test examples of an experiment, from the beginning of each of its documents."""
    tokenizer, context = models.dataset.tokenizer, models.trial.model.context
    indices = draw_documents(kind, experiment)
    documents: list[Address] = [read_addresses()[i] for i in indices]
    if kind == "language model":
        blocks = [
            cut_into_blocks(keep_letters("\n".join(document.sentences)), tokenizer, context) for document in documents
        ]
        counts = allocate_examples([len(document_blocks) for document_blocks in blocks], EXAMPLES)
        tokens = torch.cat([document_blocks[:count] for document_blocks, count in zip(blocks, counts, strict=True)])
        input_ids, labels, mask = tokens[:, :-1], tokens[:, 1:], torch.ones(1, dtype=torch.bool)
        weights = np.full(len(tokens), float(context))
    else:
        counts = allocate_by_class(documents)
        selected = [
            sentence
            for document, count in zip(documents, counts, strict=True)
            for sentence in document.sentences[:count]
        ]
        input_ids, mask = pad_sentences(selected, tokenizer, context)
        names = models.dataset.label_names
        classes = [names.index(document.period) for document in documents]
        labels = torch.tensor(np.repeat(classes, counts))
        weights = np.ones(len(selected))
    return TestExamples(input_ids, labels, mask, np.repeat(indices, counts), weights)


def train_experiments(kind: str, cache: Path) -> None:
    """Train all experiments of a kind that the cache does not hold yet, and print the throughput."""
    folder = cache / kind.replace(" ", "-")
    folder.mkdir(parents=True, exist_ok=True)
    sides = prepare_sides(kind, cache / "corpora")
    for start in range(0, EXPERIMENTS, EXPERIMENTS_PER_FILE):
        path = folder / f"{start:05d}.npz"
        if path.is_file():
            continue
        clock, cpu = time.time(), time.process_time()
        tables: dict[str, np.ndarray] = {}
        for first in range(start, start + EXPERIMENTS_PER_FILE, EXPERIMENTS_AT_ONCE):
            tables |= _train_chunk(kind, range(first, first + EXPERIMENTS_AT_ONCE), sides)
        temporary = path.with_suffix(".tmp.npz")
        np.savez_compressed(temporary, allow_pickle=False, **tables)
        temporary.rename(path)
        trainings = 2 * SEEDS * EXPERIMENTS_PER_FILE
        print(
            f"{kind}: {start + EXPERIMENTS_PER_FILE} of {EXPERIMENTS} experiments, "
            f"{(time.time() - clock) / trainings:.4f} s per training, "
            f"{(time.process_time() - cpu) / trainings:.4f} s CPU",
            flush=True,
        )


def _train_chunk(kind: str, experiments: range, sides: Sequence[TinyModels]) -> dict[str, np.ndarray]:
    """Train some experiments at once; return their scores (sides, seeds, examples), documents and weights."""
    seeds = [FIRST_SEED + SEEDS * experiment + k for experiment in experiments for k in range(SEEDS)]
    initial = sides[0].init_parameters(seeds)
    trained = [side.train(seeds, initial) for side in sides]
    tables: dict[str, np.ndarray] = {}
    for i, experiment in enumerate(experiments):
        examples = build_test_examples(kind, experiment, sides[0])
        rows = slice(i * SEEDS, (i + 1) * SEEDS)
        scores = [
            side.score({k: v[rows] for k, v in weights.items()}, examples.input_ids, examples.labels, examples.mask)
            for side, weights in zip(sides, trained, strict=True)
        ]
        tables[f"scores-{experiment}"] = np.stack(scores).astype(np.float32)
        tables[f"documents-{experiment}"] = examples.documents.astype(np.int16)
        tables[f"weights-{experiment}"] = examples.weights.astype(np.float32)
    return tables
