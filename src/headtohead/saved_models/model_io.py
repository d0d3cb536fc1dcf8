"""Save and load trained models as folders in the Hugging Face layout."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from headtohead import safe_open
from headtohead.atomic_io import compute_sha256, read_json_object, write_bytes, write_json, write_text
from headtohead.config import experiment
from headtohead.config import model as config_model
from headtohead.config.tasks import Target
from headtohead.data import tokenizer_guard, tokenizers
from headtohead.data.tokenizers import CorpusTokenizer
from headtohead.errors import ModelError, RunFolderError
from headtohead.experiment import schemas, trust
from headtohead.experiment.code_files import find_code_files, list_code_files
from headtohead.model_factory import build_model
from headtohead.nn.custom_model import CustomModel
from headtohead.nn.parts import registry
from headtohead.nn.transformer import Transformer
from headtohead.pretrained import classifier, layer_dropping
from headtohead.pretrained.classifier import EncoderClassifier
from headtohead.pretrained.layer_dropping import StudentModel
from headtohead.pretrained.tokenizer import PretrainedTokenizer
from headtohead.pretrained.weights import count_parameters, locate_weights
from headtohead.training.checkpoints import load_tensors, read_weights, save_weights

CONFIG_KEY = "headtohead"
"""entry of config.json that marks fine-tuned models saved by this package"""


@dataclass(frozen=True)
class SavedModel:
    """A model loaded from a run folder, with its tokenizer, labels and trial."""

    model: Transformer | CustomModel | EncoderClassifier | StudentModel
    tokenizer: CorpusTokenizer | PretrainedTokenizer
    target: Target
    label_names: tuple[str, ...]
    trial: experiment.Trial
    folder: Path

    @property
    def name(self) -> str:
        return str(self.folder)


def save(
    folder: Path,
    model: Transformer | CustomModel | EncoderClassifier | StudentModel,
    tokenizer: CorpusTokenizer | PretrainedTokenizer,
    trial: experiment.Trial,
    label_names: tuple[str, ...],
) -> None:
    """Write config.json, model.safetensors, tokenizer.json, generation_config.json and a model card to `folder`."""
    write_text(folder / "README.md", _render_model_card(trial, model, tokenizer))
    if isinstance(model, StudentModel):
        layer_dropping.save_student(folder, model, {"trial": trial.model_dump(mode="json")})
        tokenizer.save(folder)
        return
    if isinstance(model, EncoderClassifier):
        # Saved in a format that transformers can load. Our own data is a single entry in config.json.
        classifier.save_classifier(folder, model, {"trial": trial.model_dump(mode="json")}, label_names)
        tokenizer.save(folder)
        return
    code_settings = _copy_custom_code(folder, trial)
    config = {
        "model_type": "headtohead",
        "architectures": [type(model).__name__],
        "task": trial.task,
        "vocab_size": tokenizer.vocab_size,
        "max_position_embeddings": trial.model.context,
        "id2label": {str(index): name for index, name in enumerate(label_names)},
        "pad_token_id": tokenizer.pad_id,
        "unk_token_id": tokenizer.unk_id,
        "bos_token_id": tokenizer.bos_id,
        "eos_token_id": tokenizer.eos_id,
        "trial": {**trial.model_dump(mode="json"), **code_settings},
    }
    write_json(folder / "config.json", config)
    write_json(
        folder / "generation_config.json",
        {"do_sample": True, "max_new_tokens": 50, "temperature": 1.0, "eos_token_id": tokenizer.eos_id},
    )
    save_weights(folder / "model.safetensors", model)
    tokenizer.save(folder)


def _copy_custom_code(folder: Path, trial: experiment.Trial) -> dict[str, Any]:
    """Copy the user's code and its local imports next to the weights. Return the settings that refer to the copies."""
    changed_settings: dict[str, Any] = {}
    if isinstance(trial.model, config_model.CustomModelConfig):
        file, _, name = trial.model.module.rpartition(":")
        changed_settings["model"] = {**trial.model.model_dump(mode="json"), "module": f"own/{Path(file).name}:{name}"}
    files = find_code_files(trial)
    trust.trust_files(files.values())  # training has just run them
    for file_name, path in files.items():
        copy = folder / "own" / file_name
        if path.resolve() != copy.resolve():
            copy.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(copy, path.read_bytes())
    return {"plugins": [f"own/{Path(file).name}" for file in trial.plugins], **changed_settings}


