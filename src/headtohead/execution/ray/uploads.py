"""List what a trial reads from the user's machine, to upload it to a cluster without a shared disk."""

from __future__ import annotations

from pathlib import Path

from headtohead.config import experiment
from headtohead.config.tables import model


def list_paths_to_upload(trial: experiment.Trial) -> list[Path]:
    """Return the files and folders on this machine that a trial's settings name."""
    source = trial.data.source
    paths = [*((source,) if isinstance(source, str) else source), *trial.plugins]
    paths += [str(value) for key, value in trial.data.tokenizer.options.items() if key in ("path", "model")]
    if isinstance(trial.model, model.CustomModelConfig):
        paths.append(trial.model.module.rpartition(":")[0])
    if isinstance(trial.model, model.PretrainedModelConfig):
        paths.append(trial.model.pretrained)
    if trial.teacher is not None and isinstance(trial.teacher.model, str):
        paths.append(trial.teacher.model)
    return sorted({Path(path) for path in paths if Path(path).is_absolute() and Path(path).exists()})


def list_teacher_caches_to_upload(trial: experiment.Trial) -> list[Path]:
    """Return the cache folders on this machine that contain outputs of a trial's teacher."""
    if trial.teacher is None:
        return []
    from headtohead.distillation.teacher import list_teacher_folders
    from headtohead.tasks.registry import prepare_dataset
    from headtohead.trials.trial import run_trial

    return list_teacher_folders(trial, prepare_dataset(trial.data, trial.task), run_trial)
