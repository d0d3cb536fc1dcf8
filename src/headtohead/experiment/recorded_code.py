"""Read the user code that the trials of an experiment executed, from the copies in its run folders."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headtohead import safe_open
from headtohead.errors import RunFolderError
from headtohead.experiment.run_folder import ExperimentRuns
from headtohead.experiment.trust import CUSTOM_CODE_FOLDER


@dataclass(frozen=True)
class RecordedCodeFile:
    """A user code file that trials executed, as recorded in experiment.json."""

    name: str
    digest: str
    text: str
    """empty if no run folder has a copy with this digest"""


def read_recorded_code_files(experiment_folder: Path | None) -> list[RecordedCodeFile]:
    """Return the plugins, networks and imported modules recorded in experiment.json, with their source code."""
    if experiment_folder is None or not (experiment_folder / "experiment.json").is_file():
        return []
    runs = ExperimentRuns(experiment_folder)
    try:
        dependencies = runs.metadata.dependencies
    except RunFolderError:  # the report shows what findings.json contains
        return []
    digests = {
        (name, digest): None for variant_digests in dependencies.values() for name, digest in variant_digests.items()
    }
    code_folders = [
        runs.run(variant, seed).folder / CUSTOM_CODE_FOLDER for variant in dependencies for seed in runs.seeds(variant)
    ]
    return [
        RecordedCodeFile(name, digest, _read_code_copy(code_folders, name, digest))
        for name, digest in digests
        if name.endswith(".py") and ".." not in name
    ]


def _read_code_copy(code_folders: Sequence[Path], name: str, digest: str) -> str:
    """Return the source of the first recorded copy of a code file with this SHA-256, or "" if there is none."""
    for folder in code_folders:
        with contextlib.suppress(RunFolderError):
            content = safe_open.read_file(folder / name)
            if hashlib.sha256(content).hexdigest() == digest:
                return content.decode(errors="replace")
    return ""
