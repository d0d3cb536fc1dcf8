"""A saved model: a folder as the ecosystem knows it, written at the end of a trial and read back by every verb."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from headtohead.atomic_io import compute_sha256, read_json_object, write_bytes, write_json, write_text
from headtohead.config import experiment, model, pretrained
from headtohead.config.tasks import Target
from headtohead.data import tokenizers
from headtohead.data.tokenizers import CorpusTokenizer
from headtohead.errors import ModelError, RunFolderError
from headtohead.experiment import schemas, trust
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
"""the entry of config.json that makes a fine-tuned model one of ours"""


@dataclass(frozen=True)
class SavedModel:
    """A model with what is needed to use it."""

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
    """config.json, model.safetensors, tokenizer.json, generation_config.json and a model card."""
    write_text(folder / "README.md", _render_model_card(trial, model, tokenizer))
    if isinstance(model, StudentModel):
        layer_dropping.save_student(folder, model, {"trial": trial.model_dump(mode="json")})
        tokenizer.save(folder)
        return
    if isinstance(model, EncoderClassifier):
        # As the library saves it, so that the library opens it; what we need to know is one entry of config.json.
        classifier.save_classifier(folder, model, {"trial": trial.model_dump(mode="json")}, label_names)
        tokenizer.save(folder)
        return
    own = _copy_custom_code(folder, trial)
    config = {
        "model_type": "headtohead",
        "architectures": [type(model).__name__],
        "task": trial.task,
        "vocab_size": tokenizer.vocab_size,
        "max_position_embeddings": trial.model.context,
        "id2label": {str(i): name for i, name in enumerate(label_names)},
        "pad_token_id": tokenizer.pad_id,
        "unk_token_id": tokenizer.unk_id,
        "bos_token_id": tokenizer.bos_id,
        "eos_token_id": tokenizer.eos_id,
        "trial": {**trial.model_dump(mode="json"), **own},
    }
    write_json(folder / "config.json", config)
    write_json(
        folder / "generation_config.json",
        {"do_sample": True, "max_new_tokens": 50, "temperature": 1.0, "eos_token_id": tokenizer.eos_id},
    )
    save_weights(folder / "model.safetensors", model)
    tokenizer.save(folder)


def _copy_custom_code(folder: Path, trial: experiment.Trial) -> dict[str, Any]:
    """Put the user's own files beside the weights; says how they are named there."""
    changed: dict[str, Any] = {}
    files = [Path(file) for file in trial.use]
    if isinstance(trial.model, model.CustomModelConfig):
        file, _, name = trial.model.module.rpartition(":")
        files.append(Path(file))
        changed["model"] = {**trial.model.model_dump(mode="json"), "module": f"own/{Path(file).name}:{name}"}
    trust.trust_files(files)  # they have just been run
    if files:
        (folder / "own").mkdir(exist_ok=True)
        for one in files:
            if one.resolve() != (folder / "own" / one.name).resolve():
                write_bytes(folder / "own" / one.name, one.read_bytes())
    return {"use": [f"own/{Path(file).name}" for file in trial.use], **changed}


def load(folder: str | Path, *, use_initial_weights: bool = False) -> SavedModel:
    """Read a model back; with `initial`, as it was before training."""
    place = Path(folder)
    if not (place / "config.json").is_file():
        raise RunFolderError(f"{place}: not a model's folder (it has no config.json){_suggest_model_folders(place)}")
    config = read_json_object(place / "config.json")
    if CONFIG_KEY in config:
        return _load_finetuned(place, config, use_initial_weights=use_initial_weights)
    if config.get("model_type") != "headtohead":
        raise ModelError(f"{place}: a model of type {config.get('model_type')!r}, not one of Head to Head's")
    trial = schemas.validate_record(config, schemas.ModelConfigFile, place / "config.json").trial
    if isinstance(trial.model, pretrained.PretrainedModelConfig):
        raise ModelError(f"{place}: its config.json is not that of a model with weights of its own")
    if use_initial_weights and _has_pretrained_encoder(trial):
        raise ModelError(f"{place}: training started from a pre-trained encoder, which the run folder does not contain")
    trial = _import_custom_code(trial, place)
    labels = _read_label_names(config, place)
    tokenizer = tokenizers.CorpusTokenizer.load(place)
    if config["vocab_size"] != tokenizer.vocab_size:
        raise ModelError(
            f"{place}: made for {config['vocab_size']} tokens, and tokenizer.json has {tokenizer.vocab_size}"
        )
    _check_model_size(trial, tokenizer.vocab_size, len(labels) or None, place)
    model = build_model(
        trial.model, tokenizer.vocab_size, len(labels) or None, is_causal=trial.spec.target.is_causal, seed=trial.seed
    )
    if not use_initial_weights:
        _verify_weights_checksum(place)
        load_tensors(model, read_weights(place / "model.safetensors"), str(place))
    return SavedModel(model.eval(), tokenizer, trial.spec.target, labels, trial, place)


def _has_pretrained_encoder(trial: experiment.Trial) -> bool:
    return isinstance(trial.model, model.TransformerConfig) and trial.model.init_from is not None


