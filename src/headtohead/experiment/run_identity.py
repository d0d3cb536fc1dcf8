"""What a run's results depend on: its settings and seed, the corpus, user code, external weights, and this package."""

from __future__ import annotations

import hashlib
import json
from importlib import metadata
from pathlib import Path
from typing import Any

from headtohead.atomic_io import compute_sha256
from headtohead.config import model
from headtohead.config.experiment import Trial
from headtohead.config.overlays import flatten_settings
from headtohead.experiment.code_files import find_code_files

Dependencies = dict[str, str]
"""name of a code file, of a setting that names weights, or of the package: its SHA-256 or version"""


def describe_dependencies(trial: Trial) -> Dependencies:
    """Return digests of everything that a run depends on besides its settings, seed and corpus."""
    from headtohead.pretrained.weights import compute_digest, locate_weights

    dependencies = {"headtohead": metadata.version("headtohead")}
    dependencies |= {name: compute_sha256(file) for name, file in find_code_files(trial).items()}
    if isinstance(trial.model, model.PretrainedModelConfig):
        dependencies["model.pretrained"] = compute_digest(locate_weights(trial.model.pretrained))
    if trial.teacher is not None and isinstance(trial.teacher.model, str):
        dependencies["teacher.model"] = compute_digest(locate_weights(trial.teacher.model))
    if isinstance(trial.model, model.TransformerConfig) and isinstance(trial.model.init_from, str):
        dependencies["model.init_from"] = compute_sha256(Path(trial.model.init_from) / "model.safetensors")
    return dependencies


def compute_run_identity(trial: Trial, corpus_digest: str) -> str:
    """Return a hash of everything that a run's results depend on. Files are identified by content, not by path."""
    settings = trial.settings()
    del settings["data"]["source"], settings["plugins"]
    if isinstance(trial.model, model.CustomModelConfig):
        settings["model"]["module"] = trial.model.module.rpartition("/")[2]
    if isinstance(trial.model, model.PretrainedModelConfig):
        del settings["model"]["pretrained"], settings["data"]["tokenizer"]
    if trial.teacher is not None and isinstance(trial.teacher.model, str):
        del settings["teacher"]["model"]
    if isinstance(trial.model, model.TransformerConfig) and isinstance(trial.model.init_from, str):
        del settings["model"]["init_from"]
    text = json.dumps([settings, trial.seed, corpus_digest, describe_dependencies(trial)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def describe_differences(recorded: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    """Return the settings in which two nested dicts differ, such as "training.steps is 40 instead of 60"."""
    old, new = flatten_settings(recorded), flatten_settings(expected)
    return [
        f"{name} is {old.get(name)!r} instead of {new.get(name)!r}"
        for name in dict.fromkeys([*new, *old])
        if old.get(name) != new.get(name)
    ]
