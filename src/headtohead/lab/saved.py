"""A saved model: a folder as the ecosystem knows it, written at the end of a trial and read back by every verb."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import corpus, parts, spec
from ..corpus import Tokenizer
from ..errors import ModelError, RunFolderError
from ..files import read_json, write_json, write_text
from ..model import FineTuned, Learner, OwnModel, Transformer, create, finetuned, students
from ..model.pretrained_tokens import PretrainedTokenizer
from ..model.weights import find
from ..train.checkpoint import load_tensors, read_weights, save_weights

OURS = "headtohead"
"""the entry of config.json that makes a fine-tuned model one of ours"""


@dataclass(frozen=True)
class Saved:
    """A model with what is needed to use it."""

    model: Transformer | OwnModel | FineTuned | Learner
    tokenizer: Tokenizer | PretrainedTokenizer
    task: str
    label_names: tuple[str, ...]
    trial: spec.Trial
    folder: Path

    @property
    def name(self) -> str:
        return str(self.folder)


def save(
    folder: Path,
    model: Transformer | OwnModel | FineTuned | Learner,
    tokenizer: Tokenizer | PretrainedTokenizer,
    trial: spec.Trial,
    labels: tuple[str, ...],
) -> None:
    """config.json, model.safetensors, tokenizer.json, generation_config.json and a model card."""
    write_text(folder / "README.md", _card(trial, model, tokenizer))
    if isinstance(model, Learner):
        students.save(folder, model, {"trial": trial.model_dump(mode="json")})
        tokenizer.save(folder)
        return
    if isinstance(model, FineTuned):
        # As the library saves it, so that the library opens it; what we need to know is one entry of config.json.
        finetuned.save(folder, model, {"trial": trial.model_dump(mode="json")}, labels)
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


def _copy_own_files(folder: Path, trial: spec.Trial) -> dict[str, Any]:
    """Put the user's own files beside the weights; says how they are named there."""
    changed: dict[str, Any] = {}
    files = [Path(file) for file in trial.use]
    if isinstance(trial.model, spec.OwnModel):
        file, _, name = trial.model.module.rpartition(":")
        files.append(Path(file))
        changed["model"] = {**trial.model.model_dump(mode="json"), "module": f"own/{Path(file).name}:{name}"}
    if files:
        (folder / "own").mkdir(exist_ok=True)
        for one in files:
            if one.resolve() != (folder / "own" / one.name).resolve():
                shutil.copyfile(one, folder / "own" / one.name)
    return {"use": [f"own/{Path(file).name}" for file in trial.use], **changed}


def load(folder: str | Path, *, initial: bool = False) -> Saved:
    """Read a model back; with `initial`, as it was before training."""
    place = Path(folder)
    if not (place / "config.json").is_file():
        raise RunFolderError(f"{place}: not a model's folder (it has no config.json){_hint(place)}")
    config = read_json(place / "config.json")
    if OURS in config:
        return _load_finetuned(place, config, initial=initial)
    if config.get("model_type") != "headtohead":
        raise ModelError(f"{place}: a model of type {config.get('model_type')!r}, not one of Head to Head's")
    raw = config["trial"]
    for file in raw["use"]:
        parts.use(place / file)
    if "module" in raw["model"]:
        raw["model"]["module"] = str(place / raw["model"]["module"])
    trial = spec.Trial.model_validate(raw)
    labels = tuple(config["id2label"][str(i)] for i in range(len(config["id2label"])))
    tokenizer = corpus.Tokenizer.load(place)
    model = create(trial.model, config["vocab_size"], len(labels) or None, seed=trial.seed)
    if not initial:
        load_tensors(model, read_weights(place / "model.safetensors"), str(place))
    return Saved(model.eval(), tokenizer, trial.goal, labels, trial, place)


def _load_finetuned(place: Path, config: dict[str, Any], *, initial: bool) -> Saved:
    trial = spec.Trial.model_validate(config[OURS]["trial"])
    if trial.task == "distil":
        assert isinstance(trial.model, spec.Pretrained)
        student = students.begin(trial.model) if initial else students.reopen(trial.model, place)
        return Saved(student.eval(), PretrainedTokenizer.load(find(place), None), trial.goal, (), trial, place)
    labels = tuple(config["id2label"][str(i)] for i in range(len(config["id2label"])))
    tokenizer = PretrainedTokenizer.load(find(place), None)
    assert isinstance(trial.model, spec.Pretrained)
    if initial:
        model = finetuned.begin(trial.model, len(labels), seed=trial.seed)
    else:
        model = finetuned.reopen(trial.model, place, len(labels))
    return Saved(model.eval(), tokenizer, trial.goal, labels, trial, place)


def _hint(place: Path) -> str:
    runs = sorted(str(p.parent.relative_to(place)) for p in place.glob("**/config.json"))[:3] if place.is_dir() else []
    return f"; there are some inside it: {', '.join(runs)}" if runs else ""


def _card(
    trial: spec.Trial, model: Transformer | OwnModel | FineTuned | Learner, tokenizer: Tokenizer | PretrainedTokenizer
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
