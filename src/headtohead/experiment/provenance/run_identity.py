"""Identify a run by the inputs that determine its results: settings, seed, corpus, user code, weights, this package."""

from __future__ import annotations

import hashlib
import json
import os
from importlib import metadata
from pathlib import Path
from typing import Any

from headtohead.atomic_io import compute_sha256
from headtohead.config.experiment import Trial
from headtohead.config.overlays import flatten_settings
from headtohead.config.tables import model
from headtohead.experiment.provenance.user_files import find_code_files, find_data_files, find_environment_variables

Dependencies = dict[str, str]
"""SHA-256 or version, by the name of a code or data file, an environment variable, a setting that names weights, or
the package"""
DATA_FILE_PREFIX = "file "
"""prefix of the names of data files that user code reads"""


def describe_dependencies(trial: Trial) -> Dependencies:
    """Return what identifies a run besides its settings: user files, external weights, the package version."""
    from headtohead.pretrained.weights import compute_weights_digest, locate_weights

    dependencies = {"headtohead": metadata.version("headtohead")}
    dependencies |= {name: compute_sha256(file) for name, file in find_code_files(trial).items()}
    dependencies |= {f"{DATA_FILE_PREFIX}{name}": compute_sha256(file) for name, file in find_data_files(trial).items()}
    for name in find_environment_variables(trial):
        value = os.environ.get(name)
        digest = "not set" if value is None else hashlib.sha256(value.encode()).hexdigest()
        dependencies[f"environment variable {name}"] = digest
    if isinstance(trial.model, model.PretrainedModelConfig):
        dependencies["model.pretrained"] = compute_weights_digest(locate_weights(trial.model.pretrained))
    if trial.teacher is not None and isinstance(trial.teacher.model, str):
        dependencies["teacher.model"] = compute_weights_digest(locate_weights(trial.teacher.model))
    if isinstance(trial.model, model.TransformerConfig) and isinstance(trial.model.init_from, str):
        dependencies["model.init_from"] = compute_sha256(Path(trial.model.init_from) / "model.safetensors")
    return dependencies


def compute_run_identity(trial: Trial, corpus_digest: str, *, with_data_files: bool = True) -> str:
    """Return a hash of all inputs that determine the results of a run. Files are identified by content, not by path.

    Without `with_data_files`, data files that user code names are excluded: it may write to them while it runs.
    """
    settings = trial.dump_variant_settings()
    del settings["data"]["source"], settings["plugins"]
    if isinstance(trial.model, model.CustomModelConfig):
        settings["model"]["module"] = trial.model.module.rpartition("/")[2]
    if isinstance(trial.model, model.PretrainedModelConfig):
        del settings["model"]["pretrained"], settings["data"]["tokenizer"]
    if trial.teacher is not None and isinstance(trial.teacher.model, str):
        del settings["teacher"]["model"]
    if isinstance(trial.model, model.TransformerConfig) and isinstance(trial.model.init_from, str):
        del settings["model"]["init_from"]
    dependencies = {
        name: digest
        for name, digest in describe_dependencies(trial).items()
        if with_data_files or not name.startswith(DATA_FILE_PREFIX)
    }
    inputs_json = json.dumps([settings, trial.seed, corpus_digest, dependencies], sort_keys=True)
    return hashlib.sha256(inputs_json.encode()).hexdigest()[:16]


def describe_setting_differences(recorded_settings: dict[str, Any], expected_settings: dict[str, Any]) -> list[str]:
    """Return the settings in which two identities of runs or experiments differ, the recorded and the expected one.

    Each is a phrase such as "training.batch_size is 4 instead of 8".
    """
    recorded, expected = flatten_settings(recorded_settings), flatten_settings(expected_settings)
    return [
        f"{name} is {recorded.get(name)!r} instead of {expected.get(name)!r}"
        for name in dict.fromkeys([*expected, *recorded])
        if recorded.get(name) != expected.get(name)
    ]
