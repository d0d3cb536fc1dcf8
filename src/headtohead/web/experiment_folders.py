"""Which experiments lie below RUNS. A name from outside is looked up in the listing and never joined to a path, and a
link that leads out of RUNS leads nowhere."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from headtohead.errors import RequestError

MAX_EXPERIMENTS = 2000
"""experiments in one listing"""
MAX_FILE_BYTES = 64 << 20
"""bytes of a file that is read for a page"""


class NameNotFoundError(RequestError):
    """A name that is not in the listing."""


@dataclass(frozen=True)
class ExperimentFolders:
    """The folder RUNS, as it lies on the disk right now."""

    root: Path

    @classmethod
    def at(cls, runs_folder: Path) -> ExperimentFolders:
        """RUNS, whole; one experiment's folder is not what is meant."""
        if (runs_folder / "experiment.json").is_file():
            raise RequestError(
                f"{runs_folder}: is one experiment; give the folder that it lies in, {runs_folder.resolve().parent}"
            )
        if runs_folder.exists() and not runs_folder.is_dir():
            raise RequestError(f"{runs_folder}: is not a folder")
        runs_folder.mkdir(parents=True, exist_ok=True)
        return cls(runs_folder.resolve())

    def experiments(self) -> dict[str, Path]:
        """name: folder, by name."""
        found: dict[str, Path] = {}
        with os.scandir(self.root) as entries:
            for entry in entries:
                if len(found) >= MAX_EXPERIMENTS:
                    break
                if (
                    not entry.name.startswith(".")
                    and _is_valid_unicode(entry.name)
                    and self._is_experiment_folder(Path(entry.path))
                ):
                    found[entry.name] = Path(entry.path).resolve()
        return dict(sorted(found.items()))

    def find(self, name: str) -> Path:
        """The folder of the experiment of that name."""
        folder = self.experiments().get(name)
        if folder is None:
            raise NameNotFoundError("there is no experiment of that name")
        return folder

    def _is_experiment_folder(self, folder: Path) -> bool:
        # What leads out of RUNS is not followed, be it the folder or its file.
        return is_inside(folder, self.root) and find_readable_file(folder.resolve(), "experiment.json") is not None


def is_inside(path: Path, root: Path) -> bool:
    """Whether a path, with all its links followed, lies below a folder."""
    try:
        there = path.resolve()
        return there.is_relative_to(root) and there != root
    except (OSError, RuntimeError):  # a link that leads to itself
        return False


def find_readable_file(folder: Path, relative_path: str) -> Path | None:
    """A file of an experiment that may be read: there, not outside by way of a link, and of a size to be shown."""
    path = folder / relative_path
    try:
        if path.is_file() and is_inside(path, folder) and path.stat().st_size <= MAX_FILE_BYTES:
            return path
    except OSError:
        pass
    return None


def _is_valid_unicode(name: str) -> bool:
    """Names that are no Unicode cannot stand in an address."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
