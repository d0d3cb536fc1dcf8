"""Code that a run folder brings along: the user's own parts and networks lie in its own/, and opening its model runs
them. That is as it should be for one's own runs, and not for a folder that came from somebody else.

So what is run has been asked for: files that an experiment on this machine named (`use`, `model.module`), and files
that the user has allowed (`h2h trust RUN`). They are known by content, in $XDG_CACHE_HOME/headtohead/allowed: a file
that was changed since is another one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from headtohead.atomic_io import compute_sha256, get_cache_folder, write_text
from headtohead.config import experiment, model
from headtohead.errors import ModelError, RequestError

CUSTOM_CODE_FOLDER = "own"


def trust_files(files: Iterable[Path]) -> None:
    """Remember that this user has asked for these files to be run. Where nothing can be written, nothing is kept."""
    place = get_cache_folder("allowed")
    for file in files:
        if file.is_file():
            with contextlib.suppress(OSError):
                place.mkdir(parents=True, exist_ok=True)
                write_text(place / compute_sha256(file), f"{file.resolve()}\n")


def is_trusted(file: Path) -> bool:
    return (get_cache_folder("allowed") / compute_sha256(file)).is_file()


def check_trusted(run_folder: Path, files: Sequence[Path]) -> None:
    """An error for a run whose code nobody has asked to be run."""
    for file in files:
        if not file.is_file():
            raise ModelError(f"{run_folder}: names a file of its own that is not there: {file}")
    strange = [file for file in files if not is_trusted(file)]
    if strange:
        raise ModelError(
            f"{run_folder}: brings code of its own, which using it would run: {', '.join(map(str, strange))}. If you have "  # noqa: E501
            f"read it and trust it: h2h trust {run_folder}"
        )


def resolve_custom_code(run_folder: Path, names: Iterable[str]) -> list[Path]:
    """The files of a saved model that are code: they lie in its own/ and nowhere else."""
    found = []
    for name in names:
        path = Path(name)
        if path.parts[:-1] != (CUSTOM_CODE_FOLDER,) or path.suffix != ".py":
            raise ModelError(
                f"{run_folder}: names code outside its folder {CUSTOM_CODE_FOLDER}/ ({name!r}), which is not run"
            )
        found.append(run_folder / path)
    return found


def list_code_files(settings: experiment.Trial | experiment.Experiment) -> list[Path]:
    """The files of code that settings name."""
    files = [Path(file) for file in settings.use]
    if isinstance(settings.model, model.CustomModelConfig):
        files.append(Path(settings.model.module.rpartition(":")[0]))
    if isinstance(settings, experiment.Experiment):
        for changes in settings.variants.values():
            module = changes.get("model", {}).get("module")
            files += [Path(module.rpartition(":")[0])] if isinstance(module, str) else []
    return files


def trust_run(folder: Path) -> list[Path]:
    """Allow all code of a run, or of all runs of an experiment; gives the files."""
    files = sorted(path for path in folder.rglob(f"{CUSTOM_CODE_FOLDER}/*.py") if path.is_file())
    if not files:
        raise RequestError(f"{folder}: brings no code of its own, so there is nothing to allow")
    trust_files(files)
    return files
