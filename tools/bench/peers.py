"""The peers' trainings: a plain loop for every model, and transformers' Trainer for GPT-2.

python -m tools.bench.peers NAME FOLDER SEED ...      trains NAME on what lies in FOLDER, seed after seed
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .lessons import EVALUATION_BATCH, Given
from .peer_models import PEERS

IGNORED = -100
Step = tuple[Tensor, Tensor, Tensor]
"""inputs, labels, and where they are not padding"""


@dataclass
class Told:
    """What a peer tells of its trainings."""

    seconds_training: float = 0.0
    seconds_scoring: float = 0.0
    losses: dict[int, dict[int, dict[str, float]]] = field(default_factory=dict)
    """by seed, step and text"""


def loss_of(model: nn.Module, step: Step, *, total: bool = False) -> Tensor:
    """The mean (or total) cross entropy of what is to be said, as a plain script computes it."""
    inputs, labels, mask = step
    logits = model(inputs, mask)
    how = "sum" if total else "mean"
    return F.cross_entropy(logits.flatten(0, -2), labels.flatten(), ignore_index=IGNORED, reduction=how)


def adam(model: nn.Module, rate: float) -> torch.optim.Optimizer:
    """Ours: Adam, fused."""
    return torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=rate, fused=True)


@torch.no_grad()
def score(model: nn.Module, texts: dict[str, list[Step]]) -> dict[str, float]:
    """The mean loss of each text."""
    model.eval()
    found = {}
    for name, steps in texts.items():
        counted = sum(int((step[1] != IGNORED).sum()) for step in steps)
        found[name] = sum(loss_of(model, step, total=True).item() for step in steps) / counted
    model.train()
    return found


def plain_loop(model: nn.Module, given: Given, seed: int, told: Told) -> None:
    """A training as a plain script writes it down."""
    shape, texts = given.shape, given.texts()
    optimizer = adam(model, shape.rate)
    model.train()
    losses = told.losses.setdefault(seed, {})
    for at, step in enumerate(given.batches(seed)):
        if at % shape.evaluate_every == 0:
            losses[at] = _timed_score(model, texts, told)
        began = time.perf_counter()
        loss = loss_of(model, step)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        told.seconds_training += time.perf_counter() - began
    losses[shape.steps] = _timed_score(model, texts, told)


def _timed_score(model: nn.Module, texts: dict[str, list[Step]], told: Told) -> dict[str, float]:
    began = time.perf_counter()
    found = score(model, texts)
    told.seconds_scoring += time.perf_counter() - began
    return found


class RowsOf(torch.utils.data.Dataset[dict[str, Tensor]]):
    """Batches as the rows that Trainer asks for."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.inputs = torch.cat([step[0] for step in steps])
        self.labels = torch.cat([step[1] for step in steps])

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, at: int) -> dict[str, Tensor]:
        return {"input_ids": self.inputs[at], "labels": self.labels[at]}


def trainer_loop(model: nn.Module, given: Given, seed: int, told: Told) -> None:
    """The same through transformers' Trainer, without what it does by default and we do not: clipping, decay of the
    rate, checkpoints, logs."""
    import transformers

    class InOrder(transformers.Trainer):
        """Rows in the order in which they lie there: the batches of every other contestant."""

        def _get_train_sampler(self, *asked: Any, **more: Any) -> Any:
            return torch.utils.data.SequentialSampler(self.train_dataset)

    shape = given.shape
    arguments = transformers.TrainingArguments(
        output_dir=str(given.folder / "trainer"),
        max_steps=shape.steps,
        per_device_train_batch_size=16,
        per_device_eval_batch_size=EVALUATION_BATCH,
        learning_rate=shape.rate,
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
        eval_strategy="steps",
        eval_steps=shape.evaluate_every,
        eval_on_start=True,
        prediction_loss_only=True,
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        dataloader_pin_memory=False,
        seed=seed,
    )

    def cross_entropy(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        return F.cross_entropy(outputs.logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)

    inner: Any = model.inner
    inner.config.use_cache = False
    trainer = InOrder(
        model=inner,
        args=arguments,
        train_dataset=RowsOf(given.batches(seed)),
        eval_dataset={name: RowsOf(steps) for name, steps in given.texts().items()},
        compute_loss_func=cross_entropy,
    )
    trainer.remove_callback(transformers.PrinterCallback)
    began = time.perf_counter()
    trainer.train()
    told.seconds_training += time.perf_counter() - began
    losses = told.losses.setdefault(seed, {})
    for line in trainer.state.log_history:
        for key, value in line.items():
            if not key.startswith("eval_"):
                continue
            text, _, what = key.removeprefix("eval_").rpartition("_")
            if what == "loss":
                losses.setdefault(line["step"], {})[text] = value
            elif what == "runtime":
                told.seconds_scoring += value
                told.seconds_training -= value


def train(name: str, given: Given, seeds: Sequence[int]) -> Told:
    """Seed after seed."""
    told = Told()
    loop = trainer_loop if name == "trainer" else plain_loop
    for seed in seeds:
        model = PEERS[name](given.shape, given.start(seed))
        loop(model, given, seed, told)
    if any(not math.isfinite(loss) for by in told.losses.values() for texts in by.values() for loss in texts.values()):
        raise FloatingPointError(f"{name}: a loss is not a number")
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=list(PEERS))
    parser.add_argument("folder", type=Path)
    parser.add_argument("seeds", type=int, nargs="+")
    parser.add_argument("--threads", type=int, default=1)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    told = train(asked.name, Given.read(asked.folder), asked.seeds)
    print(json.dumps(asdict(told)))


if __name__ == "__main__":
    main()
