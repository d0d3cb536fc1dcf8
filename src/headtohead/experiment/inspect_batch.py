"""The first batch of an experiment, tensor by tensor, and one example of it in words. Nothing is trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from headtohead.config import experiment
from headtohead.config.experiment import BASELINE
from headtohead.config.loading import trial as trial_of
from headtohead.data.batches import IGNORED, Batch, Rows
from headtohead.experiment.trial import Prepared, lesson, prepare

MEANINGS = {
    "language-model": {
        "input_ids": "the tokens that the model reads, as numbers",
        "labels": f"the token that comes next at each place; {IGNORED} counts for nothing",
        "attention_mask": "true where there is text, false on padding",
    },
    "classify": {
        "input_ids": "the tokens that the model reads, as numbers",
        "labels": "the class of each text",
        "attention_mask": "true where there is text, false on padding",
    },
}


@dataclass(frozen=True)
class ShownTensor:
    """One tensor of a batch."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    meaning: str


@dataclass(frozen=True)
class ShownBatch:
    """A batch as people want to see it."""

    task: str
    seed: int
    tensors: tuple[ShownTensor, ...]
    tokens: tuple[str, ...]
    """the first example's, as they stand in the vocabulary"""
    text: str
    """the same, decoded"""
    answer: str
    """what the model is to say of it"""
    notes: tuple[str, ...]

    def as_row(self) -> dict[str, Any]:
        tensors = [{**vars(one), "shape": list(one.shape)} for one in self.tensors]
        return {**vars(self), "tensors": tensors, "tokens": list(self.tokens), "notes": list(self.notes)}


def first_batch(experiment: experiment.Experiment, seed: int = 0) -> ShownBatch:
    """What the baseline sees at its first step."""
    trial = trial_of(experiment, BASELINE, seed)
    prepared = prepare(trial.data, trial.task)
    tokenizer = prepared.tokenizer
    schedule, _ = lesson(trial, prepared, taught=False)
    train = schedule.encoded
    batch = schedule.batch(0)
    named = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask, "labels": batch.labels}
    tensors = tuple(
        _shown(name, tensor, trial.goal, prepared) for name, tensor in named.items() if isinstance(tensor, Tensor)
    )
    length = batch.input_ids.shape[1] if batch.attention_mask is None else int(batch.attention_mask[0].sum())
    ids = batch.input_ids[0, :length].tolist()
    epoch = schedule.steps_per_epoch
    notes = (
        f"{epoch:,} batches an epoch, {trial.training.total_steps(epoch):,} in all",
        *_padding(batch, train, trial),
    )
    return ShownBatch(
        trial.task,
        seed,
        tensors,
        tuple(tokenizer.token(i) for i in ids),
        tokenizer.decode(ids),
        _answer(batch, prepared, length),
        notes,
    )


def _shown(name: str, tensor: Tensor, goal: str, prepared: Prepared) -> ShownTensor:
    meaning = MEANINGS[goal][name]
    if name == "labels" and prepared.corpus.label_names:
        meaning += ": " + ", ".join(f"{i} is {label}" for i, label in enumerate(prepared.corpus.label_names))
    return ShownTensor(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), meaning)


def _padding(batch: Batch, train: Any, trial: experiment.Trial) -> list[str]:
    if batch.attention_mask is None:
        return ["no padding: rows are blocks of one stream"]
    share = 1 - float(batch.attention_mask.double().mean())
    to = "the longest row of the batch" if isinstance(train, Rows) and train.to_longest else "the model's context"
    notes = [f"rows are padded to {to}; {share:.0%} of this batch is padding"]
    room = trial.model.context
    cut = train.cut(room) if isinstance(train, Rows) else 0
    if cut:
        notes.append(f"{cut:,} of {len(train):,} training rows are longer than {room} and lose their end")
    return notes


def _answer(batch: Batch, prepared: Prepared, length: int) -> str:
    if batch.labels.dim() == 1:
        return prepared.corpus.label_names[int(batch.labels[0])]
    said = [int(i) for i in batch.labels[0, :length] if int(i) != IGNORED]
    return prepared.tokenizer.decode(said)
