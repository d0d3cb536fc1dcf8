"""The models that the web app offers: saved runs, installed packages with weights, and those named by `--model`.

Models are identified by keys. Keys from requests are looked up part by part and never joined to a path:

    run/EXPERIMENT/VARIANT/SEED        pretrained/NAME
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from headtohead.web.experiment_folders import ExperimentFolders, NameNotFoundError, resolves_inside_folder
from headtohead.web.live.experiment_state import ExperimentReader

INITIAL_CHECKPOINT, FINAL_CHECKPOINT = "before", "after"
MAX_LISTED_RUNS = 1000
WEIGHT_FILE_SUFFIXES = (".gguf", ".safetensors")


@dataclass(frozen=True)
class CatalogEntry:
    """A model that pages can use."""

    key: str
    group: str
    label: str
    location: str
    """folder, file, package or hub name; only the model process uses it"""
    is_run: bool
    can_generate: bool
    checkpoints: tuple[tuple[str, str], ...] = ()
    """key and label of each checkpoint in a run, from before to after training"""

    @property
    def name(self) -> str:
        """Return the display name, which is unique across experiments."""
        return f"{self.group}: {self.label}" if self.is_run else self.label

    def to_load_request(self, checkpoint: str) -> dict[str, Any]:
        """Return the load request for the model process."""
        if self.is_run and checkpoint not in dict(self.checkpoints):
            raise NameNotFoundError("this run has no such checkpoint")
        label = (
            f"{self.name}, {dict(self.checkpoints)[checkpoint]}"
            if self.is_run and checkpoint != FINAL_CHECKPOINT
            else self.name
        )
        return {
            "location": self.location,
            "run": self.is_run,
            "checkpoint": checkpoint if self.is_run else FINAL_CHECKPOINT,
            "label": label,
        }


class ModelCatalog:
    """All models, read from disk on every access."""

    def __init__(self, folders: ExperimentFolders, pretrained_models: Sequence[str] = ()) -> None:
        self.folders = folders
        self._pretrained_locations = {
            f"pretrained/{_derive_model_title(location)}": location for location in pretrained_models
        }

    def list_models_by_group(self, *, generative_only: bool = False) -> dict[str, list[CatalogEntry]]:
        """Return the models by group; with `generative_only`, only those that can generate text."""
        groups: dict[str, list[CatalogEntry]] = {}
        for entry in self._iterate_entries():
            if entry.can_generate or not generative_only:
                groups.setdefault(entry.group, []).append(entry)
        return groups

    def _iterate_entries(self) -> Iterator[CatalogEntry]:
        """Yield trained models, up to MAX_LISTED_RUNS, then pretrained ones."""
        num_runs = 0
        for name, folder in self.folders.list_experiments().items():
            for variant, seed in self._list_saved_runs(folder):
                if num_runs >= MAX_LISTED_RUNS:
                    break
                num_runs += 1
                yield self._build_run_entry(name, folder, variant, seed)
        yield from self._list_pretrained_entries().values()

    def find_model(self, key: str) -> CatalogEntry:
        """Return the model with a key that a request contains."""
        kind, *parts = key.split("/")
        if kind == "run" and len(parts) == 3:
            experiment_name, variant, seed = parts
            folder = self.folders.find_experiment(experiment_name)
            if (variant, seed) in ((name, str(number)) for name, number in self._list_saved_runs(folder)):
                return self._build_run_entry(experiment_name, folder, variant, int(seed))
        elif (entry := self._list_pretrained_entries().get(key)) is not None:
            return entry
        raise NameNotFoundError("no such model")

    def _list_saved_runs(self, folder: Path) -> list[tuple[str, int]]:
        """Return the variant and seed of every run with a saved model, baseline first."""
        runs = []
        for variant in _list_subfolder_names(folder):
            for run_folder_name in _list_subfolder_names(folder / variant):
                seed = run_folder_name.removeprefix("seed-")
                if (
                    run_folder_name.startswith("seed-")
                    and re.fullmatch("0|[1-9][0-9]{0,5}", seed)
                    and self._has_saved_model(folder / variant / run_folder_name)
                ):
                    runs.append((variant, int(seed)))
        return sorted(runs, key=lambda run: (run[0] != "baseline", run))

    def _has_saved_model(self, run_folder: Path) -> bool:
        """Return whether a run folder contains a saved model and no symbolic link out of the runs folder."""
        root = self.folders.root
        return all(
            (run_folder / name).is_file() and resolves_inside_folder(run_folder / name, root)
            for name in ("config.json", "model.safetensors")
        )

    def _build_run_entry(self, experiment_name: str, folder: Path, variant: str, seed: int) -> CatalogEntry:
        """Return a trained model's catalog entry."""
        run_folder = folder / variant / f"seed-{seed}"
        experiment = ExperimentReader(self.folders.root, experiment_name).read_experiment()
        can_generate = experiment is not None and experiment.spec.target.is_causal
        key, label = f"run/{experiment_name}/{variant}/{seed}", f"{variant}, seed {seed}"
        checkpoints = self._list_checkpoints(run_folder)
        return CatalogEntry(key, experiment_name, label, str(run_folder), True, can_generate, checkpoints)

    def _list_checkpoints(self, run_folder: Path) -> tuple[tuple[str, str], ...]:
        """Return a run's checkpoints with descriptions, from before to after training."""
        checkpoints = []
        for name in _list_subfolder_names(run_folder):
            step = re.fullmatch("checkpoint-([0-9]{1,12})", name)
            if step and resolves_inside_folder(run_folder / name / "model.safetensors", self.folders.root):
                checkpoints.append((int(step[1]), name))
        steps = ((name, f"at step {step:,}") for step, name in sorted(checkpoints))
        return ((INITIAL_CHECKPOINT, "before training"), *steps, (FINAL_CHECKPOINT, "after training"))

    def _list_pretrained_entries(self) -> dict[str, CatalogEntry]:
        """Return the pretrained models by key: those named on the command line and those in installed packages."""
        named_locations = {
            key: CatalogEntry(
                key, "Pretrained", _derive_model_title(location), location, False, _is_language_model(Path(location))
            )
            for key, location in self._pretrained_locations.items()
        }
        return named_locations | {
            f"pretrained/{name}": _build_package_entry(name, can_generate)
            for name, can_generate in list_packages_with_weights().items()
        }


