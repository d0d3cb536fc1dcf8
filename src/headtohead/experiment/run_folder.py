"""Run folders: the contract between those who train and those who read. docs/run-folder.md describes every file.

RUNS/EXPERIMENT/
  experiment.json                 the resolved experiment, its identity, versions, the command
  VARIANT/seed-N/                 a run: one trial
    trial.json  start.json  metrics.jsonl  scores.safetensors  probes.json  maps.safetensors
    config.json  model.safetensors  tokenizer.json  generation_config.json  README.md  own/
    checkpoint-000100/            while it trains
    result.json                   written last: a run with it is finished
    failure.json                  instead, when the trial could not go on
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from headtohead.atomic_io import (
    compute_sha256,
    has_valid_checksum,
    read_json_object,
    translate_disk_full_error,
    write_json,
)
from headtohead.config import experiment as config_experiment
from headtohead.config import model, pretrained
from headtohead.config.base import FOLDER_NAME_PATTERN, FOLDER_NAME_RULE
from headtohead.config.loading import build_trial as trial_of
from headtohead.errors import RunFolderError
from headtohead.experiment import schemas

SCHEMA_VERSION = 1
WEIGHT_FILES = ("model.safetensors", "adapter_model.safetensors")


@dataclass(frozen=True)
class Run:
    """One run folder, read without torch."""

    folder: Path

    @property
    def is_finished(self) -> bool:
        return (self.folder / "result.json").is_file()

    @property
    def failure(self) -> str | None:
        path = self.folder / "failure.json"
        return str(schemas.read_validated(path, schemas.FailureFile)["message"]) if path.is_file() else None

    @cached_property
    def trial(self) -> config_experiment.Trial:
        path = self.folder / "trial.json"
        return schemas.parse_settings(
            config_experiment.Trial, schemas.read_validated(path, schemas.TrialFile)["trial"], path
        )

    @cached_property
    def start(self) -> dict[str, Any]:
        found: dict[str, Any] = schemas.read_validated(self.folder / "start.json", schemas.StartFile)
        return found

    @cached_property
    def result(self) -> dict[str, Any]:
        found: dict[str, Any] = schemas.read_validated(self.folder / "result.json", schemas.ResultFile)
        return found

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        return schemas.read_validated_lines(self.folder / "metrics.jsonl", schemas.MetricsLine)

    @cached_property
    def scores(self) -> dict[str, np.ndarray[Any, np.dtype[Any]]]:
        """Per-example scores, by "split.losses", "split.counts" and "split.correct"."""
        path = self.folder / "scores.safetensors"
        try:
            return read_arrays(path)
        except SafetensorError as error:
            raise RunFolderError(f"{path}: is damaged ({error})") from None

    @cached_property
    def lengths(self) -> dict[str, Any]:
        """What was tried on other lengths of input, if anything."""
        path = self.folder / "lengths.json"
        found: dict[str, Any] = schemas.read_validated(path, schemas.LengthGeneralizationFile) if path.is_file() else {}
        return found

    @cached_property
    def probes(self) -> dict[str, Any]:
        path = self.folder / "probes.json"
        found: dict[str, Any] = schemas.read_validated(path, schemas.ProbesFile) if path.is_file() else {}
        return found

    @property
    def has_valid_checksum(self) -> bool:
        """Does result.json, which vouches for all other files, agree with its own checksum?"""
        return has_valid_checksum(self.result)

    def check(self) -> None:
        """RunFolderError if what a verdict rests on is not what the run wrote. Weights are not read for that."""
        wrong = self.find_damaged_files(exclude=WEIGHT_FILES)
        wrong += [] if self.has_valid_checksum else ["result.json"]
        if wrong:
            raise RunFolderError(
                f"{self.folder / wrong[0]}: is damaged (it is not what the run wrote); put it back, or remove "
                f"{self.folder} and train it anew with --resume"
            )

    def find_damaged_files(self, *, exclude: Sequence[str] = ()) -> list[str]:
        """The files whose checksum does not agree with the result's; `but` those are not looked at."""
        sums: dict[str, str] = self.result.get("sha256", {})
        if not sums:
            raise RunFolderError(
                f"{self.folder / 'result.json'}: is damaged, or not one of ours: it vouches for no file"
            )
        if outside := [name for name in sums if not schemas.is_safe_relative_path(name)]:
            raise RunFolderError(f"{self.folder / 'result.json'}: names a file outside the run: {outside[0]!r}")
        files = {name: self.folder / name for name in sums if name not in exclude}
        return [name for name, path in files.items() if not path.is_file() or compute_sha256(path) != sums[name]]


