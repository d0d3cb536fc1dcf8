"""Write the scores and the result of a finished trial to its run folder, and remove its checkpoints."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save as serialize_tensors

from headtohead.atomic_io import compute_sha256, write_bytes
from headtohead.config.experiment import Trial
from headtohead.data.scored_text import ScoredText
from headtohead.experiment import schemas
from headtohead.training.loop import TrainingResult, summarize_evaluation
from headtohead.training.task_objectives.evaluation_pass import Evaluation


def write_scores(folder: Path, evaluations: Mapping[str, Evaluation], scored_splits: Mapping[str, ScoredText]) -> None:
    """Write the file scores.safetensors: the scores of every split per example, and digests of the scored text."""
    columns_by_split: dict[str, np.ndarray[Any, np.dtype[Any]]] = {}
    for name, evaluation in evaluations.items():
        columns = {**(scored_splits[name].to_columns() if name in scored_splits else {}), **evaluation.columns}
        columns_by_split |= {f"{name}.{column}": values for column, values in columns.items()}
    write_bytes(folder / "scores.safetensors", serialize_tensors(columns_by_split))


def build_result(
    trial: Trial,
    folder: Path,
    training_result: TrainingResult,
    evaluations: dict[str, Evaluation],
    seconds: float,
    other_fields: Mapping[str, object],
) -> schemas.ResultFile:
    """Return the content of result.json: scores, a training summary, and checksums of all files in the run folder."""
    metric = trial.spec.metric
    # Checksums of every file that remains in the run folder.
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    checksums = {
        str(path.relative_to(folder)): compute_sha256(path)
        for path in files
        if "__pycache__" not in path.relative_to(folder).parts
        and not path.relative_to(folder).parts[0].startswith(("checkpoint-", "best-"))
        and path.name not in ("result.json", "failure.json")
    }
    # JSON has no NaN, the only value that differs from itself.
    training_summary = {name: None if value != value else value for name, value in asdict(training_result).items()}
    return schemas.ResultFile.model_validate(
        {
            "variant": trial.variant,
            "seed": trial.seed,
            "metric": metric,
            "scores": {
                name: {
                    key: value if np.isfinite(value) else None
                    for key, value in summarize_evaluation(evaluation, metric).items()
                }
                for name, evaluation in evaluations.items()
            },
            "training": {**training_summary, "resharded": list(training_result.resharded)},
            "trial_seconds": round(seconds, 3),
            "sha256": checksums,
            **other_fields,
        }
    )


def remove_checkpoints_of_finished_trial(folder: Path) -> None:
    """Remove the checkpoints from a run folder, after result.json has been written."""
    for checkpoint_folder in folder.glob("checkpoint-*"):
        shutil.rmtree(checkpoint_folder, ignore_errors=True)
    for weights_file in folder.glob("best-*.safetensors"):
        weights_file.unlink(missing_ok=True)
