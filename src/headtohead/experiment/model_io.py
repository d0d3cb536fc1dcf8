"""A saved model: a folder as the ecosystem knows it, written at the end of a trial and read back by every verb."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from headtohead.atomic_io import read_table, sha256, write_bytes, write_json, write_text
from headtohead.config import experiment, model, pretrained
from headtohead.data import tokenizers
from headtohead.data.tokenizers import Tokenizer
from headtohead.errors import ModelError, RunFolderError
from headtohead.experiment import schemas, trust
from headtohead.nn.custom_model import OwnModel
from headtohead.nn.init import create
from headtohead.nn.parts import registry
from headtohead.nn.transformer import Transformer
from headtohead.pretrained import classifier, layer_dropping
from headtohead.pretrained.classifier import FineTuned
from headtohead.pretrained.layer_dropping import Learner
from headtohead.pretrained.tokenizer import PretrainedTokenizer
from headtohead.pretrained.weights import find, numbers_in
from headtohead.training.checkpoints import load_tensors, read_weights, save_weights

OURS = "headtohead"
"""the entry of config.json that makes a fine-tuned model one of ours"""


@dataclass(frozen=True)
class Saved:
    """A model with what is needed to use it."""

    model: Transformer | OwnModel | FineTuned | Learner
    tokenizer: Tokenizer | PretrainedTokenizer
    task: str
    label_names: tuple[str, ...]
    trial: experiment.Trial
    folder: Path

    @property
    def name(self) -> str:
        return str(self.folder)


def save(
    folder: Path,
    model: Transformer | OwnModel | FineTuned | Learner,
    tokenizer: Tokenizer | PretrainedTokenizer,
    trial: experiment.Trial,
    labels: tuple[str, ...],
) -> None:
    """config.json, model.safetensors, tokenizer.json, generation_config.json and a model card."""
    write_text(folder / "README.md", _card(trial, model, tokenizer))
    if isinstance(model, Learner):
        layer_dropping.save(folder, model, {"trial": trial.model_dump(mode="json")})
        tokenizer.save(folder)
        return
    if isinstance(model, FineTuned):
        # As the library saves it, so that the library opens it; what we need to know is one entry of config.json.
        classifier.save(folder, model, {"trial": trial.model_dump(mode="json")}, labels)
        tokenizer.save(folder)
        return
    own = _copy_own_files(folder, trial)
    config = {
        "model_type": "headtohead",
        "architectures": [type(model).__name__],
        "task": trial.task,
        "vocab_size": tokenizer.vocab_size,
        "max_position_embeddings": trial.model.context,
        "id2label": {str(i): name for i, name in enumerate(labels)},
        "pad_token_id": tokenizer.pad_id,
        "unk_token_id": tokenizer.unknown_id,
        "bos_token_id": tokenizer.start_id,
        "eos_token_id": tokenizer.stop_id,
        "trial": {**trial.model_dump(mode="json"), **own},
    }
    write_json(folder / "config.json", config)
    write_json(
        folder / "generation_config.json",
        {"do_sample": True, "max_new_tokens": 50, "temperature": 1.0, "eos_token_id": tokenizer.stop_id},
    )
    save_weights(folder / "model.safetensors", model)
    tokenizer.save(folder)


def _copy_own_files(folder: Path, trial: experiment.Trial) -> dict[str, Any]:
    """Put the user's own files beside the weights; says how they are named there."""
    changed: dict[str, Any] = {}
    files = [Path(file) for file in trial.use]
    if isinstance(trial.model, model.OwnModel):
        file, _, name = trial.model.module.rpartition(":")
        files.append(Path(file))
        changed["model"] = {**trial.model.model_dump(mode="json"), "module": f"own/{Path(file).name}:{name}"}
    trust.allow(files)  # they have just been run
    if files:
        (folder / "own").mkdir(exist_ok=True)
        for one in files:
            if one.resolve() != (folder / "own" / one.name).resolve():
                write_bytes(folder / "own" / one.name, one.read_bytes())
    return {"use": [f"own/{Path(file).name}" for file in trial.use], **changed}


def load(folder: str | Path, *, initial: bool = False) -> Saved:
    """Read a model back; with `initial`, as it was before training."""
    place = Path(folder)
    if not (place / "config.json").is_file():
        raise RunFolderError(f"{place}: not a model's folder (it has no config.json){_hint(place)}")
    config = read_table(place / "config.json")
    if OURS in config:
        return _load_finetuned(place, config, initial=initial)
    if config.get("model_type") != "headtohead":
        raise ModelError(f"{place}: a model of type {config.get('model_type')!r}, not one of Head to Head's")
    schemas.checked(config, schemas.Saved, place / "config.json")
    trial = schemas.made(experiment.Trial, config["trial"], place / "config.json")
    if isinstance(trial.model, pretrained.Pretrained):
        raise ModelError(f"{place}: its config.json is not that of a model with weights of its own")
    trial = _with_own_code(trial, place)
    labels = _labels(config, place)
    tokenizer = tokenizers.Tokenizer.load(place)
    if config["vocab_size"] != tokenizer.vocab_size:
        raise ModelError(
            f"{place}: made for {config['vocab_size']} tokens, and tokenizer.json has {tokenizer.vocab_size}"
        )
    _check_size(trial, tokenizer.vocab_size, len(labels) or None, place)
    model = create(trial.model, tokenizer.vocab_size, len(labels) or None, seed=trial.seed)
    if not initial:
        _check_weights(place)
        load_tensors(model, read_weights(place / "model.safetensors"), str(place))
    return Saved(model.eval(), tokenizer, trial.goal, labels, trial, place)


