"""What contestants are given: one experiment for us, and for the others the same batches, texts and first weights.

All of it is made by our own code, so that the others start with batches ready on disk. Making them also fills our cache
of tokenised corpora, so that our commands do not tokenise either.
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
from headtohead.config import loading
from headtohead.data.batches import Batch
from headtohead.tasks.registry import prepare_dataset
from headtohead.training.loop import Trainer
from headtohead.trials.trial import build_training

EVALUATION_BATCH = 16


@dataclass(frozen=True)
class Shape:
    """A model's sizes, and how long and how often it is trained, scored and tested."""

    vocab: int
    classes: int | None
    width: int
    layers: int
    heads: int
    hidden: int
    context: int
    rate: float
    steps: int
    evaluate_every: int


def decoder(data: str, *, seeds: int, steps: int, evaluate: int, model: dict[str, Any] | None = None) -> dict[str, Any]:
    """The base decoder of the recipe speeches-decoder, alone: as an experiment file would say it."""
    feedforward = {"kind": "mlp", "hidden": 100, "activation": "relu"}
    return {
        "question": "How many trials an hour?",
        "task": "language-model",
        "seeds": seeds,
        "data": _data(data, ["obama", "hbush", "wbush"]),
        "model": {**_sizes(), "feedforward": feedforward, **(model or {})},
        "training": {**_training(), "steps": steps, "eval_every": evaluate},
    }


def classifier(data: str, *, seeds: int, epochs: int) -> dict[str, Any]:
    """The base classifier of the recipe speeches-classifier, alone."""
    feedforward = {"kind": "mlp", "activation": "relu"}
    every = "1 epoch"
    return {
        "question": "How many trials an hour?",
        "task": "classify",
        "seeds": seeds,
        "data": _data(data, ["test"]),
        "model": {**_sizes(), "feedforward": feedforward, "pool": "mean", "classifier_hidden": 100},
        "training": {**_training(), "steps": f"{epochs} epochs", "eval_every": every, "checkpoint_every": "5 epochs"},
    }


def _data(source: str, watch: list[str]) -> dict[str, Any]:
    return {
        "source": source,
        "tokenizer": "words",
        "vocabulary": "folder",
        "validation_fraction": 0.0,
        "monitor": watch,
    }


def _sizes() -> dict[str, Any]:
    return {"width": 64, "layers": 4, "heads": 2, "context": 32, "position": "learned"}


def _training() -> dict[str, Any]:
    return {"batch_size": 16, "optimizer": {"kind": "adam", "lr": 1e-3}}


def experiment(raw: dict[str, Any]) -> config_experiment.Experiment:
    return h2h.experiment_from_dict(raw, "bench")


def begun(raw: dict[str, Any], seed: int, folder: Path) -> tuple[Any, Trainer]:
    """Our model at step 0 and its training."""
    trial = loading.build_trial(experiment(raw), config_experiment.BASELINE, seed)
    return build_training(trial, prepare_dataset(trial.data, trial.task), folder, torch.device("cpu"))


def shape_of(raw: dict[str, Any], model: Any, training: Trainer) -> Shape:
    sizes = model.sizes
    return Shape(
        vocab=sizes.vocab_size,
        classes=model.classes,
        width=sizes.width,
        layers=sizes.layers,
        heads=sizes.heads,
        hidden=raw["model"]["feedforward"].get("hidden", 4 * sizes.width),
        context=sizes.context,
        rate=raw["training"]["optimizer"]["lr"],
        steps=training.total_steps,
        evaluate_every=training.evaluate_every,
    )


def write(raw: dict[str, Any], folder: Path) -> Shape:
    """Everything into a folder: experiment.json for us; shape.json and tensors for the others."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed in range(raw["seeds"]):
        model, training = begun(raw, seed, folder / f"begun-{seed}")
        shape = shape_of(raw, model, training)
        start = {name: tensor.detach().contiguous() for name, tensor in model.named_parameters()}
        save_file(start, folder / f"start-{seed}.safetensors")
        batches = [training.schedule.batch(step) for step in range(training.total_steps)]
        save_file(_joined(batches), folder / f"batches-{seed}.safetensors")
        if seed == 0:
            for name, examples in training.tracked_examples.items():
                save_file(_joined(examples.batches(EVALUATION_BATCH)), folder / f"text-{name}.safetensors")
            (folder / "texts.json").write_text(json.dumps(list(training.tracked_examples)))
    (folder / "shape.json").write_text(json.dumps(asdict(shape)))
    return shape


def _joined(batches: Iterable[Batch]) -> dict[str, Tensor]:
    """Batches end to end: rows, labels, where they are not padding, and where each batch ends."""
    made = list(batches)
    masks = [
        torch.ones_like(one.input_ids, dtype=torch.bool) if one.attention_mask is None else one.attention_mask
        for one in made
    ]
    return {
        "inputs": torch.cat([one.input_ids for one in made]),
        "labels": torch.cat([one.labels for one in made]),
        "mask": torch.cat(masks),
        "ends": torch.tensor([len(one.input_ids) for one in made]).cumsum(0),
    }


@dataclass(frozen=True)
class Given:
    """What a peer finds in the folder."""

    folder: Path
    shape: Shape

    @classmethod
    def read(cls, folder: Path) -> Given:
        return cls(folder, Shape(**json.loads((folder / "shape.json").read_text())))

    def start(self, seed: int) -> dict[str, Tensor]:
        return load_file(self.folder / f"start-{seed}.safetensors")

    def batches(self, seed: int) -> list[tuple[Tensor, Tensor, Tensor]]:
        """(inputs, labels, mask) of each step."""
        return _cut(self.folder / f"batches-{seed}.safetensors")

    def texts(self) -> dict[str, list[tuple[Tensor, Tensor, Tensor]]]:
        """By name, the batches of each text that is scored along the way."""
        names = json.loads((self.folder / "texts.json").read_text())
        return {name: _cut(self.folder / f"text-{name}.safetensors") for name in names}


def _cut(path: Path) -> list[tuple[Tensor, Tensor, Tensor]]:
    with safe_open(path, "pt") as opened:
        parts = {name: opened.get_tensor(name) for name in ("inputs", "labels", "mask", "ends")}
    sizes = parts["ends"].diff(prepend=torch.zeros(1, dtype=torch.int64)).tolist()
    cut = [parts[name].split(sizes) for name in ("inputs", "labels", "mask")]
    return list(zip(*cut, strict=True))


def toml(raw: dict[str, Any]) -> str:
    """An experiment as a file: a table for each group of settings, tables inside them on one line."""
    lines = [f"{key} = {_value(value)}" for key, value in raw.items() if not isinstance(value, dict)]
    for name, group in raw.items():
        if isinstance(group, dict):
            lines += ["", f"[{name}]", *(f"{key} = {_value(value)}" for key, value in group.items())]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_value(one)}" for key, one in value.items()) + " }"
    return json.dumps(value)  # numbers, true and false, text and lists look alike in TOML