def load(folder: str | Path, *, use_initial_weights: bool = False) -> SavedModel:
    """Load a model from its folder, in evaluation mode.

    If `use_initial_weights` is set, return the model as it was before training.
    """
    folder_path = Path(folder)
    if not (folder_path / "config.json").is_file():
        raise RunFolderError(
            f"{folder_path}: not a model's folder (it has no config.json){_suggest_model_folders(folder_path)}"
        )
    safe_open.check_folder(folder_path)
    config = read_json_object(folder_path / "config.json")
    if CONFIG_KEY in config:
        return _load_finetuned(folder_path, config, use_initial_weights=use_initial_weights)
    if config.get("model_type") != "headtohead":
        raise ModelError(f"{folder_path}: model type {config.get('model_type')!r} was not saved by Head to Head")
    trial = schemas.validate_record(config, schemas.ModelConfigFile, folder_path / "config.json").trial
    if isinstance(trial.model, config_model.PretrainedModelConfig):
        raise ModelError(f"{folder_path}: config.json describes a pretrained model, but has no entry {CONFIG_KEY!r}")
    if use_initial_weights and _has_pretrained_encoder(trial):
        raise ModelError(
            f"{folder_path}: training started from a pre-trained encoder, which the run folder does not contain"
        )
    # User code is imported only if it is trusted.
    trial = _import_custom_code(trial, folder_path)
    labels = _read_label_names(config, folder_path)
    tokenizer = tokenizers.CorpusTokenizer.load(folder_path)
    tokenizer.guard = tokenizer_guard.create_guard(tokenizer.backend.to_str())
    if config["vocab_size"] != tokenizer.vocab_size:
        raise ModelError(
            f"{folder_path}: config.json has vocab_size {config['vocab_size']}, but tokenizer.json has "
            f"{tokenizer.vocab_size} tokens"
        )
    # Reject settings that would build a far larger model than the one in the weights file.
    _check_model_size(trial, tokenizer.vocab_size, len(labels) or None, folder_path)
    model = build_model(
        trial.model, tokenizer.vocab_size, len(labels) or None, is_causal=trial.spec.target.is_causal, seed=trial.seed
    )
    if not use_initial_weights:
        _verify_weights_checksum(folder_path)
        load_tensors(model, read_weights(folder_path / "model.safetensors"), str(folder_path))
    return SavedModel(model.eval(), tokenizer, trial.spec.target, labels, trial, folder_path)


def _has_pretrained_encoder(trial: experiment.Trial) -> bool:
    """Return whether training started from a pretrained encoder (`model.init_from`)."""
    return isinstance(trial.model, config_model.TransformerConfig) and trial.model.init_from is not None


def _verify_weights_checksum(folder: Path) -> None:
    """Raise RunFolderError if a finished run's weights differ from those that training wrote.

    A single corrupted value among millions would otherwise go unnoticed.
    """
    if not (folder / "result.json").is_file():
        return
    checksums = read_json_object(folder / "result.json").get("sha256")
    path = folder / "model.safetensors"
    if (
        isinstance(checksums, dict)
        and path.is_file()
        and checksums.get(path.name, compute_sha256(path)) != compute_sha256(path)
    ):
        raise RunFolderError(f"{path} is corrupted: checksum mismatch; retrain it")


def _import_custom_code(trial: experiment.Trial, folder: Path) -> experiment.Trial:
    """Import the user's code from the run folder, and return the trial with paths that point to these files.

    Raise ModelError if the files are not trusted (see `trust`).
    """
    is_custom_model = isinstance(trial.model, config_model.CustomModelConfig)
    module, _, name = (
        trial.model.module.rpartition(":") if isinstance(trial.model, config_model.CustomModelConfig) else ("", "", "")
    )
    files = trust.resolve_custom_code(folder, [*trial.plugins, *([module] if is_custom_model else [])])
    imported = [path for path in list_code_files(files).values() if path.is_relative_to(folder) and path not in files]
    trust.check_trusted(folder, [*files, *imported])
    plugins = files[: len(trial.plugins)]
    for file in plugins:
        registry.load_plugin(file)
    changes: dict[str, Any] = {"plugins": tuple(map(str, plugins))}
    if is_custom_model:
        changes["model"] = trial.model.model_copy(update={"module": f"{files[-1]}:{name}"})
    return trial.model_copy(update=changes) if files else trial


