"""Recompute the data behind a report: scores, audits, initial weights, data checks, and entire training runs.

Every function returns a description of the first mismatch, or an empty string if the files agree.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headtohead.atomic_io import compute_sha256, read_jsonl
from headtohead.config import model as config_model
from headtohead.config.experiment import Trial
from headtohead.experiment import schemas, trust
from headtohead.experiment.code_files import find_code_files
from headtohead.experiment.run_folder import ExperimentRuns, Run
from headtohead.runner.corpus_description import describe_corpus
from headtohead.saved_models import model_io
from headtohead.saved_models.model_io import SavedModel
from headtohead.tasks.dataset import Dataset
from headtohead.tasks.registry import get_task, prepare_dataset
from headtohead.training.objectives import Evaluation
from headtohead.trials.evaluation import audit_scores, describe_scored_texts, evaluate_splits
from headtohead.trials.outputs import TrainedTrial, audit_initial_and_trained_model
from headtohead.trials.trial import build_initial_model, build_training, run_trial

LOSS_TOLERANCE = 1e-5
"""tolerance for scores of the same weights, which differ in the last digits between machines"""
EXAMPLE_TOLERANCE = 1e-3
"""tolerance for the loss of one example, in nats per prediction"""
CPU = torch.device("cpu")


class RecomputedRun:
    """A finished run whose scores, audits and initial state are recomputed from the saved weights."""

    def __init__(self, run: Run) -> None:
        self.run = run

    @property
    def checks(self) -> dict[str, Callable[[], str]]:
        """The checks by description."""
        return {
            "scores of the saved weights": self.compare_scores,
            "scored text": self.compare_texts,
            "audits of the saved weights": self.compare_audits,
            "initial weights and batches": self.compare_start,
        }

    @cached_property
    def saved_model(self) -> SavedModel:
        return model_io.load(self.run.folder)

    @property
    def trial(self) -> Trial:
        """The trial, with paths that point to the code in the run folder."""
        saved = self.saved_model.trial
        return self.run.trial.model_copy(update={"model": saved.model, "plugins": saved.plugins})

    @cached_property
    def dataset(self) -> Dataset:
        return prepare_dataset(self.run.trial.data, self.run.trial.task)

    @cached_property
    def evaluations(self) -> dict[str, Evaluation]:
        return evaluate_splits(self.run.trial, self.dataset, self.saved_model.model, CPU)

    def compare_scores(self) -> str:
        """Compare each split's mean loss and each example's scores."""
        for split, evaluation in self.evaluations.items():
            stored = self.run.result.scores[split].loss
            if not np.isclose(stored, evaluation.loss, rtol=LOSS_TOLERANCE, equal_nan=True):
                return f"{split} loss is {stored:.6g} in the file and {evaluation.loss:.6g} with the saved weights"
            for column, values in evaluation.columns.items():
                recorded = self.run.scores[f"{split}.{column}"]
                tolerance = EXAMPLE_TOLERANCE * np.maximum(evaluation.counts, 1) if column == "losses" else 0.5
                if recorded.shape != values.shape:
                    return f"{split} has {len(recorded)} {column} in the file and {len(values)} examples"
                is_different = ~(
                    np.isclose(recorded, values, rtol=0, equal_nan=True) | (abs(recorded - values) <= tolerance)
                )
                # Ties between logits are broken by rounding.
                if is_different.sum() > (0 if column == "losses" else 0.01 * len(values)):
                    row = int(is_different.argmax())
                    return (
                        f"{split}: {int(is_different.sum())} of {len(values)} {column} differ; example {row} has "
                        f"{recorded[row]:.6g} in the file and {values[row]:.6g} with the saved weights"
                    )
        return ""

    def compare_texts(self) -> str:
        """Compare the digests of the predicted text."""
        texts = describe_scored_texts(self.run.trial, self.dataset, self.evaluations)
        for split, text in texts.items():
            for column, values in text.to_columns().items():
                if not np.array_equal(self.run.scores.get(f"{split}.{column}", np.zeros(0)), values):
                    return f"{split}: the recorded {column} are not those of the corpus"
        return ""

    def compare_audits(self) -> str:
        """Compare the outcome of every audit."""
        trial, model = self.trial, self.saved_model.model
        audits = audit_scores(trial, self.dataset, model, CPU, self.evaluations)
        if trial.seed == 0 and not _has_dependencies(self.run):
            get_initial_model = partial(build_initial_model, trial, self.dataset)
            trained_trial = TrainedTrial(get_task(trial.task), trial, self.dataset, model, get_initial_model)
            audits += audit_initial_and_trained_model(trained_trial)
        recorded = {audit.name: audit for audit in self.run.audits or ()}
        for audit in audits:
            if audit.name not in recorded:
                return f"audits.json does not contain {audit.name}"
            if recorded[audit.name].passed != audit.passed:
                return f"{audit.name} {_format_outcome(recorded[audit.name].passed)} in the file, and now {audit}"
        return ""

    def compare_start(self) -> str:
        """Compare the initial weights and the batch schedule, both of which are determined by the seed."""
        if _has_dependencies(self.run):
            return ""
        trial = self.trial
        with tempfile.TemporaryDirectory() as scratch:
            build_training(trial, self.dataset, Path(scratch), CPU)
            start = schemas.read_record(Path(scratch) / "start.json", schemas.StartFile)
        recorded = self.run.start
        if recorded.schedule_digest != start.schedule_digest:
            return f"the batches are not those of seed {trial.seed}"
        if recorded.tensor_hashes != start.tensor_hashes:
            return f"the initial weights are not those of seed {trial.seed}; same versions and machine?"
        return ""


def _has_dependencies(run: Run) -> bool:
    """Return whether the initial weights or targets of a run come from models that would have to be trained first."""
    trial = run.trial
    has_encoder = isinstance(trial.model, config_model.TransformerConfig) and trial.model.init_from is not None
    return has_encoder or trial.teacher is not None


def _format_outcome(passed: bool | None) -> str:
    return {True: "passed", False: "failed", None: "had no outcome"}[passed]


def compare_corpus(runs: ExperimentRuns) -> str:
    """Compare corpus.json with the corpus: statistics, data checks, unseen rows and repeated rows."""
    recomputed = describe_corpus(runs.experiment).model_dump()
    for name, value in runs.corpus.model_dump().items():
        if name != "origin" and value != recomputed[name]:
            return f"{name} is not what the corpus gives"
    return ""


def compare_retrained(run: Run) -> str:
    """Retrain a run's trial. Return how the result differs, or an empty string if it is reproduced."""
    trust.check_trusted(run.folder, list(find_code_files(run.trial).values()))
    with tempfile.TemporaryDirectory() as scratch:
        retrained_folder = Path(scratch) / "run"
        run_trial(run.trial, retrained_folder, device=run.start.device)
        if len({compute_sha256(path / "model.safetensors") for path in (run.folder, retrained_folder)}) == 1:
            return ""
        stored_metrics, retrained_metrics = (
            [[line["step"], line["split"], line["loss"]] for line in read_jsonl(folder / "metrics.jsonl")]
            for folder in (run.folder, retrained_folder)
        )
        if stored_metrics == retrained_metrics:
            return "the metrics are the same, but the weights differ"
        if _is_within_rounding(run, stored_metrics, retrained_metrics):
            return ""
        step, split, loss = next(
            stored for stored, retrained in zip(stored_metrics, retrained_metrics, strict=False) if stored != retrained
        )
        return f"differs from step {step} on ({split}: loss {loss:.6g} in the file); same versions and machine?"


def _is_within_rounding(run: Run, stored_metrics: list[list[Any]], retrained_metrics: list[list[Any]]) -> bool:
    """Return whether two lists of metrics agree up to rounding, for runs trained by several processes.

    Without dropout, a single process reproduces such a run up to rounding. All other runs must be reproduced exactly.
    """
    training = run.result.training
    if training.processes == 1 and not training.resharded:
        return False
    (stored_keys, stored_losses), (retrained_keys, retrained_losses) = (
        ([line[:2] for line in lines], [line[2] for line in lines]) for lines in (stored_metrics, retrained_metrics)
    )
    return stored_keys == retrained_keys and bool(
        np.allclose(stored_losses, retrained_losses, rtol=0, atol=LOSS_TOLERANCE)
    )
