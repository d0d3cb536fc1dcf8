"""A student's training data: reference texts, teacher texts or both, with the teacher's targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headtohead.config import experiment
from headtohead.data.encoding import EncodedSplit, TokenStream
from headtohead.data.sft import PromptedBatchSchedule, PromptedRows, build_prompted_rows
from headtohead.data.splits import select_evenly_spaced
from headtohead.distillation.teacher import RunTrial, check_same_vocabulary, open_teacher
from headtohead.distillation.teacher_cache import TeacherCache
from headtohead.distillation.teacher_targets import compute_cached_targets
from headtohead.distillation.teacher_texts import TeacherTextGenerators, build_teacher_text_rows
from headtohead.progress import ProgressCallback, ignore_progress
from headtohead.training.losses.distillation_loss import DistillationLossConfig, TeacherTargets
from headtohead.training.task_objectives.distillation import DistillationBatchSchedule, DistillationObjective


@dataclass(frozen=True)
class StudentData:
    """A student's training sequences and objective, with cached teacher targets if it learns from logits."""

    rows: PromptedRows
    objective: DistillationObjective
    cache: TeacherCache | None = None
    cache_keys: tuple[str, ...] = ()
    """cache key of each training sequence"""

    def build_schedule(self, trial: experiment.Trial, tokenizer: Any) -> PromptedBatchSchedule:
        """Return the batch schedule of a trial, with teacher targets in each batch if there is a cache."""
        schedule_arguments = (
            self.rows,
            trial.spec.target,
            trial.training,
            trial.data,
            trial.model.context,
            trial.seed,
            tokenizer,
        )
        if self.cache is None:
            return PromptedBatchSchedule(*schedule_arguments)
        return DistillationBatchSchedule(*schedule_arguments, look_up_targets=self._look_up_targets)

    def _look_up_targets(self, row_indices: Sequence[int], num_predictions: Sequence[int]) -> TeacherTargets:
        """Return the cached targets for the first `num_predictions[i]` predictions in each of the rows."""
        assert self.cache is not None
        return self.cache.read_targets([self.cache_keys[row_index] for row_index in row_indices], num_predictions)


def build_student_data(
    trial: experiment.Trial,
    dataset: Any,
    run_trial: RunTrial | None,
    on_progress: ProgressCallback = ignore_progress,
    *,
    generators: TeacherTextGenerators | None = None,
) -> StudentData:
    """Build a student's training data, computing the teacher outputs that are not cached.

    Args:
        trial: The distillation trial.
        dataset: The dataset of the trial.
        run_trial: Trains a teacher that is built from parts. If None, reference texts replace the teacher outputs,
            which suffices to validate a trial and to time its steps.
        on_progress: Called with the progress of text generation and logit computation.
        generators: Processes that generate teacher texts in parallel.
    """
    reference_rows = build_reference_rows(trial, dataset)
    settings = trial.training.distillation
    if settings is None or run_trial is None:
        return StudentData(reference_rows, DistillationObjective())
    teacher = open_teacher(trial, dataset, run_trial, on_progress)
    rows = reference_rows
    if settings.has_teacher_texts:
        rows = build_teacher_text_rows(trial, dataset, teacher, reference_rows, on_progress, generators)
    if not settings.has_teacher_logits:
        return StudentData(rows, DistillationObjective())
    check_same_vocabulary(teacher, dataset.tokenizer)
    cache, cache_keys = compute_cached_targets(teacher, rows, settings, on_progress)
    loss = DistillationLossConfig(settings.temperature, settings.direction, settings.weight)
    return StudentData(rows, DistillationObjective(loss), cache, tuple(cache_keys))


def build_reference_rows(trial: experiment.Trial, dataset: Any) -> PromptedRows:
    """Return a student's training data from human-written texts.

    They are split the same way in every trial, so that all trials share the cached teacher outputs.
    """
    assert trial.teacher is not None
    train = dataset.encoded["train"]
    if isinstance(train, PromptedRows):
        return train
    return build_prompted_rows("train", _split_reference_text(train, trial.model.context, trial.teacher.documents))


def _split_reference_text(train: EncodedSplit, context: int, max_rows: int | None) -> list[list[int]]:
    """Return a student's training text as token ids, in rows of at most `context` + 1, identical in every trial.

    A stream is split into consecutive blocks in which every token except the first is predicted once. If there are more
    than `max_rows` rows, an evenly spaced sample is returned.
    """
    if isinstance(train, TokenStream):
        windows = train.token_ids.unfold(0, context + 1, context)
        return [windows[i].tolist() for i in select_evenly_spaced(len(windows), max_rows)]
    row_starts = train.row_offsets.tolist()
    return [
        train.token_ids[row_starts[i] : min(row_starts[i + 1], row_starts[i] + context + 1)].tolist()
        for i in select_evenly_spaced(len(train), max_rows)
    ]
