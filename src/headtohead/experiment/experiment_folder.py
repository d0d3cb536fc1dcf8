"""Create the folder of an experiment, or reopen it for `--resume`, and record the settings in its journal."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from headtohead.atomic_io import translate_disk_full_error
from headtohead.config.experiment import NON_IDENTITY_FIELDS, Experiment
from headtohead.config.trial_settings import build_trial
from headtohead.errors import RunFolderError
from headtohead.experiment import schemas
from headtohead.experiment.journal import Journal, compute_settings_digest
from headtohead.experiment.provenance.run_identity import describe_dependencies, describe_setting_differences
from headtohead.experiment.provenance.run_membership import MAX_DIFFERENCES, find_resume_issues
from headtohead.experiment.run_folder import ExperimentRuns, open_experiment_runs
from headtohead.json_files import compute_json_checksum

NO_BUDGETS: Mapping[str, schemas.ResolvedBudget] = MappingProxyType({})


def create_experiment_folder(
    folder: Path,
    experiment: Experiment,
    *,
    corpus_digests: Mapping[str, str],
    versions: dict[str, str],
    command: list[str],
    resume: bool,
    budgets: Mapping[str, schemas.ResolvedBudget] = NO_BUDGETS,
) -> ExperimentRuns:
    """Create an experiment's folder, or open it if `resume` is set.

    Raise RunFolderError if the folder's content does not match: it contains a different experiment, or runs that were
    trained with different settings, data or code.

    Args:
        folder: The experiment's folder.
        experiment: The experiment.
        corpus_digests: Corpus digest of each variant.
        versions: Versions to record in experiment.json.
        command: Command line to record in experiment.json.
        resume: Continue an experiment whose folder already exists.
        budgets: Budgets that were converted to steps, by variant.
    """
    metadata_path = folder / "experiment.json"
    metadata = schemas.ExperimentFile(
        identity=experiment.identity(),
        experiment=experiment,
        budgets=dict(budgets),
        corpus_digests=dict(corpus_digests),
        dependencies={name: describe_dependencies(build_trial(experiment, name, 0)) for name in experiment.names},
        versions=versions,
        command=command,
    )
    if metadata_path.is_file():
        existing = open_experiment_runs(folder).metadata
        if existing.identity != metadata.identity:
            differences = _describe_experiment_differences(existing.experiment, experiment)
            raise RunFolderError(
                f"{folder} contains a different experiment ({existing.experiment.name!r}: {differences}); "
                "choose another --out, or remove it"
            )
        if not resume:
            raise RunFolderError(f"{folder} already contains this experiment; --resume continues it, or choose --out")
        if issues := find_resume_issues(ExperimentRuns(folder), metadata):
            lines = "".join(f"\n  {issue.variant} {issue.reason}" for issue in issues)
            raise RunFolderError(f"{folder} contains runs that do not belong to this experiment:{lines}")
    elif folder.is_dir() and any(not entry.name.startswith(".") for entry in folder.iterdir()):
        raise RunFolderError(f"{folder} is not empty and not an experiment's folder; choose another --out")
    with translate_disk_full_error(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for partial_file in folder.glob(".*.part"):  # left behind by a killed process
        partial_file.unlink(missing_ok=True)
    schemas.write_record(metadata_path, metadata, with_checksum=True)
    Journal(folder).append_new(_build_settings_event(metadata))
    return ExperimentRuns(folder)


def _build_settings_event(metadata: schemas.ExperimentFile) -> schemas.SettingsEvent:
    """Return the journal event that records an experiment's settings and a digest for each variant."""
    experiment = metadata.experiment
    return schemas.SettingsEvent(
        digest=compute_settings_digest(metadata.to_json()),
        trials={
            name: compute_json_checksum(
                {
                    "settings": build_trial(experiment, name, 0).dump_variant_settings(),
                    "corpus": metadata.corpus_digests.get(name),
                    "dependencies": metadata.dependencies[name],
                }
            )
            for name in experiment.names
        },
        seeds=experiment.seeds,
        variants=list(experiment.variants),
        versions=metadata.versions,
    )


def _describe_experiment_differences(existing: Experiment, requested: Experiment) -> str:
    """Return the first settings in which the experiment in a folder differs from the requested one."""
    existing_settings, requested_settings = (
        experiment.model_dump(mode="json", exclude=NON_IDENTITY_FIELDS) for experiment in (existing, requested)
    )
    return "; ".join(describe_setting_differences(existing_settings, requested_settings)[:MAX_DIFFERENCES])
