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

SEEDS = 40
SEEDS_AT_ONCE = 8
BLOCK_STRIDE = 20
"""one test block in this many is scored"""
FIRST_YEAR = 1946
TRAINING_DOCUMENTS = 24
"""addresses since `FIRST_YEAR` that train the models"""

EXPERIMENT: dict[str, Any] = {
    "question": "Do attention biases, windows and dropout matter?",
    "task": "language-model",
    "data": {"tokenizer": {"kind": "bpe", "vocab_size": 300}, "validation_fraction": 0.0},
    "model": {"width": 24, "layers": 2, "heads": 2, "context": 32},
    "training": {"steps": 120, "batch_size": 16, "eval_every": 1000, "optimizer": {"kind": "adam", "lr": 1e-2}},
    "variants": {
        "alibi": {"model": {"position": "alibi"}},
        "window": {"model": {"pattern": ["causal", {"kind": "window", "size": 3}]}},
        "dropout": {"model": {"dropout": 0.1}},
    },
}
VARIANTS = ("baseline", *EXPERIMENT["variants"])


def train_comparisons(cache: Path) -> None:
    """Train all variants that the cache does not hold yet; write scores (seeds, examples), documents and weights."""
    folder = cache / "comparisons"
    folder.mkdir(parents=True, exist_ok=True)
    recent = [i for i, address in enumerate(read_addresses()) if address.year >= FIRST_YEAR]
    training = recent[:TRAINING_DOCUMENTS]
    held_out = [i for i in range(len(read_addresses())) if i not in training]
    corpus = write_language_model_corpus(
        cache / "corpora" / "comparisons",
        [read_addresses()[i] for i in training],
        [read_addresses()[held_out[0]]],
    )
    raw = {**EXPERIMENT, "data": {**EXPERIMENT["data"], "source": str(corpus)}}
    experiment = loading.build_experiment(raw, "comparisons")
    for variant in VARIANTS:
        models = TinyModels.prepare(experiment, variant)
        blocks = [
            cut_into_blocks(
                "\n".join(read_addresses()[i].sentences), models.dataset.tokenizer, models.trial.model.context
            )[::BLOCK_STRIDE]
            for i in held_out
        ]
        tokens = torch.cat(blocks)
        documents = np.repeat(held_out, [len(block) for block in blocks]).astype(np.int16)
        for first in range(0, SEEDS, SEEDS_AT_ONCE):
            path = folder / f"{variant}-{first:03d}.npz"
            if path.is_file():
                continue
            clock, cpu = time.time(), time.process_time()
            trained = models.train(range(first, first + SEEDS_AT_ONCE))
            scores = [
                models.score(trained, chunk[:, :-1], chunk[:, 1:], torch.ones(1, dtype=torch.bool))
                for chunk in tokens.split(256)
            ]
            temporary = path.with_suffix(".tmp.npz")
            np.savez_compressed(
                temporary,
                scores=np.concatenate(scores, 1).astype(np.float32),
                documents=documents,
                weights=np.full(len(tokens), tokens.shape[1] - 1, np.float32),
            )
            temporary.rename(path)
            loss = np.concatenate(scores, 1).sum(1) / tokens[:, 1:].numel()
            print(
                f"{path.name}: loss {loss.mean():.4f} (sd {loss.std():.4f}), "
                f"{(time.time() - clock) / SEEDS_AT_ONCE:.2f} s per training, "
                f"{(time.process_time() - cpu) / SEEDS_AT_ONCE:.2f} s CPU",
                flush=True,
            )
