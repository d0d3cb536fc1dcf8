"""Open and lock the folders of an experiment and its runs, and read their files. See docs/reference/run-folder.md.

RUNS/EXPERIMENT/
  experiment.json               the resolved experiment, its identity, versions, the command
  journal.jsonl                 settings, runs, analyses and search decisions, in order
  VARIANT/seed-N/               one run: one trial
    trial.json  start.json  metrics.jsonl  scores.safetensors  probes.json  maps.safetensors
    config.json  model.safetensors  tokenizer.json  generation_config.json  README.md  own/
    checkpoint-000100/          during training
    result.json                 written last; marks the run as finished
    failure.json                instead of result.json, if the trial failed
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from headtohead import safe_open
from headtohead.atomic_io import compute_sha256, translate_disk_full_error
from headtohead.audit.result import CheckResult
from headtohead.config import experiment as config_experiment
from headtohead.config.base import FOLDER_NAME_PATTERN, FOLDER_NAME_RULE
from headtohead.config.trial_settings import build_trial
from headtohead.errors import FolderLockedError, RunFolderError
from headtohead.experiment import schemas
from headtohead.json_files import has_valid_json_checksum, read_json_object

WEIGHT_FILES = ("model.safetensors", "adapter_model.safetensors")


@dataclass(frozen=True)
class Run:
    """The folder of one run. Files are read on first access, without torch."""

    folder: Path

    @property
    def is_finished(self) -> bool:
        return (self.folder / "result.json").is_file()

    @property
    def failure(self) -> schemas.FailureFile | None:
        path = self.folder / "failure.json"
        return schemas.read_record(path, schemas.FailureFile) if path.is_file() else None

    @cached_property
    def trial_file(self) -> schemas.TrialFile:
        return schemas.read_record(self.folder / "trial.json", schemas.TrialFile)

    @property
    def trial(self) -> config_experiment.Trial:
        return self.trial_file.trial

    @cached_property
    def start(self) -> schemas.StartFile:
        return schemas.read_record(self.folder / "start.json", schemas.StartFile)

    @cached_property
    def result(self) -> schemas.ResultFile:
        return schemas.read_record(self.folder / "result.json", schemas.ResultFile)

    @cached_property
    def metrics(self) -> list[schemas.MetricsLine]:
        return schemas.read_record_lines(self.folder / "metrics.jsonl", schemas.MetricsLine)

    @cached_property
    def scores(self) -> dict[str, np.ndarray[Any, np.dtype[Any]]]:
        """Return per-example arrays with the keys "SPLIT.losses", "SPLIT.counts" and "SPLIT.correct"."""
        return safe_open.read_safetensors(self.folder / "scores.safetensors")

    @cached_property
    def lengths(self) -> schemas.LengthGeneralizationFile:
        """Return lengths.json, the run's scores and costs at different input lengths; empty if there are none."""
        path = self.folder / "lengths.json"
        if not path.is_file():
            return schemas.LengthGeneralizationFile()
        return schemas.read_record(path, schemas.LengthGeneralizationFile)

    @cached_property
    def probes(self) -> schemas.ProbesFile:
        path = self.folder / "probes.json"
        return schemas.read_record(path, schemas.ProbesFile) if path.is_file() else schemas.ProbesFile()

    @cached_property
    def audits(self) -> list[CheckResult] | None:
        """Return the trained model's audits, or None if it was not audited."""
        path = self.folder / "audits.json"
        return schemas.read_record(path, schemas.AuditsFile).audits if path.is_file() else None

    @cached_property
    def attention(self) -> schemas.AttentionFile | None:
        """Return the attention head statistics, or None if they were not measured."""
        path = self.folder / "attention.json"
        return schemas.read_record(path, schemas.AttentionFile) if path.is_file() else None

    @property
    def has_valid_checksum(self) -> bool:
        """Return whether result.json, which contains the checksums of all other files, matches its own checksum."""
        return has_valid_json_checksum(read_json_object(self.folder / "result.json"))

    def check(self) -> None:
        """Raise RunFolderError if a file of this run that verdicts depend on was modified. Weights are not read."""
        damaged_files = self.find_damaged_files(exclude=WEIGHT_FILES)
        damaged_files += [] if self.has_valid_checksum else ["result.json"]
        if damaged_files:
            raise RunFolderError(
                f"{self.folder / damaged_files[0]} is corrupted: checksum mismatch; restore it, or remove "
                f"{self.folder} and train it again with --resume"
            )

    def find_damaged_files(self, *, exclude: Sequence[str] = ()) -> list[str]:
        """Return the files whose checksum differs from the one in result.json, except those in `exclude`."""
        checksums = self.result.sha256
        if not checksums:
            raise RunFolderError(f"{self.folder / 'result.json'} is corrupted or not ours: it has no checksums")
        if unsafe_paths := [name for name in checksums if not schemas.is_safe_relative_path(name)]:
            raise RunFolderError(f"{self.folder / 'result.json'} names a file outside the run: {unsafe_paths[0]!r}")
        files = {name: self.folder / name for name in checksums if name not in exclude}
        return [name for name, path in files.items() if not path.is_file() or compute_sha256(path) != checksums[name]]


