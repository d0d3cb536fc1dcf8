"""Trust in Python code stored in run folders.

User-defined parts and networks are stored in a run folder's own/, and opening the model executes them. Only code that
the user asked for is executed: files named by an experiment on this machine (`plugins`, `model.module`), and files
allowed with `h2h trust RUN`. Trusted files are recorded by SHA-256 in $XDG_CACHE_HOME/headtohead/allowed, so a changed
file is no longer trusted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from headtohead.atomic_io import compute_sha256, write_text
from headtohead.cache_folders import get_cache_folder
from headtohead.errors import ModelError, RequestError
from headtohead.experiment.provenance.user_files import find_code_files, list_entry_files
from headtohead.experiment.run_folder import open_experiment_runs

CUSTOM_CODE_FOLDER = "own"


def trust_files(files: Iterable[Path]) -> None:
    """Record files as trusted by their SHA-256. Does nothing if the cache folder is not writable."""
    cache_folder = get_cache_folder("allowed")
    for file in files:
        if file.is_file():
            with contextlib.suppress(OSError):
                cache_folder.mkdir(parents=True, exist_ok=True)
                write_text(cache_folder / compute_sha256(file), f"{file.resolve()}\n")


def is_trusted(file: Path) -> bool:
    """Return whether the user has trusted a file with this content."""
    return (get_cache_folder("allowed") / compute_sha256(file)).is_file()


def check_trusted(run_folder: Path, code_files: Sequence[Path]) -> None:
    """Raise ModelError if one of a run's code files is missing or not trusted."""
    for file in code_files:
        if not file.is_file():
            raise ModelError(f"{run_folder}: code file {file} is missing")
    untrusted_files = [file for file in code_files if not is_trusted(file)]
    if untrusted_files:
        raise ModelError(
            f"{run_folder} contains code that opening it would execute: {', '.join(map(str, dict.fromkeys(untrusted_files)))}. If you have "  # noqa: E501
            f"read it and trust it: h2h trust {run_folder}"
        )


def locate_custom_code(run_folder: Path, names: Iterable[str]) -> list[Path]:
    """Return the paths of the code files that a run's config.json names, whose trust is to be checked.

    Raise ModelError for files outside the run's folder for user code.
    """
    code_files = []
    for name in names:
        path = Path(name)
        if path.parts[:-1] != (CUSTOM_CODE_FOLDER,) or path.suffix != ".py":
            raise ModelError(f"{run_folder}: refers to code outside its folder {CUSTOM_CODE_FOLDER}/: {name!r}")
        code_files.append(run_folder / path)
    return code_files


def check_experiment_is_trusted(experiment_folder: Path) -> None:
    """Raise ModelError if resuming the experiment in a folder would execute untrusted code."""
    experiment = open_experiment_runs(experiment_folder).experiment
    check_trusted(experiment_folder, [*list_entry_files(experiment), *find_code_files(experiment).values()])


def trust_run(folder: Path) -> list[Path]:
    """Trust all code files in a run, or in an experiment and all its runs. Return the files."""
    code_files = sorted(path for path in folder.rglob(f"{CUSTOM_CODE_FOLDER}/**/*.py") if path.is_file())
    if (folder / "experiment.json").is_file():
        code_files += find_code_files(open_experiment_runs(folder).experiment).values()
    if not code_files:
        raise RequestError(f"{folder} contains no code to trust")
    trust_files(code_files)
    return code_files