def _read_label_names(config: dict[str, Any], folder: Path) -> tuple[str, ...]:
    """Return the class names from `id2label` in order. Raise ModelError if its keys are not 0, 1, 2, ..."""
    id2label = config["id2label"]
    if set(id2label) != {str(index) for index in range(len(id2label))}:
        raise ModelError(f"{folder}: the keys of id2label in config.json must be 0, 1, 2, ...")
    return tuple(id2label[str(index)] for index in range(len(id2label)))


MAX_EXTRA_NUMBERS = 2**26
"""elements that a model may have beyond those in its file: computed tables, tied weights"""


def _check_model_size(trial: experiment.Trial, vocab_size: int, num_classes: int | None, folder: Path) -> None:
    """Raise ModelError if the settings describe a much larger model than the one in the weights file.

    Building such a model could exhaust memory before the mismatch with the weights is detected.
    """
    path = folder / "model.safetensors"
    if isinstance(trial.model, config_model.CustomModelConfig) or not path.is_file():
        return
    with torch.device("meta"):
        meta_model = build_model(trial.model, vocab_size, num_classes)
    expected_size = sum(tensor.numel() for tensor in (*meta_model.parameters(), *meta_model.buffers()))
    file_size = count_parameters(path)
    if expected_size > 2 * file_size + MAX_EXTRA_NUMBERS:
        raise ModelError(
            f"{folder}: config.json describes a model of {expected_size:,} elements, but the weights file has "
            f"{file_size:,}"
        )


def _load_finetuned(folder: Path, config: dict[str, Any], *, use_initial_weights: bool) -> SavedModel:
    """Load a fine-tuned pretrained model: a classifier, or a layer-dropped student."""
    entry = config[CONFIG_KEY]
    raw_trial = entry.get("trial") if isinstance(entry, dict) else None
    trial = schemas.validate_record(raw_trial, experiment.Trial, folder / "config.json")
    if not isinstance(trial.model, config_model.PretrainedModelConfig):
        raise ModelError(f"{folder}: config.json does not describe a fine-tuned pretrained model")
    if trial.spec.target.is_causal:
        student = (
            layer_dropping.build_student(trial.model)
            if use_initial_weights
            else layer_dropping.load_student(trial.model, folder)
        )
        return SavedModel(
            student.eval(),
            PretrainedTokenizer.load(locate_weights(folder), None),
            trial.spec.target,
            (),
            trial,
            folder,
        )
    if not isinstance(config.get("id2label"), dict) or not all(
        isinstance(label, str) for label in config["id2label"].values()
    ):
        raise ModelError(f"{folder}: its config.json does not name the classes (id2label)")
    labels = _read_label_names(config, folder)
    tokenizer = PretrainedTokenizer.load(locate_weights(folder), None)
    if use_initial_weights:
        model = classifier.build_classifier(trial.model, len(labels), seed=trial.seed)
    else:
        model = classifier.load_classifier(trial.model, folder, len(labels))
    return SavedModel(model.eval(), tokenizer, trial.spec.target, labels, trial, folder)


def _suggest_model_folders(folder: Path) -> str:
    """Return a hint that lists up to three model folders inside `folder`, or an empty string if there are none."""
    config_paths = islice(folder.glob("**/config.json"), 1000) if folder.is_dir() else ()
    model_folders = sorted(str(path.parent.relative_to(folder)) for path in config_paths)[:3]
    return f"; it contains model folders: {', '.join(model_folders)}" if model_folders else ""


def _render_model_card(
    trial: experiment.Trial,
    model: Transformer | CustomModel | EncoderClassifier | StudentModel,
    tokenizer: CorpusTokenizer | PretrainedTokenizer,
) -> str:
    """Return the model card in Markdown."""
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    description = (
        f"{model.name}, fine-tuned"
        if isinstance(model, EncoderClassifier | StudentModel)
        else "A small transformer trained"
    )
    steps = trial.training.steps
    budget = f"{steps:,} steps" if isinstance(steps, int) else steps
    settings = "\n".join(f"- {name}: {value}" for name, value in trial.model.model_dump(mode="json").items())
    return f"""---
library_name: headtohead
tags: [{trial.spec.hub_tag}]
---
# {trial.variant}, seed {trial.seed}

{description} by Head to Head (package headtohead) for a comparison with other variants,
not for production use. {num_parameters:,} parameters, vocabulary of {tokenizer.vocab_size:,}, task {trial.task}.

## Settings
{settings}

## Trained on
{Path(trial.data.source_name).name}, {budget}, batch size {trial.training.batch_size},
{trial.training.optimizer}.
"""
