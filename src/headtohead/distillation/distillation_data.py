"""A student's training data: reference texts, teacher texts or both, with the teacher's targets."""

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
    """A distillation trial's training rows and objective, with cached teacher targets if it learns from logits."""

    rows: PromptedRows
    objective: DistillationObjective
    cache: TeacherCache | None = None
    keys: tuple[str, ...] = ()
    """cache key of each row"""

    def schedule(self, trial: experiment.Trial, tokenizer: Any) -> PromptedBatchSchedule:
        """Return a trial's batches, with teacher targets if there is a cache."""
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
        """Return the cached targets for these rows; `counts` gives the number of positions to read from each row."""
        assert self.cache is not None
        return self.cache.targets([self.keys[row_index] for row_index in rows], counts)


def build_distillation_data(
    trial: experiment.Trial,
    dataset: Any,
    run_trial: RunTrial | None,
    on_progress: ProgressCallback = ignore_progress,
    *,
    generators: TextGenerators | None = None,
) -> DistillationData:
    """Build a trial's training data, computing the teacher outputs that are not cached.

    Args:
        run_trial: Trains a teacher that is built from parts. If None, the teacher is not used and reference texts
        replace its outputs, which is enough to check that a trial can run and to time its steps. generators: Processes
        that generate teacher texts in parallel.
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
    """Return the human-written training rows, split the same way in every trial so that the teacher cache can be
    reused.
    """
    assert trial.teacher is not None
    train = dataset.encoded["train"]
    if isinstance(train, PromptedRows):
        return train
    return build_prompted_rows("train", split_into_fixed_rows(train, trial.model.context, trial.teacher.documents))
