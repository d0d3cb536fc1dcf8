"""Summarize an experiment's first training batch for `h2h inspect`: its tensors, and its first sequence as text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from headtohead.config import experiment
from headtohead.config.experiment import BASELINE
from headtohead.config.trial_settings import build_trial
from headtohead.data.batches import Batch
from headtohead.data.encoding import TokenRows
from headtohead.tasks.base import Task
from headtohead.tasks.dataset import Dataset
from headtohead.tasks.registry import get_task, prepare_dataset

TENSOR_DESCRIPTIONS = {
    "input_ids": "token ids, the model's input",
    "attention_mask": "true on text, false on padding",
}


@dataclass(frozen=True)
class TensorSummary:
    """The dtype, shape and description of one tensor in a batch."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    description: str

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "dtype": self.dtype, "shape": list(self.shape), "meaning": self.description}


@dataclass(frozen=True)
class BatchSummary:
    """A summary of a batch and its first sequence."""

    task: str
    seed: int
    tensors: tuple[TensorSummary, ...]
    tokens: tuple[str, ...]
    """tokens of the first sequence"""
    text: str
    """the first sequence, decoded"""
    label_text: str
    """the labels of the first sequence, as text"""
    notes: tuple[str, ...]
    """about the number of batches, padding and truncation"""

    def to_dict(self) -> dict[str, Any]:
        return {
            "task": self.task,
            "seed": self.seed,
            "tensors": [tensor.to_dict() for tensor in self.tensors],
            "tokens": list(self.tokens),
            "text": self.text,
            "answer": self.label_text,
            "notes": list(self.notes),
        }


def summarize_first_batch(experiment: experiment.Experiment, seed: int = 0) -> BatchSummary:
    """Summarize the baseline's first training batch, without training a teacher or an encoder."""
    trial = build_trial(experiment, BASELINE, seed)
    dataset = prepare_dataset(trial.data, trial.task)
    tokenizer = dataset.tokenizer
    task = get_task(trial.task)
    batches, _ = task.build_training_data(trial, dataset)
    batch = batches.get_batch(0)
    tensors_by_name = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask, "labels": batch.labels}
    tensors = tuple(
        _summarize_tensor(name, tensor, task, dataset)
        for name, tensor in tensors_by_name.items()
        if isinstance(tensor, Tensor)
    )
    length = batch.input_ids.shape[1] if batch.attention_mask is None else int(batch.attention_mask[0].sum())
    token_ids = batch.input_ids[0, :length].tolist()
    steps_per_epoch = batches.steps_per_epoch
    notes = (
        f"{steps_per_epoch:,} batches per epoch, {trial.training.compute_total_steps(steps_per_epoch):,} in total",
        *_describe_padding(batch, batches.encoded, trial),
    )
    return BatchSummary(
        trial.task,
        seed,
        tensors,
        tuple(tokenizer.id_to_token(token_id) for token_id in token_ids),
        tokenizer.decode(token_ids),
        task.describe_labels(batch, dataset, length),
        notes,
    )


def _summarize_tensor(name: str, tensor: Tensor, task: Task, dataset: Dataset) -> TensorSummary:
    """Return the dtype, shape and description of a tensor in a batch; of labels, also the class names."""
    description = TENSOR_DESCRIPTIONS.get(name, task.label_description)
    if name == "labels" and dataset.label_names:
        description += ": " + ", ".join(
            f"{class_index} is {label}" for class_index, label in enumerate(dataset.label_names)
        )
    return TensorSummary(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), description)


def _describe_padding(batch: Batch, encoded_train: Any, trial: experiment.Trial) -> list[str]:
    """Return notes about the padding of a batch, and about truncated rows of the training split."""
    if batch.attention_mask is None:
        return ["no padding: rows are blocks of one stream"]
    padding_fraction = 1 - float(batch.attention_mask.double().mean())
    padded_length = (
        "the longest row of the batch"
        if isinstance(encoded_train, TokenRows) and encoded_train.pad_to_longest
        else "the model's context"
    )
    notes = [f"rows are padded to {padded_length}; {padding_fraction:.0%} of this batch is padding"]
    context = trial.model.context
    num_truncated = encoded_train.count_truncated_rows(context) if isinstance(encoded_train, TokenRows) else 0
    if num_truncated:
        notes.append(f"{num_truncated:,} of {len(encoded_train):,} training rows are truncated to {context} tokens")
    return notes
