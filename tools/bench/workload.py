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
from torch import Tensor

import headtohead as h2h
from headtohead.config import experiment as config_experiment
from headtohead.config import trial_settings
from headtohead.data.batches import Batch
from headtohead.tasks.registry import prepare_dataset
from headtohead.training.loop import Trainer
from headtohead.trials.trial import build_training

EVALUATION_BATCH_SIZE = 16
BASE_MODEL = {"width": 64, "layers": 4, "heads": 2, "context": 32, "position": "learned"}
BASE_TRAINING = {"batch_size": 16, "optimizer": {"kind": "adam", "lr": 1e-3}}
RawExperiment = dict[str, Any]
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
    lr: float
    steps: int
    eval_every: int


def build_decoder_experiment(
    data: str, *, seeds: int = 1, steps: int = 1, eval_every: int = 1, model: dict[str, Any] | None = None
) -> RawExperiment:
    """Return the baseline of the recipe speeches-decoder as an experiment file."""
    feedforward = {"kind": "mlp", "hidden": 100, "activation": "relu"}
    return {
        "question": "How many trials per hour?",
        "task": "language-model",
        "seeds": seeds,
        "data": _build_data_config(data, ["obama", "hbush", "wbush"]),
        "model": {**BASE_MODEL, "feedforward": feedforward, **(model or {})},
        "training": {**BASE_TRAINING, "budget": f"{steps} steps", "eval_every": eval_every},
    }


def build_classifier_experiment(data: str, *, seeds: int, epochs: int) -> RawExperiment:
    """Return the baseline of the recipe speeches-classifier as an experiment file."""
    feedforward = {"kind": "mlp", "activation": "relu"}
    intervals = {"budget": f"{epochs} epochs", "eval_every": "1 epoch", "checkpoint_every": "5 epochs"}
    return {
        "question": "How many trials per hour?",
        "task": "classify",
        "seeds": seeds,
        "data": _build_data_config(data, ["test"]),
        "model": {**BASE_MODEL, "feedforward": feedforward, "pool": "mean", "classifier_hidden": 100},
        "training": {**BASE_TRAINING, **intervals},
    }


def _build_data_config(source: str, monitor: list[str]) -> dict[str, Any]:
    """Return the [data] table with the splits that are evaluated during training."""
    tokenizer_settings = {"tokenizer": "words", "vocabulary": "folder"}
    return {"source": source, **tokenizer_settings, "validation_fraction": 0.0, "monitor": monitor}


def build_baseline_trial(raw: RawExperiment, seed: int) -> config_experiment.Trial:
    """Return the trial of the baseline with a seed."""
    return trial_settings.build_trial(h2h.experiment_from_dict(raw, "bench"), config_experiment.BASELINE, seed)


def build_trainer(raw: RawExperiment, seed: int, folder: Path) -> tuple[Any, Trainer]:
    """Return our model at step 0 and its trainer."""
    trial = build_baseline_trial(raw, seed)
    return build_training(trial, prepare_dataset(trial.data, trial.task), folder, torch.device("cpu"))


def get_workload_shape(raw: RawExperiment, model: Any, trainer: Trainer) -> WorkloadShape:
    """Return the sizes of our model and the length of its training."""
    sizes = model.sizes
    return WorkloadShape(
        vocab_size=sizes.vocab_size,
        num_classes=model.num_classes,
        width=sizes.width,
        layers=sizes.layers,
        heads=sizes.heads,
        hidden=raw["model"]["feedforward"].get("hidden", 4 * sizes.width),
        context=sizes.context,
        lr=raw["training"]["optimizer"]["lr"],
        steps=trainer.total_steps,
        eval_every=trainer.evaluate_every,
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
    """Return the sequences of all batches with labels and masks, and the index at which each batch ends."""
    batches = list(batches)
    attention_masks = [
        torch.ones_like(batch.input_ids, dtype=torch.bool) if batch.attention_mask is None else batch.attention_mask
        for batch in batches
    ]
    return {
        "inputs": torch.cat([batch.input_ids for batch in batches]),
        "labels": torch.cat([batch.labels for batch in batches]),
        "mask": torch.cat(attention_masks),
        "ends": torch.tensor([len(batch.input_ids) for batch in batches]).cumsum(0),
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
        tensors = {name: file.get_tensor(name) for name in ("inputs", "labels", "mask", "ends")}
    batch_sizes = tensors["ends"].diff(prepend=torch.zeros(1, dtype=torch.int64)).tolist()
    return list(zip(*(tensors[name].split(batch_sizes) for name in ("inputs", "labels", "mask")), strict=True))


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
