"""Real comparisons with document effects: ALiBi, a sliding window and dropout against a base model, on many addresses.

Test documents are addresses that no model was trained on. Scores are kept for each seed and example, with the address
of the example, so that whole documents can be redrawn.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headtohead.experiment import loading

from .addresses import cut_into_blocks, read_addresses, write_language_model_corpus
from .batched_training import TinyModels

SEEDS = 320
"""so many that a few redrawn seeds are rarely equal, since two new seeds never are"""
SEEDS_PER_BATCH = 8
BLOCK_STRIDE = 20
"""one test block in this many is scored"""
FIRST_YEAR = 1946
TRAINING_DOCUMENTS = 24
"""addresses since `FIRST_YEAR` that train the models"""

COMPARISON_EXPERIMENT: dict[str, Any] = {
    "question": "Do attention biases, windows and dropout matter?",
    "task": "language-model",
    "data": {"tokenizer": {"kind": "bpe", "vocab_size": 300}, "validation_fraction": 0.0},
    "model": {"width": 24, "layers": 2, "heads": 2, "context": 32},
    "training": {
        "budget": "120 steps",
        "batch_size": 16,
        "eval_every": 1000,
        "optimizer": {"kind": "adam", "lr": 1e-2},
    },
    "variants": {
        "alibi": {"model": {"position": "alibi"}},
        "window": {"model": {"pattern": ["causal", {"kind": "window", "size": 3}]}},
        "dropout": {"model": {"dropout": 0.1}},
    },
}
VARIANTS = ("baseline", *COMPARISON_EXPERIMENT["variants"])


def train_comparisons(cache: Path) -> None:
    """Train all variants that the cache does not hold yet; write scores (seeds, examples), documents and weights."""
    folder = cache / "comparisons"
    folder.mkdir(parents=True, exist_ok=True)
    recent_indices = [index for index, address in enumerate(read_addresses()) if address.year >= FIRST_YEAR]
    training_indices = recent_indices[:TRAINING_DOCUMENTS]
    test_indices = [index for index in range(len(read_addresses())) if index not in training_indices]
    corpus = write_language_model_corpus(
        cache / "corpora" / "comparisons",
        [read_addresses()[index] for index in training_indices],
        [read_addresses()[test_indices[0]]],
    )
    raw = {**COMPARISON_EXPERIMENT, "data": {**COMPARISON_EXPERIMENT["data"], "source": str(corpus)}}
    experiment = loading.build_experiment(raw, "comparisons")
    for variant in VARIANTS:
        models = TinyModels.prepare(experiment, variant)
        blocks = [
            cut_into_blocks(
                "\n".join(read_addresses()[index].sentences), models.dataset.tokenizer, models.trial.model.context
            )[::BLOCK_STRIDE]
            for index in test_indices
        ]
        token_blocks = torch.cat(blocks)
        documents = np.repeat(test_indices, [len(block) for block in blocks]).astype(np.int16)
        for first_seed in range(0, SEEDS, SEEDS_PER_BATCH):
            path = folder / f"{variant}-{first_seed:03d}.npz"
            if path.is_file():
                continue
            wall_start, cpu_start = time.time(), time.process_time()
            trained_parameters = models.train(range(first_seed, first_seed + SEEDS_PER_BATCH))
            scores = [
                models.score(trained_parameters, chunk[:, :-1], chunk[:, 1:], torch.ones(1, dtype=torch.bool))
                for chunk in token_blocks.split(256)
            ]
            temporary = path.with_suffix(".tmp.npz")
            np.savez_compressed(
                temporary,
                scores=np.concatenate(scores, 1).astype(np.float32),
                documents=documents,
                weights=np.full(len(token_blocks), token_blocks.shape[1] - 1, np.float32),
            )
            temporary.rename(path)
            mean_losses = np.concatenate(scores, 1).sum(1) / token_blocks[:, 1:].numel()
            print(
                f"{path.name}: loss {mean_losses.mean():.4f} (sd {mean_losses.std():.4f}), "
                f"{(time.time() - wall_start) / SEEDS_PER_BATCH:.2f} s per training, "
                f"{(time.process_time() - cpu_start) / SEEDS_PER_BATCH:.2f} s CPU",
                flush=True,
            )
