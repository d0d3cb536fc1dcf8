"""Names and folders of experiments: look them up in the runs folder, and validate the names of new ones.

Names from requests are looked up in the directory listing and never joined to a path, so a request cannot escape the
folder. Symbolic links that point outside the folder are ignored.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from headtohead.errors import RequestError
from headtohead.versus.file_schemas import COMPARISON_FILE

MAX_EXPERIMENTS = 2000
MAX_FILE_BYTES = 16 << 20
"""larger files are not read"""
EXPERIMENT_NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}")
"""allowed names of experiments that the server starts"""


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

    def list_experiments(self) -> dict[str, Path]:
        """Return the folder of each experiment by name, sorted by name."""
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

    def find_experiment(self, name: str) -> Path:
        """Return the folder of the experiment with a name that a request contains."""
        folder = self.list_experiments().get(name)
        if folder is None:
            raise NameNotFoundError("no such experiment")
        return folder

    def _is_experiment_folder(self, folder: Path) -> bool:
        """Return whether a folder holds an experiment or a comparison.

        Neither the folder nor its file may be a symbolic link that points outside the runs folder.
        """
        return resolves_inside_folder(folder, self.root) and any(
            find_readable_file(folder.resolve(), name) is not None for name in ("experiment.json", COMPARISON_FILE)
        )


def resolves_inside_folder(path: Path, folder: Path) -> bool:
    """Return whether a path is still inside the runs folder or an experiment's folder once links are resolved.

    Otherwise a symbolic link in somebody else's experiment would give requests access to files elsewhere.
    """
    try:
        resolved_path = path.resolve()
        return resolved_path.is_relative_to(folder) and resolved_path != folder
    except (OSError, RuntimeError):  # a circular symbolic link
        return False


def find_readable_file(folder: Path, relative_path: str) -> Path | None:
    """Return the path of a file in an experiment's folder that a request may read, and None otherwise.

    It must exist, not link outside the folder, and not be too large.
    """
    path = folder / relative_path
    try:
        if path.is_file() and resolves_inside_folder(path, folder) and path.stat().st_size <= MAX_FILE_BYTES:
            return path
    except OSError:
        pass
    return None


def validate_new_experiment_name(name: str) -> str:
    """Return the name of an experiment to start, or raise RequestError if it is not a valid folder name."""
    if not EXPERIMENT_NAME_PATTERN.fullmatch(name):
        raise RequestError(
            "name: use letters, digits and . _ + -, at most 64 characters, starting with a letter or digit"
        )
    return name


def _is_valid_unicode(name: str) -> bool:
    """Return whether the name of an experiment's folder can be part of a URL."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