FinishedRuns = Mapping[str, Mapping[int, Run]]
"""variant: seed: finished run"""


@dataclass(frozen=True)
class ExperimentRuns:
    """The folder of one experiment, with the runs of all variants and seeds."""

    folder: Path

    @property
    def experiment(self) -> config_experiment.Experiment:
        return self.metadata.experiment

    @cached_property
    def metadata(self) -> schemas.ExperimentFile:
        """Read experiment.json; raise RunFolderError for variant names that are not valid folder names."""
        path = self.folder / "experiment.json"
        metadata = schemas.read_record(path, schemas.ExperimentFile)
        if invalid_names := [name for name in metadata.experiment.variants if not FOLDER_NAME_PATTERN.fullmatch(name)]:
            raise RunFolderError(f"{path}: invalid variant name {invalid_names[0]!r}; it {FOLDER_NAME_RULE}")
        if reserved_names := [name for name in metadata.experiment.variants if name in safe_open.UNREAD_FOLDERS]:
            raise RunFolderError(
                f"{path}: a variant cannot be named {reserved_names[0]!r}; trackers write to this folder"
            )
        return metadata

    @cached_property
    def corpus(self) -> schemas.CorpusFile:
        return schemas.read_record(self.folder / "corpus.json", schemas.CorpusFile)

    def run(self, variant: str, seed: int) -> Run:
        return Run(self.folder / variant / f"seed-{seed}")

    def seeds(self, variant: str) -> list[int]:
        """Return the seeds of a variant that have a run folder, in order."""
        folders = [folder for folder in (self.folder / variant).glob("seed-*") if folder.is_dir()]
        matches = (schemas.SEED_FOLDER_PATTERN.fullmatch(folder.name) for folder in folders)
        return sorted(int(match.group(1)) for match in matches if match)

    def finished(self, variant: str) -> dict[int, Run]:
        return {seed: run for seed in self.seeds(variant) if (run := self.run(variant, seed)).is_finished}


def open_experiment_runs(folder: Path) -> ExperimentRuns:
    """Open the folder that an experiment's runs were written to.

    Raise RunFolderError if it has no experiment.json, or if it contains links or special files.
    """
    if not (folder / "experiment.json").is_file():
        raise RunFolderError(f"{folder} is not an experiment's folder: it has no experiment.json")
    safe_open.check_folder(folder)
    return ExperimentRuns(folder)


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Lock the folder with all runs of an experiment. Raise FolderLockedError if another process holds the lock."""
    with translate_disk_full_error(folder):
        folder.mkdir(parents=True, exist_ok=True)
    resolved_folder = folder.resolve()  # the same lock for every path to the folder
    with safe_open.open_lock_file(resolved_folder.parent / f".{resolved_folder.name}.lock") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FolderLockedError(f"{folder}: another process is running this experiment") from None
        except OSError as error:
            raise RunFolderError(
                f"{folder}: its file system has no file locks ({error.strerror}), so two processes could write to it "
                "at once; use a folder on a different file system (--out)"
            ) from None
        yield


@contextlib.contextmanager
def lock_run_folder(folder: Path) -> Iterator[None]:
    """Hold an exclusive lock on the folder of one run while its trial writes to it; other processes wait.

    The lock is held on the folder itself, and the operating system releases it when the process exits for any reason.
    """
    with translate_disk_full_error(folder):
        folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some network file systems cannot lock folders
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def build_trials(experiment: config_experiment.Experiment, seeds: range) -> list[config_experiment.Trial]:
    """Return the trials ordered by seed, so that every variant gets its first result early."""
    return [build_trial(experiment, variant, seed) for seed in seeds for variant in experiment.names]
