"""Save the trained model of a run to its folder, in the Hugging Face layout, and load it again."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from headtohead import safe_open
from headtohead.atomic_io import compute_sha256, write_bytes, write_text
from headtohead.config import experiment
from headtohead.config.tables import model as config_model
from headtohead.config.tasks import Target
from headtohead.data.tokenization import tokenizer_guard, tokenizers
from headtohead.data.tokenization.tokenizers import CorpusTokenizer
from headtohead.errors import ModelError, RunFolderError
from headtohead.experiment import schemas, trust
from headtohead.experiment.provenance.user_files import find_code_files, list_code_files
from headtohead.json_files import read_json_object, write_json
from headtohead.model_factory import build_model
from headtohead.nn.custom_model import CustomModel
from headtohead.nn.parts import registry
from headtohead.nn.parts.output import NoOutput
from headtohead.nn.transformer import Transformer
from headtohead.pretrained import classifier, student_model
from headtohead.pretrained.classifier import EncoderClassifier
from headtohead.pretrained.student_model import StudentModel
from headtohead.pretrained.tokenizer import PretrainedTokenizer
from headtohead.pretrained.weights import count_safetensors_parameters, locate_weights
from headtohead.training.tensor_files import load_model_tensors, read_safetensors, save_model_weights

CONFIG_KEY = "headtohead"
"""entry of config.json that marks fine-tuned models saved by this package"""
IMPORT_KEY = "imported_from"
"""entry of config.json that names the checkpoint of an imported model"""


@dataclass(frozen=True)
class SavedModel:
    """A model loaded from a run folder, with its tokenizer, class names and trial."""

    model: Transformer | CustomModel | EncoderClassifier | StudentModel
    tokenizer: CorpusTokenizer | PretrainedTokenizer
    target: Target
    label_names: tuple[str, ...]
    trial: experiment.Trial
    folder: Path
    imported_from: str | None = None
    """name of the checkpoint that the model was imported from; None for a model that was trained here"""

    @property
    def name(self) -> str:
        return str(self.folder)


def save_model(
    folder: Path,
    model: Transformer | CustomModel | EncoderClassifier | StudentModel,
    tokenizer: CorpusTokenizer | PretrainedTokenizer,
    trial: experiment.Trial,
    label_names: tuple[str, ...],
    *,
    imported_from: str | None = None,
) -> None:
    """Write config.json, model.safetensors, tokenizer.json, generation_config.json and a model card to `folder`.

    `imported_from` is the name of the checkpoint that the model was converted from, if it was not trained here.
    """
    if imported_from is None:
        write_text(folder / "README.md", _render_model_card(trial, model, tokenizer))
    if isinstance(model, StudentModel):
        student_model.save_student(folder, model, {"trial": trial.model_dump(mode="json")})
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
        "vocab_size": model.sizes.vocab_size if isinstance(model, Transformer) else tokenizer.vocab_size,
        "max_position_embeddings": trial.model.context,
        "id2label": {str(index): name for index, name in enumerate(label_names)},
        "pad_token_id": tokenizer.pad_id,
        "unk_token_id": tokenizer.unk_id,
        "bos_token_id": tokenizer.bos_id,
        "eos_token_id": tokenizer.eos_id,
        "trial": {**trial.model_dump(mode="json"), **code_settings},
        **({} if imported_from is None else {IMPORT_KEY: imported_from}),
    }
    write_json(folder / "config.json", config)
    write_json(
        folder / "generation_config.json",
        {"do_sample": True, "max_new_tokens": 50, "temperature": 1.0, "eos_token_id": tokenizer.eos_id},
    )
    save_model_weights(folder / "model.safetensors", model)
    tokenizer.save(folder)


def _copy_custom_code(folder: Path, trial: experiment.Trial) -> dict[str, Any]:
    """Save the user's code and its local imports with a model; return the settings that refer to the copies."""
    changed_settings: dict[str, Any] = {}
    if isinstance(trial.model, config_model.CustomModelConfig):
        file, _, name = trial.model.module.rpartition(":")
        module = f"{trust.CUSTOM_CODE_FOLDER}/{Path(file).name}:{name}"
        changed_settings["model"] = {**trial.model.model_dump(mode="json"), "module": module}
    code_files = find_code_files(trial)
    trust.trust_files(code_files.values())  # training has just run them
    for file_name, path in code_files.items():
        copied_file = folder / trust.CUSTOM_CODE_FOLDER / file_name
        if path.resolve() != copied_file.resolve():
            copied_file.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(copied_file, path.read_bytes())
    return {"plugins": [f"{trust.CUSTOM_CODE_FOLDER}/{Path(file).name}" for file in trial.plugins], **changed_settings}


