"""The workload of the contestants: an experiment for us, and the same batches, splits and initial weights for peers.

Our own code builds all of it, so that peers find their batches ready on disk. This also fills our cache of tokenized
corpora, so that our commands do not tokenize either.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

import headtohead as h2h
from headtohead.config import experiment as config_experiment
from headtohead.config import trial_settings
from headtohead.data.batches import Batch
from headtohead.pretrained.classifier import EncoderClassifier
from headtohead.tasks.registry import prepare_dataset
from headtohead.training.loop import Trainer
from headtohead.trials.trial import build_training

from .experiments import RawExperiment

EVALUATION_BATCH_SIZE = 16
TensorBatch = tuple[Tensor, Tensor, Tensor]
"""token ids, labels and attention mask (False on padding), each of shape (batch, length)"""


@dataclass(frozen=True)
class WorkloadShape:
    """The sizes of a model and the length of its training."""

    vocab_size: int
    num_classes: int | None
    width: int
    layers: int
    heads: int
    hidden: int
    context: int
    batch_size: int
    lr: float
    steps: int
    eval_every: int


def build_baseline_trial(raw: RawExperiment, seed: int) -> config_experiment.Trial:
    """Return the trial of the baseline with a seed."""
    return trial_settings.build_trial(h2h.experiment_from_dict(raw, "bench"), config_experiment.BASELINE, seed)


def build_trainer(raw: RawExperiment, seed: int, folder: Path) -> tuple[Any, Trainer]:
    """Return our model at step 0 and its trainer."""
    trial = build_baseline_trial(raw, seed)
    return build_training(trial, prepare_dataset(trial.data, trial.task), folder, torch.device("cpu"))


def copy_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return a copy of the parameters by name."""
    return {name: tensor.detach().clone() for name, tensor in model.named_parameters()}


def list_step_batches(trainer: Trainer, num_steps: int) -> list[TensorBatch]:
    """Return the batches of the first steps."""
    batches = [trainer.batch_schedule.get_batch(step) for step in range(num_steps)]
    return [(batch.input_ids, batch.labels, _get_attention_mask(batch)) for batch in batches]


def _get_attention_mask(batch: Batch) -> Tensor:
    if batch.attention_mask is None:
        return torch.ones_like(batch.input_ids, dtype=torch.bool)
    return batch.attention_mask


def get_workload_shape(raw: RawExperiment, model: Any, trainer: Trainer) -> WorkloadShape:
    """Return the sizes of our model and the length of its training."""
    training = {
        "context": model.context,
        "batch_size": trainer.settings.batch_size,
        "lr": raw["training"]["optimizer"]["lr"],
        "steps": trainer.total_steps,
        "eval_every": trainer.evaluate_every,
        "num_classes": model.num_classes,
    }
    if isinstance(model, EncoderClassifier):
        config = model.inner.config
        return WorkloadShape(
            vocab_size=config.vocab_size,
            width=config.hidden_size,
            layers=config.num_hidden_layers,
            heads=config.num_attention_heads,
            hidden=config.intermediate_size,
            **training,
        )
    sizes = model.sizes
    return WorkloadShape(
        vocab_size=sizes.vocab_size,
        width=sizes.width,
        layers=sizes.layers,
        heads=sizes.heads,
        hidden=raw["model"]["feedforward"].get("hidden", 4 * sizes.width),
        **training,
    )