@dataclass(frozen=True)
class ExperimentRuns:
    """An experiment's folder."""

    folder: Path

    @cached_property
    def experiment(self) -> config_experiment.Experiment:
        path = self.folder / "experiment.json"
        found = schemas.parse_settings(config_experiment.Experiment, self.about["experiment"], path)
        if outside := [name for name in found.variants if not FOLDER_NAME_PATTERN.fullmatch(name)]:
            raise RunFolderError(f"{path}: a variant cannot be called {outside[0]!r}; it {FOLDER_NAME_RULE}")
        return found

    @cached_property
    def about(self) -> dict[str, Any]:
        path = self.folder / "experiment.json"
        found = read_json_object(path)
        if found.get("schema") != SCHEMA_VERSION:
            raise RunFolderError(
                f"{self.folder}: written with schema {found.get('schema')}, this reads {SCHEMA_VERSION}"
            )
        about: dict[str, Any] = schemas.validate(found, schemas.ExperimentFile, path)
        return about

    def run(self, variant: str, seed: int) -> Run:
        return Run(self.folder / variant / f"seed-{seed}")

    def seeds(self, variant: str) -> list[int]:
        """The seeds with a folder, in order."""
        found = [f for f in (self.folder / variant).glob("seed-*") if f.is_dir()]
        return sorted(int(seed.group(1)) for f in found if (seed := schemas.SEED_FOLDER_PATTERN.fullmatch(f.name)))

    def finished(self, variant: str) -> dict[int, Run]:
        return {seed: run for seed in self.seeds(variant) if (run := self.run(variant, seed)).is_finished}


def read_arrays(path: Path) -> dict[str, np.ndarray[Any, np.dtype[Any]]]:
    """The tensors of a safetensors file; SafetensorError where it is none."""
    if not path.is_file():
        raise RunFolderError(f"{path}: is damaged (no such file, or no plain one)")
    try:
        return load_file(path)
    except (ValueError, TypeError, KeyError, OverflowError) as error:  # types and shapes that numpy does not have
        raise SafetensorError(str(error)) from error


def open_runs(folder: Path) -> ExperimentRuns:
    if not (folder / "experiment.json").is_file():
        raise RunFolderError(f"{folder}: not the folder of an experiment (it has no experiment.json)")
    return ExperimentRuns(folder)


def create_runs(
    folder: Path, experiment: config_experiment.Experiment, metadata: dict[str, Any], *, resume: bool
) -> ExperimentRuns:
    """The folder of this experiment, new or to be continued; another experiment's is left alone."""
    path = folder / "experiment.json"
    if path.is_file():
        there = ExperimentRuns(folder).about
        if there["identity"] != experiment.identity():
            raise RunFolderError(
                f"{folder}: was made by a different experiment ({there['experiment']['name']!r}: "
                f"{_describe_difference(there['experiment'], experiment.model_dump(mode='json'))}); "
                "give another --out, or remove it"
            )
        if not resume:
            raise RunFolderError(f"{folder}: this experiment has been run here; --resume continues it, or give --out")
    elif folder.is_dir() and any(not there.name.startswith(".") for there in folder.iterdir()):
        raise RunFolderError(f"{folder}: is not empty and is not an experiment's folder; give another --out")
    with translate_disk_full_error(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for half in folder.glob(".*.part"):  # left by a kill
        half.unlink(missing_ok=True)
    kept = experiment.model_dump(mode="json")
    write_json(
        path,
        {"schema": SCHEMA_VERSION, "identity": experiment.identity(), "experiment": kept, **metadata},
        with_checksum=True,
    )
    return ExperimentRuns(folder)


def _describe_difference(existing: dict[str, Any], requested: dict[str, Any]) -> str:
    """The first settings that differ, in words."""
    found = []
    for table in ("task", "name", "data", "model", "training"):
        one, other = existing.get(table), requested.get(table)
        if isinstance(one, dict) and isinstance(other, dict):
            found += [f"{table}.{k} {one.get(k)!r} there, {v!r} here" for k, v in other.items() if one.get(k) != v]
        elif one != other:
            found.append(f"{table} {one!r} there, {other!r} here")
    return "; ".join(found[:3]) or "other files of parts"


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """One experiment a folder at a time; a second one is told so."""
    with translate_disk_full_error(folder):
        folder.mkdir(parents=True, exist_ok=True)
    place = folder.resolve()  # by whatever way it is named
    with (place.parent / f".{place.name}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RunFolderError(f"{folder}: this experiment is being run right now by another process") from None
        yield


def compute_run_identity(trial: config_experiment.Trial, corpus_digest: str) -> str:
    """Hash of everything that a run's numbers depend on: not where files lie, but what is in them."""
    kept = trial.settings()
    kept["data"].pop("source")
    kept["use"] = sorted(compute_sha256(Path(file)) for file in trial.use)
    if isinstance(trial.model, model.CustomModelConfig):
        file, _, name = trial.model.module.rpartition(":")
        kept["model"]["module"] = f"{compute_sha256(Path(file))}:{name}"
    if isinstance(trial.model, pretrained.PretrainedModelConfig):
        from headtohead.pretrained.weights import compute_digest, locate_weights

        kept["model"]["pretrained"] = compute_digest(locate_weights(trial.model.pretrained))
        del kept["data"]["tokenizer"]
    if trial.teacher is not None and isinstance(trial.teacher.model, str):
        from headtohead.pretrained.weights import compute_digest, locate_weights

        kept["teacher"]["model"] = compute_digest(locate_weights(trial.teacher.model))
    if isinstance(trial.model, model.TransformerConfig) and isinstance(trial.model.init_from, str):
        kept["model"]["init_from"] = compute_sha256(Path(trial.model.init_from) / "model.safetensors")
    text = json.dumps([kept, trial.seed, corpus_digest], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def build_trials(experiment: config_experiment.Experiment, seeds: range) -> list[config_experiment.Trial]:
    """Seed by seed, so that every variant has a first answer early."""
    return [trial_of(experiment, variant, seed) for seed in seeds for variant in experiment.names]
