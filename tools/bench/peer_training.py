"""Train the peers: a plain loop for every model, and transformers' Trainer for GPT-2 and MiniLM.

python -m tools.bench.peer_training NAME FOLDER SEED ...      train NAME on the workload in FOLDER, one seed at a time
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

from .peer_models import PEER_BUILDERS
from .workload import EVALUATION_BATCH_SIZE, TensorBatch, Workload

IGNORE_INDEX = -100


@dataclass
class TrainingReport:
    """Durations and losses of the trainings of a peer."""

    training_seconds: float = 0.0
    evaluation_seconds: float = 0.0
    losses: dict[int, dict[int, dict[str, float]]] = field(default_factory=dict)
    """by seed, step and evaluation split"""


def compute_loss(model: nn.Module, batch: TensorBatch, reduction: str = "mean") -> Tensor:
    """Return the cross entropy of a batch, as a plain script computes it."""
    input_ids, labels, attention_mask = batch
    logits = model(input_ids, attention_mask)
    return F.cross_entropy(logits.flatten(0, -2), labels.flatten(), ignore_index=IGNORE_INDEX, reduction=reduction)


def create_adam(model: nn.Module, lr: float) -> torch.optim.Optimizer:
    """Return the optimizer of our baseline: Adam, fused."""
    return torch.optim.Adam(
        [parameter for parameter in model.parameters() if parameter.requires_grad], lr=lr, fused=True
    )


@torch.no_grad()
def evaluate_splits(model: nn.Module, batches_by_split: dict[str, list[TensorBatch]]) -> dict[str, float]:
    """Return the mean loss of each evaluation split."""
    model.eval()
    losses = {}
    for split, batches in batches_by_split.items():
        num_predictions = sum(int((labels != IGNORE_INDEX).sum()) for _, labels, _ in batches)
        losses[split] = sum(compute_loss(model, batch, "sum").item() for batch in batches) / num_predictions
    model.train()
    return losses


def train_with_plain_loop(model: nn.Module, workload: Workload, seed: int, report: TrainingReport) -> None:
    """Train as a plain script does."""
    shape, evaluation_splits = workload.shape, workload.read_evaluation_splits()
    optimizer = create_adam(model, shape.lr)
    model.train()
    losses_by_step = report.losses.setdefault(seed, {})
    for step, batch in enumerate(workload.read_batches(seed)):
        if step % shape.eval_every == 0:
            losses_by_step[step] = _evaluate_and_time(model, evaluation_splits, report)
        start_time = time.perf_counter()
        compute_loss(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        report.training_seconds += time.perf_counter() - start_time
    losses_by_step[shape.steps] = _evaluate_and_time(model, evaluation_splits, report)


def _evaluate_and_time(
    model: nn.Module, batches_by_split: dict[str, list[TensorBatch]], report: TrainingReport
) -> dict[str, float]:
    """Return the loss of each evaluation split and add the duration to the report."""
    start_time = time.perf_counter()
    losses = evaluate_splits(model, batches_by_split)
    report.evaluation_seconds += time.perf_counter() - start_time
    return losses


class SequenceDataset(torch.utils.data.Dataset[dict[str, Tensor]]):
    """The sequences of all batches, as Trainer reads them."""

    def __init__(self, batches: Sequence[TensorBatch]) -> None:
        self.rows = [
            {"input_ids": input_ids if labels.dim() else input_ids[attention_mask], "labels": labels}
            for batch in batches
            for input_ids, labels, attention_mask in zip(*batch, strict=True)
        ]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return self.rows[index]


def pad_rows(rows: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Return rows of a classifier as a batch, padded to the longest, with an attention mask."""
    input_ids = [row["input_ids"] for row in rows]
    return {
        "input_ids": nn.utils.rnn.pad_sequence(input_ids, batch_first=True),
        "attention_mask": nn.utils.rnn.pad_sequence([torch.ones_like(ids) for ids in input_ids], batch_first=True),
        "labels": torch.stack([row["labels"] for row in rows]),
    }


class ModelWithOutputs(nn.Module):
    """A peer with the outputs that Trainer expects."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Any:
        from transformers.modeling_outputs import SequenceClassifierOutput

        return SequenceClassifierOutput(logits=self.model(input_ids, attention_mask))


def train_with_trainer(model: nn.Module, workload: Workload, seed: int, report: TrainingReport) -> None:
    """Train with transformers' Trainer, without gradient clipping, learning-rate decay, checkpoints and logs."""
    import transformers

    class SequentialTrainer(transformers.Trainer):
        """Reads the sequences in order, which gives the batches of the other contestants."""

        def _get_train_sampler(self, *args: Any, **kwargs: Any) -> Any:
            return torch.utils.data.SequentialSampler(self.train_dataset)

    shape = workload.shape
    training_arguments = transformers.TrainingArguments(
        output_dir=str(workload.folder / "trainer"),
        max_steps=shape.steps,
        per_device_train_batch_size=shape.batch_size,
        per_device_eval_batch_size=EVALUATION_BATCH_SIZE,
        learning_rate=shape.lr,
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
        eval_strategy="steps",
        eval_steps=shape.eval_every,
        eval_on_start=True,
        prediction_loss_only=True,
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        dataloader_pin_memory=False,
        remove_unused_columns=False,
        label_names=["labels"],
        seed=seed,
    )

    def compute_cross_entropy(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        return F.cross_entropy(outputs.logits.flatten(0, -2), labels.flatten(), ignore_index=IGNORE_INDEX)

    is_classifier = shape.num_classes is not None
    inner: Any = ModelWithOutputs(model) if is_classifier else model.inner
    if not is_classifier:
        inner.config.use_cache = False
    trainer = SequentialTrainer(
        model=inner,
        args=training_arguments,
        train_dataset=SequenceDataset(workload.read_batches(seed)),
        eval_dataset={name: SequenceDataset(batches) for name, batches in workload.read_evaluation_splits().items()},
        compute_loss_func=compute_cross_entropy,
        data_collator=pad_rows if is_classifier else None,
    )
    trainer.remove_callback(transformers.PrinterCallback)
    start_time = time.perf_counter()
    trainer.train()
    report.training_seconds += time.perf_counter() - start_time
    losses_by_step = report.losses.setdefault(seed, {})
    for line in trainer.state.log_history:
        for key, value in line.items():
            split, _, quantity = key.removeprefix("eval_").rpartition("_")
            if key.startswith("eval_") and quantity == "loss":
                losses_by_step.setdefault(line["step"], {})[split] = value
            elif key.startswith("eval_") and quantity == "runtime":
                report.evaluation_seconds += value
                report.training_seconds -= value


def train_peer(name: str, workload: Workload, seeds: Sequence[int]) -> TrainingReport:
    """Train a peer with each seed."""
    report = TrainingReport()
    train_seed = train_with_trainer if name.endswith("trainer") else train_with_plain_loop
    for seed in seeds:
        train_seed(PEER_BUILDERS[name](workload.shape, workload.read_weights(seed)), workload, seed, report)
    losses = [
        loss
        for losses_by_step in report.losses.values()
        for losses_by_split in losses_by_step.values()
        for loss in losses_by_split.values()
    ]
    if not all(map(math.isfinite, losses)):
        raise FloatingPointError(f"{name}: a loss is not finite")
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=list(PEER_BUILDERS))
    parser.add_argument("folder", type=Path)
    parser.add_argument("seeds", type=int, nargs="+")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    report = train_peer(arguments.name, Workload.read(arguments.folder), arguments.seeds)
    print(json.dumps(asdict(report)))


if __name__ == "__main__":
    main()