def _build_package_entry(name: str, can_generate: bool) -> CatalogEntry:
    return CatalogEntry(f"pretrained/{name}", "Pretrained", name, name, False, can_generate)


def _derive_model_title(location: str) -> str:
    """Return the last part of a location as the title."""
    return location.rstrip("/").rpartition("/")[2] or location


def _list_subfolder_names(folder: Path) -> list[str]:
    """Return the subfolders in which the catalog looks for models, without hidden ones and symbolic links."""
    try:
        with os.scandir(folder) as entries:
            folders = [entry for entry in entries if entry.is_dir(follow_symlinks=False)]
            return [folder.name for folder in folders if not folder.name.startswith(".")]
    except OSError:
        return []


@lru_cache(maxsize=1)
def list_packages_with_weights() -> dict[str, bool]:
    """Return the installed packages with weights that the catalog offers, and whether each has a language model.

    Nothing is imported.
    """
    packages = {}
    for package in importlib.metadata.distributions():
        record = package.read_text("RECORD") or ""
        if not any(f"{suffix}," in record for suffix in WEIGHT_FILE_SUFFIXES):
            continue
        files = [line.partition(",")[0] for line in record.splitlines()]
        weight_files = [Path(str(package.locate_file(file))) for file in files if file.endswith(WEIGHT_FILE_SUFFIXES)]
        if weight_files and package.metadata["Name"]:
            packages[package.metadata["Name"]] = any(map(_is_language_model, weight_files))
    return dict(sorted(packages.items()))


def _is_language_model(location: Path) -> bool:
    """Return whether a cataloged package's weights are a language model's, without opening the weight file."""
    config_file = (location if location.is_dir() else location.parent) / "config.json"
    if location.suffix == ".gguf" or not config_file.is_file():
        return location.suffix != ".safetensors"
    try:
        architectures = json.loads(config_file.read_text(encoding="utf-8")).get("architectures") or []
    except (OSError, ValueError, AttributeError):
        return True
    return any(str(name).endswith(("CausalLM", "LMHeadModel")) for name in architectures)


def describe_model(entry: CatalogEntry) -> dict[str, Any]:
    """Return what pages and the API show of a model in the catalog."""
    return {
        "key": entry.key,
        "name": entry.name,
        "can_generate": entry.can_generate,
        "checkpoints": [name for name, _ in entry.checkpoints],
    }
