"""Code that a run folder brings along: the user's own parts and networks lie in its own/, and opening its model runs
them. That is as it should be for one's own runs, and not for a folder that came from somebody else.

So what is run has been asked for: files that an experiment on this machine named (`use`, `model.module`), and files
that the user has allowed (`h2h allow RUN`). They are known by content, in $XDG_CACHE_HOME/headtohead/allowed: a file
that was changed since is another one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from headtohead.atomic_io import cache_folder, sha256, write_text
from headtohead.config import experiment, model
from headtohead.errors import ModelError, RequestError

FOLDER = "own"


def allow(files: Iterable[Path]) -> None:
    """Remember that this user has asked for these files to be run. Where nothing can be written, nothing is kept."""
    place = cache_folder("allowed")
    for file in files:
        if file.is_file():
            with contextlib.suppress(OSError):
                place.mkdir(parents=True, exist_ok=True)
                write_text(place / sha256(file), f"{file.resolve()}\n")


def is_allowed(file: Path) -> bool:
    return (cache_folder("allowed") / sha256(file)).is_file()


def check(run: Path, files: Sequence[Path]) -> None:
    """An error for a run whose code nobody has asked to be run."""
    for file in files:
        if not file.is_file():
            raise ModelError(f"{run}: names a file of its own that is not there: {file}")
    strange = [file for file in files if not is_allowed(file)]
    if strange:
        raise ModelError(
            f"{run}: brings code of its own, which using it would run: {', '.join(map(str, strange))}. If you have "
            f"read it and trust it: h2h allow {run}"
        )


def own_files(run: Path, names: Iterable[str]) -> list[Path]:
    """The files of a saved model that are code: they lie in its own/ and nowhere else."""
    found = []
    for name in names:
        path = Path(name)
        if path.parts[:-1] != (FOLDER,) or path.suffix != ".py":
            raise ModelError(f"{run}: names code outside its folder {FOLDER}/ ({name!r}), which is not run")
        found.append(run / path)
    return found


def named(trial: experiment.Trial | experiment.Experiment) -> list[Path]:
    """The files of code that settings name."""
    files = [Path(file) for file in trial.use]
    if isinstance(trial.model, model.OwnModel):
        files.append(Path(trial.model.module.rpartition(":")[0]))
    if isinstance(trial, experiment.Experiment):
        for changes in trial.variants.values():
            module = changes.get("model", {}).get("module")
            files += [Path(module.rpartition(":")[0])] if isinstance(module, str) else []
    return files


def allow_run(folder: Path) -> list[Path]:
    """Allow all code of a run, or of all runs of an experiment; gives the files."""
    files = sorted(path for path in folder.rglob(f"{FOLDER}/*.py") if path.is_file())
    if not files:
        raise RequestError(f"{folder}: brings no code of its own, so there is nothing to allow")
    allow(files)
    return files
