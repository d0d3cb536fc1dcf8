"""Real A/A experiments: train both sides of experiments whose two sides differ in nothing that can matter.

The variant rotates the heads before the output projection, which absorbs the rotation: under random initialization both
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
    normalize_letters,
    pad_sentences,
    read_addresses,
    write_classification_corpus,
    write_language_model_corpus,
)
from .batched_training import TinyModels

NUM_EXPERIMENTS = 1_000
SEEDS = 24
"""seeds per side and experiment: enough for `auto` and for following the advice of the tool"""
FIRST_SEED = 1_000
DOCUMENT_COUNTS = (3, 5, 8, 12, 20)
"""numbers of test documents, which experiments have in turn"""
EXAMPLES = 120
"""test examples of an experiment, distributed over its documents in proportion to their length; for a classifier, half
of them for each class"""
MIN_EXAMPLES = 2
"""examples of the shortest document"""
EXPERIMENTS_PER_FILE = 20
EXPERIMENTS_PER_BATCH = 10
ROWS_PER_CLASS = 250

_BASE_MODEL = {"layers": 1, "heads": 2, "context": 16, "feedforward": "none"}
_BASE_TRAINING = {"eval_every": 1000, "optimizer": {"kind": "adam", "lr": 3e-2}}
LANGUAGE_MODEL: dict[str, Any] = {
    "question": "Does rotating the heads matter?",
    "task": "language-model",
    "data": {"tokenizer": "characters", "validation_fraction": 0.0},
    "model": {**_BASE_MODEL, "width": 12},
    "training": {**_BASE_TRAINING, "budget": "32 steps", "batch_size": 8},
    "variants": {"shift": {"model": {"merge": "shift"}}},
}
CLASSIFIER: dict[str, Any] = {
    "question": "Does rotating the heads matter?",
    "task": "classify",
    "data": {"tokenizer": {"kind": "words", "min_count": 5}, "validation_fraction": 0.0},
    "model": {**_BASE_MODEL, "width": 8, "position": "none", "classifier_hidden": None},
    "training": {**_BASE_TRAINING, "budget": "40 steps", "batch_size": 12},
    "variants": {"shift": {"model": {"merge": "shift"}}},
}
AA_EXPERIMENTS = {"language model": LANGUAGE_MODEL, "classifier": CLASSIFIER}
"""experiment file by kind of model"""


@dataclass(frozen=True, eq=False)
class TestExamples:
    """Test examples of one experiment."""

    input_ids: Tensor
    labels: Tensor
    attention_mask: Tensor
    documents: np.ndarray
    """index of the address of each example, into `read_addresses()`"""
    weights: np.ndarray
    """predictions per example"""


def prepare_sides(kind: str, corpora: Path) -> tuple[TinyModels, TinyModels]:
    """Return both sides of the A/A experiments of a kind."""
    folder, raw = corpora / kind.replace(" ", "-"), AA_EXPERIMENTS[kind]
    addresses = read_addresses()
    train, test = addresses[:TRAINING_ADDRESSES], addresses[-20:]
    if kind == "classifier":
        write_classification_corpus(folder, train, test, ROWS_PER_CLASS)
    else:
        write_language_model_corpus(folder, train, test, normalize=normalize_letters)
    experiment = loading.build_experiment({**raw, "data": {**raw["data"], "source": str(folder)}}, "calibration")
    return TinyModels.prepare(experiment, "baseline"), TinyModels.prepare(experiment, "shift")


def draw_documents(kind: str, experiment: int) -> list[int]:
    """Return the test documents of an experiment; for a classifier, about as many of each class."""
    rng = np.random.default_rng([experiment, 7])
    num_documents, addresses = DOCUMENT_COUNTS[experiment % len(DOCUMENT_COUNTS)], read_addresses()
    held_out = range(TRAINING_ADDRESSES, len(addresses))
    if kind == "language model":
        return sorted(int(index) for index in rng.choice(held_out, num_documents, replace=False))
    selected: list[int] = []
    for period_index, period in enumerate(PERIODS):
        candidates = [index for index in held_out if addresses[index].period == period]
        num_selected = num_documents // 2 + (
            num_documents % 2 and experiment // len(DOCUMENT_COUNTS) % 2 == period_index
        )
        selected += [int(index) for index in rng.choice(candidates, num_selected, replace=False)]
    return sorted(selected)


def allocate_examples(lengths: Sequence[int], total: int) -> list[int]:
    """Return the number of examples of each document, in proportion to its length."""
    return [min(length, max(MIN_EXAMPLES, round(total * length / sum(lengths)))) for length in lengths]


def allocate_by_class(documents: Sequence[Address]) -> list[int]:
    """Return the number of examples of each document of a classifier; both classes have half of them."""
    counts = dict.fromkeys((document.name for document in documents), 0)
    for period in PERIODS:
        class_documents = [document for document in documents if document.period == period]
        class_counts = allocate_examples(
            [len(document.sentences) for document in class_documents], EXAMPLES // len(PERIODS)
        )
        counts |= {
            document.name: num_examples for document, num_examples in zip(class_documents, class_counts, strict=True)
        }
    return [counts[document.name] for document in documents]


def build_test_examples(kind: str, experiment: int, models: TinyModels) -> TestExamples:
    """Return the test examples of an experiment, from the beginning of each of its documents."""
    tokenizer, context = models.dataset.tokenizer, models.trial.model.context
    indices = draw_documents(kind, experiment)
    documents: list[Address] = [read_addresses()[index] for index in indices]
    if kind == "language model":
        blocks = [
            cut_into_blocks(normalize_letters("\n".join(document.sentences)), tokenizer, context)
            for document in documents
        ]
        counts = allocate_examples([len(document_blocks) for document_blocks in blocks], EXAMPLES)
        token_blocks = torch.cat(
            [document_blocks[:count] for document_blocks, count in zip(blocks, counts, strict=True)]
        )
        input_ids, labels, attention_mask = token_blocks[:, :-1], token_blocks[:, 1:], torch.ones(1, dtype=torch.bool)
        weights = np.full(len(token_blocks), float(context))
    else:
        counts = allocate_by_class(documents)
        selected = [
            sentence
            for document, count in zip(documents, counts, strict=True)
            for sentence in document.sentences[:count]
        ]
        input_ids, attention_mask = pad_sentences(selected, tokenizer, context)
        label_names = models.dataset.label_names
        document_labels = [label_names.index(document.period) for document in documents]
        labels = torch.tensor(np.repeat(document_labels, counts))
        weights = np.ones(len(selected))
    return TestExamples(input_ids, labels, attention_mask, np.repeat(indices, counts), weights)


def train_experiments(kind: str, cache: Path) -> None:
    """Train all experiments of a kind that the cache does not hold yet, and print the throughput."""
    folder = cache / kind.replace(" ", "-")
    folder.mkdir(parents=True, exist_ok=True)
    sides = prepare_sides(kind, cache / "corpora")
    for first_experiment in range(0, NUM_EXPERIMENTS, EXPERIMENTS_PER_FILE):
        path = folder / f"{first_experiment:05d}.npz"
        if path.is_file():
            continue
        wall_start, cpu_start = time.time(), time.process_time()
        arrays: dict[str, np.ndarray] = {}
        for batch_start in range(first_experiment, first_experiment + EXPERIMENTS_PER_FILE, EXPERIMENTS_PER_BATCH):
            arrays |= _train_experiment_batch(kind, range(batch_start, batch_start + EXPERIMENTS_PER_BATCH), sides)
        temporary = path.with_suffix(".tmp.npz")
        np.savez_compressed(temporary, allow_pickle=False, **arrays)
        temporary.rename(path)
        num_trainings = 2 * SEEDS * EXPERIMENTS_PER_FILE
        print(
            f"{kind}: {first_experiment + EXPERIMENTS_PER_FILE} of {NUM_EXPERIMENTS} experiments, "
            f"{(time.time() - wall_start) / num_trainings:.4f} s per training, "
            f"{(time.process_time() - cpu_start) / num_trainings:.4f} s CPU",
            flush=True,
        )


def _train_experiment_batch(kind: str, experiments: range, sides: Sequence[TinyModels]) -> dict[str, np.ndarray]:
    """Train some experiments at once; return arrays with their scores, documents and weights.

    Scores have shape (sides, seeds, examples).
    """
    seeds = [FIRST_SEED + SEEDS * experiment + seed_index for experiment in experiments for seed_index in range(SEEDS)]
    initial_parameters = sides[0].init_parameters(seeds)
    trained_parameters = [side.train(seeds, initial_parameters) for side in sides]
    arrays: dict[str, np.ndarray] = {}
    for experiment_index, experiment in enumerate(experiments):
        examples = build_test_examples(kind, experiment, sides[0])
        experiment_seeds = slice(experiment_index * SEEDS, (experiment_index + 1) * SEEDS)
        scores = [
            side.score(
                {seed_index: tensor[experiment_seeds] for seed_index, tensor in parameters.items()},
                examples.input_ids,
                examples.labels,
                examples.attention_mask,
            )
            for side, parameters in zip(sides, trained_parameters, strict=True)
        ]
        arrays[f"scores-{experiment}"] = np.stack(scores).astype(np.float32)
        arrays[f"documents-{experiment}"] = examples.documents.astype(np.int16)
        arrays[f"weights-{experiment}"] = examples.weights.astype(np.float32)
    return arrays
