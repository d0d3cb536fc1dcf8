"""Training data of a student: reference texts, teacher texts or both, with the teacher's targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headtohead.config import experiment
from headtohead.data.sft import PromptedBatchSchedule, PromptedRows, build_prompted_rows, split_into_fixed_rows
from headtohead.distillation.teacher import RunTrial, check_same_vocabulary, open_teacher
from headtohead.distillation.teacher_cache import TeacherCache
from headtohead.distillation.teacher_targets import compute_cached_targets
from headtohead.distillation.teacher_texts import TextGenerators, build_teacher_rows
from headtohead.progress import ProgressCallback, ignore_progress
from headtohead.training.distillation_batches import DistillationBatchSchedule, DistillationObjective
from headtohead.training.distillation_loss import DistillationLossConfig, TeacherTargets


@dataclass(frozen=True)
class DistillationData:
    """Training rows of a distillation trial, the objective, and a cache with teacher targets if it uses logits."""

    rows: PromptedRows
    objective: DistillationObjective
    cache: TeacherCache | None = None
    keys: tuple[str, ...] = ()
    """cache key of each row"""

    def schedule(self, trial: experiment.Trial, tokenizer: Any) -> PromptedBatchSchedule:
        """Return the trial's batches, with teacher targets if there is a cache."""
        arguments = (
            self.rows,
            trial.spec.target,
            trial.training,
            trial.data,
            trial.model.context,
            trial.seed,
            tokenizer,
        )
        if self.cache is None:
            return PromptedBatchSchedule(*arguments)
        return DistillationBatchSchedule(*arguments, look_up_targets=self._look_up_targets)

    def _look_up_targets(self, rows: Sequence[int], counts: Sequence[int]) -> TeacherTargets:
        assert self.cache is not None
        return self.cache.targets([self.keys[row] for row in rows], counts)


def build_distillation_data(
    trial: experiment.Trial,
    dataset: Any,
    run_trial: RunTrial | None,
    on_progress: ProgressCallback = ignore_progress,
    *,
    generators: TextGenerators | None = None,
) -> DistillationData:
    """Return the training data of a trial, computing whatever the teacher cache lacks.

    Without `run_trial`, reference texts replace the teacher's: enough to check that a trial can run and to
    measure the time of a step.
    """
    reference_rows = build_reference_rows(trial, dataset)
    settings = trial.training.distillation
    if settings is None or run_trial is None:
        return DistillationData(reference_rows, DistillationObjective())
    teacher = open_teacher(trial, dataset, run_trial, on_progress)
    rows = reference_rows
    if settings.has_teacher_texts:
        rows = build_teacher_rows(trial, dataset, teacher, reference_rows, on_progress, generators)
    if not settings.has_teacher_logits:
        return DistillationData(rows, DistillationObjective())
    check_same_vocabulary(teacher, dataset.tokenizer)
    cache, keys = compute_cached_targets(teacher, rows, settings, on_progress)
    loss = DistillationLossConfig(settings.temperature, settings.direction, settings.weight)
    return DistillationData(rows, DistillationObjective(loss), cache, tuple(keys))


def build_reference_rows(trial: experiment.Trial, dataset: Any) -> PromptedRows:
    """Return the training rows written by people. Rows are fixed so that teacher outputs can be cached by row."""
    assert trial.teacher is not None
    train = dataset.encoded["train"]
    if isinstance(train, PromptedRows):
        return train
    return build_prompted_rows("train", split_into_fixed_rows(train, trial.model.context, trial.teacher.documents))
