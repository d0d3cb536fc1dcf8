"""Recompute scores, audits and initial weights from the saved weights and the corpus, and compare with the records.

Every function returns a description of the first mismatch, or an empty string if the files agree.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from headtohead.audit.model_checks.initialization import LOSS_CHECK_NAME
from headtohead.config.experiment import Trial
from headtohead.config.tables import model as config_model
from headtohead.experiment import schemas
from headtohead.experiment.run_folder import ExperimentRuns, Run
from headtohead.runner.corpus_description import describe_corpus
from headtohead.saved_models import model_io
from headtohead.saved_models.model_io import SavedModel
from headtohead.tasks.dataset import Dataset
from headtohead.tasks.pretraining import is_head_tensor
from headtohead.tasks.registry import get_task, prepare_dataset
from headtohead.training.task_objectives.evaluation_pass import Evaluation
from headtohead.trials.analyses import TrainedTrial, audit_trial_models
from headtohead.trials.evaluation import (
    audit_trial_scores,
    audit_trial_training,
    describe_scored_splits,
    evaluate_splits,
)
from headtohead.trials.trial import build_initial_model, build_training

LOSS_TOLERANCE = 1e-5
"""tolerance for scores of the same weights, which differ in the last digits between machines"""
EXAMPLE_TOLERANCE = 1e-3
"""tolerance for the loss of one example, in nats per prediction"""
MAX_TIE_FRACTION = 1e-4
"""fraction of predictions that may differ because the two most likely classes or tokens differ by rounding only"""
CPU = torch.device("cpu")


class RecomputedRun:
    """Recompute a finished run's scores, audits and initial state from its saved weights."""

    def __init__(self, run: Run) -> None:
        self.run = run

    @property
    def checks(self) -> dict[str, Callable[[], str]]:
        """The checks of one run for `h2h verify --rescore`, by description."""
        return {
            "scores of the saved weights": self.compare_scores,
            "scored text": self.compare_scored_text,
            "audits of the saved weights": self.compare_audits,
            "initial weights and batches": self.compare_start,
        }

    @cached_property
    def saved_model(self) -> SavedModel:
        return model_io.load_saved_model(self.run.folder)

    @property
    def trial(self) -> Trial:
        """The trial, with paths that point to the code in the run folder."""
        saved_trial = self.saved_model.trial
        return self.run.trial.model_copy(update={"model": saved_trial.model, "plugins": saved_trial.plugins})

    @cached_property
    def dataset(self) -> Dataset:
        return prepare_dataset(self.run.trial.data, self.run.trial.task)

    @cached_property
    def evaluations(self) -> dict[str, Evaluation]:
        return evaluate_splits(self.run.trial, self.dataset, self.saved_model.model, CPU)

    def compare_scores(self) -> str:
        """Compare the mean loss of each split and the scores of each example."""
        columns = {
            f"{split}.{column}": values
            for split, evaluation in self.evaluations.items()
            for column, values in evaluation.columns.items()
        }
        return compare_scores(self.run, columns, "with the saved weights")

    def compare_scored_text(self) -> str:
        """Compare the digests of the text that the scores refer to."""
        scored_splits = describe_scored_splits(self.run.trial, self.dataset, self.evaluations)
        for split, scored_text in scored_splits.items():
            for column, values in scored_text.to_columns().items():
                if not np.array_equal(self.run.scores.get(f"{split}.{column}", np.zeros(0)), values):
                    return f"{split}: the recorded {column} are not those of the corpus"
        return ""

    def compare_audits(self) -> str:
        """Compare the outcome of every audit, except the initial loss of models that start from other weights."""
        trial, model = self.trial, self.saved_model.model
        audits = audit_trial_scores(trial, self.dataset, model, CPU, self.evaluations)
        audits += audit_trial_training(
            trial, self.dataset, model, CPU, self.run.start.tensor_hashes, self.run.result.training.chosen_step
        )
        if trial.seed == 0:
            can_rebuild_start = not _has_dependencies(self.run)
            get_initial_model = partial(build_initial_model, trial, self.dataset, with_dependencies=False)
            trained_trial = TrainedTrial(get_task(trial.task), trial, self.dataset, model, get_initial_model)
            model_audits = audit_trial_models(trained_trial)
            audits += [audit for audit in model_audits if can_rebuild_start or audit.name != LOSS_CHECK_NAME]
        recorded_audits = {audit.name: audit for audit in self.run.audits or ()}
        for audit in audits:
            if audit.name not in recorded_audits:
                return f"audits.json does not contain {audit.name}"
            if recorded_audits[audit.name].passed != audit.passed:
                return (
                    f"{audit.name} {_format_outcome(recorded_audits[audit.name].passed)} in the file, and now {audit}"
                )
        return ""

    def compare_start(self) -> str:
        """Compare the initial weights and the batch schedule, both of which are determined by the seed.

        Weights copied from a pre-trained encoder and batches of teacher texts are not compared.
        """
        trial = self.trial
        with tempfile.TemporaryDirectory() as scratch:
            build_training(trial, self.dataset, Path(scratch), CPU, with_dependencies=False)
            start = schemas.read_record(Path(scratch) / "start.json", schemas.StartFile)
        recorded_start = self.run.start
        if trial.teacher is None and recorded_start.schedule_digest != start.schedule_digest:
            return f"the batches are not those of seed {trial.seed}"
        has_encoder = _has_dependencies(self.run) and trial.teacher is None
        hashes, recorded_hashes = (
            {name: digest for name, digest in record.tensor_hashes.items() if not has_encoder or is_head_tensor(name)}
            for record in (start, recorded_start)
        )
        if recorded_hashes != hashes:
            return f"the initial weights are not those of seed {trial.seed}; same versions and machine?"
        return ""