def write_workload(raw: RawExperiment, folder: Path) -> WorkloadShape:
    """Write shape.json and the tensors for peers, and bench.toml for us."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "bench.toml").write_text(render_toml(raw))
    for seed in range(raw["seeds"]):
        model, trainer = build_trainer(raw, seed, folder / f"trainer-{seed}")
        shape = get_workload_shape(raw, model, trainer)
        weights = {name: tensor.detach().contiguous() for name, tensor in model.named_parameters()}
        save_file(weights, folder / f"weights-{seed}.safetensors")
        batches = [trainer.batch_schedule.get_batch(step) for step in range(trainer.total_steps)]
        save_file(_concatenate_batches(batches), folder / f"batches-{seed}.safetensors")
        if seed == 0:
            for name, examples in trainer.tracked_examples.items():
                save_file(
                    _concatenate_batches(examples.iter_batches(EVALUATION_BATCH_SIZE)),
                    folder / f"text-{name}.safetensors",
                )
            (folder / "texts.json").write_text(json.dumps(list(trainer.tracked_examples)))
    (folder / "shape.json").write_text(json.dumps(asdict(shape)))
    return shape


def _concatenate_batches(batches: Iterable[Batch]) -> dict[str, Tensor]:
    """Return the sequences of all batches with labels and masks, the index at which each batch ends, and its width.

    Batches are padded to the same width.
    """
    batches = list(batches)
    max_width = max(batch.input_ids.shape[1] for batch in batches)

    def concatenate(tensors: list[Tensor]) -> Tensor:
        return torch.cat([F.pad(x, (0, max_width - x.shape[1])) if x.dim() == 2 else x for x in tensors])

    return {
        "inputs": concatenate([batch.input_ids for batch in batches]),
        "labels": concatenate([batch.labels for batch in batches]),
        "mask": concatenate([_get_attention_mask(batch) for batch in batches]),
        "ends": torch.tensor([len(batch.input_ids) for batch in batches]).cumsum(0),
        "widths": torch.tensor([batch.input_ids.shape[1] for batch in batches]),
    }


@dataclass(frozen=True)
class Workload:
    """The files of `write_workload`, as a peer reads them."""

    folder: Path
    shape: WorkloadShape

    @classmethod
    def read(cls, folder: Path) -> Workload:
        return cls(folder, WorkloadShape(**json.loads((folder / "shape.json").read_text())))

    def read_weights(self, seed: int) -> dict[str, Tensor]:
        """Return our initial weights."""
        return load_file(self.folder / f"weights-{seed}.safetensors")

    def read_batches(self, seed: int) -> list[TensorBatch]:
        """Return the batch of each step."""
        return _read_batches(self.folder / f"batches-{seed}.safetensors")

    def read_evaluation_splits(self) -> dict[str, list[TensorBatch]]:
        """Return the batches of each split that is evaluated during training."""
        split_names = json.loads((self.folder / "texts.json").read_text())
        return {name: _read_batches(self.folder / f"text-{name}.safetensors") for name in split_names}


def _read_batches(path: Path) -> list[TensorBatch]:
    """Read the batches that `_concatenate_batches` has joined."""
    with safe_open(path, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in ("inputs", "labels", "mask", "ends", "widths")}
    batch_sizes = tensors["ends"].diff(prepend=torch.zeros(1, dtype=torch.int64)).tolist()
    batches = zip(*(tensors[name].split(batch_sizes) for name in ("inputs", "labels", "mask")), strict=True)
    return [
        (input_ids[:, :width], labels[:, :width] if labels.dim() == 2 else labels, mask[:, :width])
        for (input_ids, labels, mask), width in zip(batches, tensors["widths"].tolist(), strict=True)
    ]


def render_toml(raw: RawExperiment) -> str:
    """Return an experiment as TOML, with a table per group of settings and inline tables inside."""
    lines = [f"{key} = {_render_toml_value(value)}" for key, value in raw.items() if not isinstance(value, dict)]
    for name, table in raw.items():
        if isinstance(table, dict):
            lines += ["", f"[{name}]", *(f"{key} = {_render_toml_value(value)}" for key, value in table.items())]
    return "\n".join(lines) + "\n"


def _render_toml_value(value: Any) -> str:
    """Return a value as TOML; a dict becomes an inline table."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_render_toml_value(entry)}" for key, entry in value.items()) + " }"
    return json.dumps(value)  # numbers, booleans, strings and lists look alike in JSON and TOML
