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

from headtohead.web.experiment_folders import Folders, UnknownNameError, inside
from headtohead.web.live.experiment_state import Reader

BEFORE, AFTER = "before", "after"
WRITING = ("language-model", "distil")
"""tasks whose models write text"""
MOST_RUNS = 1000
"""in one list"""
WEIGHTS = (".gguf", ".safetensors")


@dataclass(frozen=True)
class Named:
    """A model that can be asked for."""

    key: str
    group: str
    label: str
    place: str
    """for the model process alone: a folder, a file, a package or a name of the hub"""
    is_run: bool
    writes: bool
    moments: tuple[tuple[str, str], ...] = ()
    """of a run: when it can be looked at, from before its training to after it, and what that is called"""

    @property
    def name(self) -> str:
        """What it is called where others stand beside it."""
        return f"{self.group}: {self.label}" if self.is_run else self.label

    def at(self, moment: str) -> dict[str, Any]:
        """As the model process is told of it."""
        if self.is_run and moment not in dict(self.moments):
            raise UnknownNameError("this run has no such checkpoint")
        called = f"{self.name}, {dict(self.moments)[moment]}" if self.is_run and moment != AFTER else self.name
        return {"place": self.place, "run": self.is_run, "at": moment if self.is_run else AFTER, "label": called}


class Catalog:
    """All models, as they are on the disk right now."""

    def __init__(self, folders: Folders, named: Sequence[str] = ()) -> None:
        self.folders = folders
        self._named = {f"pretrained/{_title(one)}": one for one in named}

    def every(self, *, writing: bool = False) -> dict[str, list[Named]]:
        """group: models, for a list to choose from; only those that write, if so asked."""
        found: dict[str, list[Named]] = {}
        for one in self._all():
            if one.writes or not writing:
                found.setdefault(one.group, []).append(one)
        return found

    def _all(self) -> Iterator[Named]:
        count = 0
        for name, folder in self.folders.experiments().items():
            for variant, seed in self._runs(folder):
                if count >= MOST_RUNS:
                    break
                count += 1
                yield self._run(name, folder, variant, seed)
        yield from self._pretrained().values()

    def find(self, key: str) -> Named:
        """The model that goes by this key."""
        kind, _, rest = key.partition("/")
        pieces = rest.split("/")
        if kind == "run" and len(pieces) == 3:
            folder = self.folders.find(pieces[0])
            if (pieces[1], pieces[2]) in ((variant, str(seed)) for variant, seed in self._runs(folder)):
                return self._run(pieces[0], folder, pieces[1], int(pieces[2]))
        elif (found := self._pretrained().get(key)) is not None:
            return found
        raise UnknownNameError("there is no model of that name")

    def _runs(self, folder: Path) -> list[tuple[str, int]]:
        """(variant, seed) of every run that has a saved model."""
        found = []
        for variant in _folders_in(folder):
            for seed in _folders_in(folder / variant):
                number = seed.removeprefix("seed-")
                if (
                    seed.startswith("seed-")
                    and re.fullmatch("0|[1-9][0-9]{0,5}", number)
                    and self._is_model(folder / variant / seed)
                ):
                    found.append((variant, int(number)))
        return sorted(found, key=lambda one: (one[0] != "baseline", one))

    def _is_model(self, run: Path) -> bool:
        root = self.folders.root
        return all((run / name).is_file() and inside(run / name, root) for name in ("config.json", "model.safetensors"))

    def _run(self, name: str, folder: Path, variant: str, seed: int) -> Named:
        run = folder / variant / f"seed-{seed}"
        task = Reader(self.folders.root, name).about().get("task")
        key, label = f"run/{name}/{variant}/{seed}", f"{variant}, seed {seed}"
        return Named(key, name, label, str(run), True, task in WRITING, self._moments(run))

    def _moments(self, run: Path) -> tuple[tuple[str, str], ...]:
        between = []
        for name in sorted(_folders_in(run)):
            step = re.fullmatch("checkpoint-([0-9]{1,12})", name)
            if step and inside(run / name / "model.safetensors", self.folders.root):
                between.append((name, f"at step {int(step[1]):,}"))
        return ((BEFORE, "before training"), *between, (AFTER, "after training"))

    def _pretrained(self) -> dict[str, Named]:
        given = {
            key: Named(key, "Pretrained", _title(place), place, False, _writes(Path(place)))
            for key, place in self._named.items()
        }
        return given | {f"pretrained/{one}": _package(one, writes) for one, writes in packages().items()}


def _package(name: str, writes: bool) -> Named:
    return Named(f"pretrained/{name}", "Pretrained", name, name, False, writes)


def _title(place: str) -> str:
    """What a pretrained model is called: the last part of where it lies."""
    return place.rstrip("/").rpartition("/")[2] or place


def _folders_in(folder: Path) -> list[str]:
    """Names of the folders inside, links left out."""
    try:
        with os.scandir(folder) as entries:
            return [e.name for e in entries if not e.name.startswith(".") and e.is_dir(follow_symlinks=False)]
    except OSError:
        return []


@lru_cache(maxsize=1)
def packages() -> dict[str, bool]:
    """Installed packages that carry weights, and whether they write text. Their lists of files are looked at; nothing
    of theirs is imported."""
    found = {}
    for package in importlib.metadata.distributions():
        record = package.read_text("RECORD") or ""
        if not any(f"{ending}," in record for ending in WEIGHTS):
            continue
        files = [line.partition(",")[0] for line in record.splitlines()]
        places = [Path(str(package.locate_file(file))) for file in files if file.endswith(WEIGHTS)]
        if places and package.metadata["Name"]:
            found[package.metadata["Name"]] = any(map(_writes, places))
    return dict(sorted(found.items()))


def _writes(place: Path) -> bool:
    """Whether a folder or file of weights is a language model's, as far as can be told without opening it."""
    config = (place if place.is_dir() else place.parent) / "config.json"
    if place.suffix == ".gguf" or not config.is_file():
        return place.suffix != ".safetensors"
    try:
        kinds = json.loads(config.read_text(encoding="utf-8")).get("architectures") or []
    except (OSError, ValueError, AttributeError):
        return True
    return any(str(kind).endswith(("CausalLM", "LMHeadModel")) for kind in kinds)