def _has_dependencies(run: Run) -> bool:
    """Return whether the initial weights or targets of a run come from models that would have to be trained first."""
    trial = run.trial
    has_encoder = isinstance(trial.model, config_model.TransformerConfig) and trial.model.init_from is not None
    return has_encoder or trial.teacher is not None


def _format_outcome(passed: bool | None) -> str:
    return {True: "passed", False: "failed", None: "had no outcome"}[passed]


def compare_scores(run: Run, recomputed_columns: Mapping[str, NDArray[Any]], origin: str) -> str:
    """Compare the recorded scores of a run with recomputed ones.

    Args:
        run: The run.
        recomputed_columns: Recomputed scores per example, by "SPLIT.COLUMN".
        origin: How the scores were recomputed, for the message, such as "after training again".
    """
    for key in (key for key in recomputed_columns if key.endswith(".losses")):
        split = key.rpartition(".")[0]
        stored_loss, loss = (
            run.result.scores[split].loss,
            (recomputed_columns[key].sum() / recomputed_columns[f"{split}.counts"].sum()),
        )
        if not np.isclose(stored_loss, loss, rtol=LOSS_TOLERANCE, equal_nan=True):
            return f"{split} loss is {stored_loss:.6g} in the file and {loss:.6g} {origin}"
    for key, values in recomputed_columns.items():
        split, _, column = key.rpartition(".")
        recorded_scores = run.scores.get(key, np.zeros(0))
        if recorded_scores.shape != values.shape:
            return f"{split} has {len(recorded_scores)} {column} in the file and {len(values)} {origin}"
        counts = np.maximum(recomputed_columns.get(f"{split}.counts", np.ones(1)), 1)
        tolerance = EXAMPLE_TOLERANCE * counts if column == "losses" else 0.0
        is_different = ~(
            np.isclose(recorded_scores, values, rtol=0, equal_nan=True) | (abs(recorded_scores - values) <= tolerance)
        )
        num_allowed = int(MAX_TIE_FRACTION * counts.sum()) if column in ("correct", "guessed") else 0
        if is_different.sum() > num_allowed:
            example = int(is_different.argmax())
            return (
                f"{split}: {int(is_different.sum())} of {len(values)} {column} differ; example {example} has "
                f"{recorded_scores[example]:.6g} in the file and {values[example]:.6g} {origin}"
            )
    return ""


def compare_corpus(runs: ExperimentRuns) -> str:
    """Recompute corpus.json and compare: statistics, data checks, unseen rows and repeated rows."""
    recomputed_description = describe_corpus(runs.experiment).model_dump()
    for name, value in runs.corpus.model_dump().items():
        if name != "origin" and value != recomputed_description[name]:
            return f"{name} is not what the corpus gives"
    return ""