def _verify_weights_checksum(folder: Path) -> None:
    """Weights of a finished run must be those that it wrote: a wrong number among millions shows nowhere else."""
    if not (folder / "result.json").is_file():
        return
    sums = read_json_object(folder / "result.json").get("sha256")
    path = folder / "model.safetensors"
    if isinstance(sums, dict) and path.is_file() and sums.get(path.name, compute_sha256(path)) != compute_sha256(path):
        raise RunFolderError(f"{path}: is damaged (it is not what the run wrote); train it anew")


def _import_custom_code(trial: experiment.Trial, folder: Path) -> experiment.Trial:
    """The same with the user's own files where they lie now, imported; refused if nobody has asked for them."""
    own = isinstance(trial.model, model.CustomModelConfig)
    module, _, name = (
        trial.model.module.rpartition(":") if isinstance(trial.model, model.CustomModelConfig) else ("", "", "")
    )
    files = trust.resolve_custom_code(folder, [*trial.use, *([module] if own else [])])
    trust.check_trusted(folder, files)
    used = files[: len(trial.use)]
    for file in used:
        registry.load_part_file(file)
    changes: dict[str, Any] = {"use": tuple(map(str, used))}
    if own:
        changes["model"] = trial.model.model_copy(update={"module": f"{files[-1]}:{name}"})
    return trial.model_copy(update=changes) if files else trial


def _read_label_names(config: dict[str, Any], folder: Path) -> tuple[str, ...]:
    named = config["id2label"]
    if set(named) != {str(at) for at in range(len(named))}:
        raise ModelError(f"{folder}: the classes of its config.json are not numbered one after the other")
    return tuple(named[str(at)] for at in range(len(named)))


MAX_EXTRA_NUMBERS = 2**26
"""numbers that a model may hold beyond its file's: tables that are computed, weights that are tied"""


def _check_model_size(trial: experiment.Trial, vocab_size: int, num_classes: int | None, folder: Path) -> None:
    """Settings that speak of a larger model than the weights beside them would fill the memory before anybody sees that
    the two do not belong together."""
    path = folder / "model.safetensors"
    if isinstance(trial.model, model.CustomModelConfig) or not path.is_file():
        return
    with torch.device("meta"):
        outline = build_model(trial.model, vocab_size, num_classes)
    size = sum(tensor.numel() for tensor in (*outline.parameters(), *outline.buffers()))
    held = count_parameters(path)
    if size > 2 * held + MAX_EXTRA_NUMBERS:
        raise ModelError(f"{folder}: its settings speak of {size:,} numbers, and its weights are {held:,}")


def _load_finetuned(folder: Path, config: dict[str, Any], *, use_initial_weights: bool) -> SavedModel:
    about = config[CONFIG_KEY]
    raw = about.get("trial") if isinstance(about, dict) else None
    trial = schemas.validate_record(raw, experiment.Trial, folder / "config.json")
    if not isinstance(trial.model, pretrained.PretrainedModelConfig):
        raise ModelError(f"{folder}: its config.json is not that of a pretrained model that was trained on")
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
    if not isinstance(config.get("id2label"), dict) or not all(isinstance(n, str) for n in config["id2label"].values()):
        raise ModelError(f"{folder}: its config.json does not name the classes (id2label)")
    labels = _read_label_names(config, folder)
    tokenizer = PretrainedTokenizer.load(locate_weights(folder), None)
    if use_initial_weights:
        model = classifier.build_classifier(trial.model, len(labels), seed=trial.seed)
    else:
        model = classifier.load_classifier(trial.model, folder, len(labels))
    return SavedModel(model.eval(), tokenizer, trial.spec.target, labels, trial, folder)


def _suggest_model_folders(folder: Path) -> str:
    inside = islice(folder.glob("**/config.json"), 1000) if folder.is_dir() else ()
    runs = sorted(str(p.parent.relative_to(folder)) for p in inside)[:3]
    return f"; there are some inside it: {', '.join(runs)}" if runs else ""


def _render_model_card(
    trial: experiment.Trial,
    model: Transformer | CustomModel | EncoderClassifier | StudentModel,
    tokenizer: CorpusTokenizer | PretrainedTokenizer,
) -> str:
    parameters = sum(p.numel() for p in model.parameters())
    what = (
        f"{model.name}, fine-tuned"
        if isinstance(model, EncoderClassifier | StudentModel)
        else "A small transformer trained"
    )
    settings = "\n".join(f"- {k}: {v}" for k, v in trial.model.model_dump(mode="json").items())
    return f"""---
library_name: headtohead
tags: [{trial.spec.hub_tag}]
---
# {trial.variant}, seed {trial.seed}

{what} by Head to Head (the package headtohead) to be compared with its neighbours,
not to be put to use. {parameters:,} parameters, vocabulary of {tokenizer.vocab_size:,}, task {trial.task}.

## Settings
{settings}

## Trained on
{Path(trial.data.source).name}, {trial.training.steps} steps, batch size {trial.training.batch_size},
{trial.training.optimizer}.
"""
