"""Find experiments in the runs folder.

Names from requests are looked up in the directory listing and never joined to a path, so a request cannot escape the
folder. Symbolic links that point outside the folder are ignored.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from headtohead.errors import RequestError
from headtohead.versus.records import COMPARISON_FILE

MAX_EXPERIMENTS = 2000
MAX_FILE_BYTES = 16 << 20
"""size in bytes above which files are not read"""


class NameNotFoundError(RequestError):
    """No experiment or model has this name."""


@dataclass(frozen=True)
class ExperimentFolders:
    """The runs folder, read from disk on every access."""

    root: Path

    @classmethod
    def open_root(cls, runs_folder: Path) -> ExperimentFolders:
        """Open the runs folder, creating it if needed. A single experiment's folder is rejected."""
        if (runs_folder / "experiment.json").is_file() or (runs_folder / COMPARISON_FILE).is_file():
            raise RequestError(
                f"{runs_folder} is a single experiment; give its parent folder, {runs_folder.resolve().parent}"
            )
        if runs_folder.exists() and not runs_folder.is_dir():
            raise RequestError(f"{runs_folder} is not a folder")
        runs_folder.mkdir(parents=True, exist_ok=True)
        return cls(runs_folder.resolve())

    def experiments(self) -> dict[str, Path]:
        """Return a mapping from experiment names to folders, sorted by name."""
        folders: dict[str, Path] = {}
        with os.scandir(self.root) as entries:
            for entry in entries:
                if len(folders) >= MAX_EXPERIMENTS:
                    break
                if (
                    not entry.name.startswith(".")
                    and _is_valid_unicode(entry.name)
                    and self._is_experiment_folder(Path(entry.path))
                ):
                    folders[entry.name] = Path(entry.path).resolve()
        return dict(sorted(folders.items()))

    def find(self, name: str) -> Path:
        """Return an experiment's folder."""
        folder = self.experiments().get(name)
        if folder is None:
            raise NameNotFoundError("no such experiment")
        return folder

    def _is_experiment_folder(self, folder: Path) -> bool:
        # Neither the folder nor its file may be a symbolic link that points outside the runs folder.
        return is_inside(folder, self.root) and any(
            find_readable_file(folder.resolve(), name) is not None for name in ("experiment.json", COMPARISON_FILE)
        )


def is_inside(path: Path, root: Path) -> bool:
    """Return whether a path lies inside a folder once all symbolic links are resolved."""
    try:
        resolved = path.resolve()
        return resolved.is_relative_to(root) and resolved != root
    except (OSError, RuntimeError):  # a circular symbolic link
        return False


def find_readable_file(folder: Path, relative_path: str) -> Path | None:
    """Return the file's path if it exists, does not link outside the folder, and is not too large."""
    path = folder / relative_path
    try:
        if path.is_file() and is_inside(path, folder) and path.stat().st_size <= MAX_FILE_BYTES:
            return path
    except OSError:
        pass
    return None


def _is_valid_unicode(name: str) -> bool:
    """Return whether a name can be part of a URL."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
