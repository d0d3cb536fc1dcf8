"""Which models can be looked at and played with: the runs below RUNS, installed packages that carry weights, and what
`--model` named. A model goes by a key; a key from outside is looked up piece by piece and never joined to a path.

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

from headtohead.config.tasks import TASK_SPECS
from headtohead.web.experiment_folders import ExperimentFolders, NameNotFoundError, is_inside
from headtohead.web.live.experiment_state import ExperimentReader

INITIAL_CHECKPOINT, FINAL_CHECKPOINT = "before", "after"
GENERATIVE_TASKS = tuple(name for name, spec in TASK_SPECS.items() if spec.target.is_causal)
"""tasks whose models write text"""
MAX_LISTED_RUNS = 1000
"""in one list"""
WEIGHT_FILE_SUFFIXES = (".gguf", ".safetensors")


@dataclass(frozen=True)
class CatalogEntry:
    """A model that can be asked for."""

    key: str
    group: str
    label: str
    place: str
    """for the model process alone: a folder, a file, a package or a name of the hub"""
    is_run: bool
    can_generate: bool
    checkpoints: tuple[tuple[str, str], ...] = ()
    """of a run: when it can be looked at, from before its training to after it, and what that is called"""

    @property
    def name(self) -> str:
        """What it is called where others stand beside it."""
        return f"{self.group}: {self.label}" if self.is_run else self.label

    def at(self, checkpoint: str) -> dict[str, Any]:
        """As the model process is told of it."""
        if self.is_run and checkpoint not in dict(self.checkpoints):
            raise NameNotFoundError("this run has no such checkpoint")
        called = (
            f"{self.name}, {dict(self.checkpoints)[checkpoint]}"
            if self.is_run and checkpoint != FINAL_CHECKPOINT
            else self.name
        )
        return {
            "place": self.place,
            "run": self.is_run,
            "at": checkpoint if self.is_run else FINAL_CHECKPOINT,
            "label": called,
        }


class ModelCatalog:
    """All models, as they are on the disk right now."""

    def __init__(self, folders: ExperimentFolders, pretrained_models: Sequence[str] = ()) -> None:
        self.folders = folders
        self._pretrained_locations = {f"pretrained/{_derive_model_title(one)}": one for one in pretrained_models}

    def list_by_group(self, *, generative_only: bool = False) -> dict[str, list[CatalogEntry]]:
        """group: models, for a list to choose from; only those that write, if so asked."""
        found: dict[str, list[CatalogEntry]] = {}
        for one in self._iterate_entries():
            if one.can_generate or not generative_only:
                found.setdefault(one.group, []).append(one)
        return found

    def _iterate_entries(self) -> Iterator[CatalogEntry]:
        count = 0
        for name, folder in self.folders.experiments().items():
            for variant, seed in self._list_saved_runs(folder):
                if count >= MAX_LISTED_RUNS:
                    break
                count += 1
                yield self._run(name, folder, variant, seed)
        yield from self._list_pretrained_entries().values()

    def find(self, key: str) -> CatalogEntry:
        """The model that goes by this key."""
        kind, _, rest = key.partition("/")
        pieces = rest.split("/")
        if kind == "run" and len(pieces) == 3:
            folder = self.folders.find(pieces[0])
            if (pieces[1], pieces[2]) in ((variant, str(seed)) for variant, seed in self._list_saved_runs(folder)):
                return self._run(pieces[0], folder, pieces[1], int(pieces[2]))
        elif (found := self._list_pretrained_entries().get(key)) is not None:
            return found
        raise NameNotFoundError("there is no model of that name")

    def _list_saved_runs(self, folder: Path) -> list[tuple[str, int]]:
        """(variant, seed) of every run that has a saved model."""
        found = []
        for variant in _list_subfolder_names(folder):
            for seed in _list_subfolder_names(folder / variant):
                number = seed.removeprefix("seed-")
                if (
                    seed.startswith("seed-")
                    and re.fullmatch("0|[1-9][0-9]{0,5}", number)
                    and self._has_saved_model(folder / variant / seed)
                ):
                    found.append((variant, int(number)))
        return sorted(found, key=lambda one: (one[0] != "baseline", one))

    def _has_saved_model(self, run_folder: Path) -> bool:
        root = self.folders.root
        return all(
            (run_folder / name).is_file() and is_inside(run_folder / name, root)
            for name in ("config.json", "model.safetensors")
        )

    def _run(self, experiment_name: str, folder: Path, variant: str, seed: int) -> CatalogEntry:
        run = folder / variant / f"seed-{seed}"
        task = ExperimentReader(self.folders.root, experiment_name).about().get("task")
        key, label = f"run/{experiment_name}/{variant}/{seed}", f"{variant}, seed {seed}"
        return CatalogEntry(
            key, experiment_name, label, str(run), True, task in GENERATIVE_TASKS, self._list_checkpoints(run)
        )

    def _list_checkpoints(self, run_folder: Path) -> tuple[tuple[str, str], ...]:
        between = []
        for name in sorted(_list_subfolder_names(run_folder)):
            step = re.fullmatch("checkpoint-([0-9]{1,12})", name)
            if step and is_inside(run_folder / name / "model.safetensors", self.folders.root):
                between.append((name, f"at step {int(step[1]):,}"))
        return ((INITIAL_CHECKPOINT, "before training"), *between, (FINAL_CHECKPOINT, "after training"))

    def _list_pretrained_entries(self) -> dict[str, CatalogEntry]:
        given = {
            key: CatalogEntry(
                key, "Pretrained", _derive_model_title(place), place, False, _is_language_model(Path(place))
            )
            for key, place in self._pretrained_locations.items()
        }
        return given | {
            f"pretrained/{one}": _build_package_entry(one, writes) for one, writes in find_weight_packages().items()
        }


def _build_package_entry(name: str, can_generate: bool) -> CatalogEntry:
    return CatalogEntry(f"pretrained/{name}", "Pretrained", name, name, False, can_generate)


def _derive_model_title(location: str) -> str:
    """What a pretrained model is called: the last part of where it lies."""
    return location.rstrip("/").rpartition("/")[2] or location


def _list_subfolder_names(folder: Path) -> list[str]:
    """Names of the folders inside, links left out."""
    try:
        with os.scandir(folder) as entries:
            return [e.name for e in entries if not e.name.startswith(".") and e.is_dir(follow_symlinks=False)]
    except OSError:
        return []


@lru_cache(maxsize=1)
def find_weight_packages() -> dict[str, bool]:
    """Installed packages that carry weights, and whether they write text. Their lists of files are looked at; nothing
    of theirs is imported."""
    found = {}
    for package in importlib.metadata.distributions():
        record = package.read_text("RECORD") or ""
        if not any(f"{ending}," in record for ending in WEIGHT_FILE_SUFFIXES):
            continue
        files = [line.partition(",")[0] for line in record.splitlines()]
        places = [Path(str(package.locate_file(file))) for file in files if file.endswith(WEIGHT_FILE_SUFFIXES)]
        if places and package.metadata["Name"]:
            found[package.metadata["Name"]] = any(map(_is_language_model, places))
    return dict(sorted(found.items()))


def _is_language_model(location: Path) -> bool:
    """Whether a folder or file of weights is a language model's, as far as can be told without opening it."""
    config = (location if location.is_dir() else location.parent) / "config.json"
    if location.suffix == ".gguf" or not config.is_file():
        return location.suffix != ".safetensors"
    try:
        kinds = json.loads(config.read_text(encoding="utf-8")).get("architectures") or []
    except (OSError, ValueError, AttributeError):
        return True
    return any(str(kind).endswith(("CausalLM", "LMHeadModel")) for kind in kinds)