def load_saved_model(folder: str | Path, *, use_initial_weights: bool = False) -> SavedModel:
    """Load a model that this package saved, in evaluation mode.

    If `use_initial_weights` is set, return the model as it was before training.
    """
    folder_path = Path(folder)
    if not (folder_path / "config.json").is_file():
        raise RunFolderError(
            f"{folder_path}: not a model folder: config.json not found{_suggest_model_folders(folder_path)}"
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
    label_names = _parse_label_names(config, folder_path)
    tokenizer = tokenizers.CorpusTokenizer.load(folder_path)
    tokenizer.guard = tokenizer_guard.create_tokenizer_guard(tokenizer.backend.to_str())
    vocab_size, imported_from = config["vocab_size"], config.get(IMPORT_KEY)
    if imported_from is not None:
        tokenizer.drop_unused_bos()
    # Checkpoints may pad their vocabulary.
    if vocab_size < tokenizer.vocab_size or (imported_from is None and vocab_size > tokenizer.vocab_size):
        raise ModelError(
            f"{folder_path}: config.json has vocab_size {config['vocab_size']}, but tokenizer.json has "
            f"{tokenizer.vocab_size} tokens"
        )
    # Reject settings that would build a far larger model than the one in the weights file.
    _check_model_size(trial, vocab_size, len(label_names) or None, folder_path)
    model = build_model(
        trial.model, vocab_size, len(label_names) or None, is_causal=trial.spec.target.is_causal, seed=trial.seed
    )
    if not use_initial_weights:
        _verify_weights_checksum(folder_path)
        load_model_tensors(model, read_safetensors(folder_path / "model.safetensors"), str(folder_path))
    has_head = not isinstance(model, Transformer) or label_names or type(model.output) is not NoOutput
    target = trial.spec.target if has_head else Target.NONE
    return SavedModel(model.eval(), tokenizer, target, label_names, trial, folder_path, imported_from)


def _has_pretrained_encoder(trial: experiment.Trial) -> bool:
    """Return whether training started from a pretrained encoder (`model.init_from`)."""
    return isinstance(trial.model, config_model.TransformerConfig) and trial.model.init_from is not None


def _verify_weights_checksum(folder: Path) -> None:
    """Raise RunFolderError before loading if a finished run's saved weights differ from those that training wrote.

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
    """Load the user's code that was saved with a model; return the trial with paths that point to these files.

    Raise ModelError if the files are not trusted (see `trust`).
    """
    is_custom_model = isinstance(trial.model, config_model.CustomModelConfig)
    module, _, name = (
        trial.model.module.rpartition(":") if isinstance(trial.model, config_model.CustomModelConfig) else ("", "", "")
    )
    named_files = trust.locate_custom_code(folder, [*trial.plugins, *([module] if is_custom_model else [])])
    imported_files = [
        path
        for path in list_code_files(named_files).values()
        if path.is_relative_to(folder) and path not in named_files
    ]
    trust.check_trusted(folder, [*named_files, *imported_files])
    plugins = named_files[: len(trial.plugins)]
    for file in plugins:
        registry.load_plugin(file)
    changes: dict[str, Any] = {"plugins": tuple(map(str, plugins))}
    if is_custom_model:
        changes["model"] = trial.model.model_copy(update={"module": f"{named_files[-1]}:{name}"})
    return trial.model_copy(update=changes) if named_files else trial


def _parse_label_names(config: dict[str, Any], folder: Path) -> tuple[str, ...]:
    """Return the class names, in order, of a model that this package saved, from `id2label` in its config.json.

    Raise ModelError if the keys are not 0, 1, 2, ...
    """
    id2label = config["id2label"]
    if set(id2label) != {str(index) for index in range(len(id2label))}:
        raise ModelError(f"{folder}: the keys of id2label in config.json must be 0, 1, 2, ...")
    return tuple(id2label[str(index)] for index in range(len(id2label)))


MAX_EXTRA_ELEMENTS = 2**26
"""tensor elements that a model may have in addition to those in its file: computed tables, tied weights"""


def _check_model_size(trial: experiment.Trial, vocab_size: int, num_classes: int | None, folder: Path) -> None:
    """Raise ModelError before loading if settings describe a much larger model than the saved weights.

    Building such a model could exhaust memory before the mismatch with the weights is detected.
    """
    path = folder / "model.safetensors"
    if isinstance(trial.model, config_model.CustomModelConfig) or not path.is_file():
        return
    with torch.device("meta"):
        meta_model = build_model(trial.model, vocab_size, num_classes)
    num_elements = sum(tensor.numel() for tensor in (*meta_model.parameters(), *meta_model.buffers()))
    num_file_elements = count_safetensors_parameters(path)
    if num_elements > 2 * num_file_elements + MAX_EXTRA_ELEMENTS:
        raise ModelError(
            f"{folder}: config.json describes a model of {num_elements:,} elements, but the weights file has "
            f"{num_file_elements:,}"
        )


def _load_finetuned(folder: Path, config: dict[str, Any], *, use_initial_weights: bool) -> SavedModel:
    """Load a pretrained model that was fine-tuned in a run: a classifier, or a layer-dropped student."""
    package_entry = config[CONFIG_KEY]
    raw_trial = package_entry.get("trial") if isinstance(package_entry, dict) else None
    trial = schemas.validate_record(raw_trial, experiment.Trial, folder / "config.json")
    if not isinstance(trial.model, config_model.PretrainedModelConfig):
        raise ModelError(f"{folder}: config.json does not describe a fine-tuned pretrained model")
    if trial.spec.target.is_causal:
        student = (
            student_model.build_student(trial.model)
            if use_initial_weights
            else student_model.load_student(trial.model, folder)
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
    label_names = _parse_label_names(config, folder)
    tokenizer = PretrainedTokenizer.load(locate_weights(folder), None)
    if use_initial_weights:
        model = classifier.build_classifier(trial.model, len(label_names), seed=trial.seed)
    else:
        model = classifier.load_classifier(trial.model, folder, len(label_names))
    return SavedModel(model.eval(), tokenizer, trial.spec.target, label_names, trial, folder)


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
    """Return the model card that is saved with a model as README.md, in Markdown."""
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    description = (
        f"{model.name}, fine-tuned"
        if isinstance(model, EncoderClassifier | StudentModel)
        else "A small transformer trained"
    )
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
{Path(trial.data.source_name).name}, {trial.training.budget}, batch size {trial.training.batch_size},
{trial.training.optimizer}.
"""