def _check_weights(place: Path) -> None:
    """Weights of a finished run must be those that it wrote: a wrong number among millions shows nowhere else."""
    if not (place / "result.json").is_file():
        return
    sums = read_table(place / "result.json").get("sha256")
    path = place / "model.safetensors"
    if isinstance(sums, dict) and path.is_file() and sums.get(path.name, sha256(path)) != sha256(path):
        raise RunFolderError(f"{path}: is damaged (it is not what the run wrote); train it anew")


def _with_own_code(trial: experiment.Trial, place: Path) -> experiment.Trial:
    """The same with the user's own files where they lie now, imported; refused if nobody has asked for them."""
    own = isinstance(trial.model, model.OwnModel)
    module, _, name = trial.model.module.rpartition(":") if isinstance(trial.model, model.OwnModel) else ("", "", "")
    files = trust.own_files(place, [*trial.use, *([module] if own else [])])
    trust.check(place, files)
    used = files[: len(trial.use)]
    for file in used:
        registry.use(file)
    changes: dict[str, Any] = {"use": tuple(map(str, used))}
    if own:
        changes["model"] = trial.model.model_copy(update={"module": f"{files[-1]}:{name}"})
    return trial.model_copy(update=changes) if files else trial


def _labels(config: dict[str, Any], place: Path) -> tuple[str, ...]:
    named = config["id2label"]
    if set(named) != {str(at) for at in range(len(named))}:
        raise ModelError(f"{place}: the classes of its config.json are not numbered one after the other")
    return tuple(named[str(at)] for at in range(len(named)))


SPARE = 2**26
"""numbers that a model may hold beyond its file's: tables that are computed, weights that are tied"""


def _check_size(trial: experiment.Trial, vocab: int, classes: int | None, place: Path) -> None:
    """Settings that speak of a larger model than the weights beside them would fill the memory before anybody sees that
    the two do not belong together."""
    path = place / "model.safetensors"
    if isinstance(trial.model, model.OwnModel) or not path.is_file():
        return
    with torch.device("meta"):
        outline = create(trial.model, vocab, classes)
    size = sum(tensor.numel() for tensor in (*outline.parameters(), *outline.buffers()))
    held = numbers_in(path)
    if size > 2 * held + SPARE:
        raise ModelError(f"{place}: its settings speak of {size:,} numbers, and its weights are {held:,}")


def _load_finetuned(place: Path, config: dict[str, Any], *, initial: bool) -> Saved:
    about = config[OURS]
    raw = about.get("trial") if isinstance(about, dict) else None
    trial = schemas.made(experiment.Trial, raw, place / "config.json")
    if not isinstance(trial.model, pretrained.Pretrained):
        raise ModelError(f"{place}: its config.json is not that of a pretrained model that was trained on")
    if trial.task == "distil":
        student = layer_dropping.begin(trial.model) if initial else layer_dropping.reopen(trial.model, place)
        return Saved(student.eval(), PretrainedTokenizer.load(find(place), None), trial.goal, (), trial, place)
    if not isinstance(config.get("id2label"), dict) or not all(isinstance(n, str) for n in config["id2label"].values()):
        raise ModelError(f"{place}: its config.json does not name the classes (id2label)")
    labels = _labels(config, place)
    tokenizer = PretrainedTokenizer.load(find(place), None)
    if initial:
        model = classifier.begin(trial.model, len(labels), seed=trial.seed)
    else:
        model = classifier.reopen(trial.model, place, len(labels))
    return Saved(model.eval(), tokenizer, trial.goal, labels, trial, place)


def _hint(place: Path) -> str:
    inside = islice(place.glob("**/config.json"), 1000) if place.is_dir() else ()
    runs = sorted(str(p.parent.relative_to(place)) for p in inside)[:3]
    return f"; there are some inside it: {', '.join(runs)}" if runs else ""


def _card(
    trial: experiment.Trial,
    model: Transformer | OwnModel | FineTuned | Learner,
    tokenizer: Tokenizer | PretrainedTokenizer,
) -> str:
    parameters = sum(p.numel() for p in model.parameters())
    what = f"{model.name}, fine-tuned" if isinstance(model, FineTuned | Learner) else "A small transformer trained"
    settings = "\n".join(f"- {k}: {v}" for k, v in trial.model.model_dump(mode="json").items())
    return f"""---
library_name: headtohead
tags: [{"text-classification" if trial.goal == "classify" else "text-generation"}]
---
# {trial.variant}, seed {trial.seed}

{what} by Head to Head (the package headtohead) to be compared with its neighbours,
not to be put to use. {parameters:,} parameters, vocabulary of {tokenizer.vocab_size:,}, task {trial.task}.

## Settings
{settings}

## Trained on
{Path(trial.data.source).name}, {trial.training.steps} steps of {trial.training.batch} rows, {trial.training.optimizer}.
"""
