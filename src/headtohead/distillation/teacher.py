"""Open a distillation experiment's teacher, training it first if it is built from parts.

Training a teacher is an ordinary trial. This package sits below `trials`, so callers pass `run_trial` in.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from headtohead.cache_folders import lock_cache_folder
from headtohead.config import experiment
from headtohead.config.tables import distillation
from headtohead.data.tokenization.tokenizers import TokenizerProtocol
from headtohead.distillation.teacher_cache import find_cache_folders, get_cache_root
from headtohead.errors import ModelError
from headtohead.experiment.provenance.run_identity import compute_run_identity
from headtohead.experiment.run_folder import Run
from headtohead.experiment.schemas import TeacherFile, TeacherSettings
from headtohead.generation.strategies import Strategy, build_strategy
from headtohead.nn.transformer import Transformer
from headtohead.progress import ProgressCallback, ProgressUpdate, ignore_progress
from headtohead.saved_models.fingerprint import FingerprintedModel, load_fingerprinted_model
from headtohead.training.training_progress import TrainingProgress

TEACHER_BATCH_SIZE = 64
"""batch size for a `Transformer`; it is 1 for pretrained teachers, so that an interrupt loses at most one document"""
TRAINED_TEACHERS_FOLDER = "trained"
"""folder in the teacher cache with the run folders of teachers built from parts"""


class RunTrial(Protocol):
    """Train, evaluate and save a trial in a folder; `trials.trial.run_trial` in production."""

    def __call__(
        self, trial: experiment.Trial, folder: Path, *, on_progress: Callable[[TrainingProgress], None]
    ) -> object: ...


def open_teacher(
    trial: experiment.Trial, dataset: Any, run_trial: RunTrial, on_progress: ProgressCallback = ignore_progress
) -> FingerprintedModel:
    """Load a trial's teacher. A teacher built from parts is trained first unless its run is cached."""
    assert trial.teacher is not None
    if isinstance(trial.teacher.model, str):
        return _load_teacher(trial.teacher.model)
    return _load_teacher(str(train_teacher(trial, dataset, run_trial, on_progress)))


@lru_cache(maxsize=2)
def _load_teacher(model_source: str) -> FingerprintedModel:
    """Load a teacher from a run folder or a pretrained model; the last two stay in memory."""
    return load_fingerprinted_model(model_source)


def train_teacher(
    trial: experiment.Trial, dataset: Any, run_trial: RunTrial, on_progress: ProgressCallback = ignore_progress
) -> Path:
    """Return the run folder of a teacher built from parts, training it if not cached. The key is the run's identity."""
    teacher_trial = build_teacher_trial(trial)
    identity = compute_run_identity(teacher_trial, dataset.corpus.digest)
    folder = get_cache_root() / TRAINED_TEACHERS_FOLDER / identity

    def forward_training_progress(progress: TrainingProgress) -> None:
        """Pass training progress to `on_progress` as a `ProgressUpdate`."""
        on_progress(ProgressUpdate("training the teacher", progress.step, progress.total_steps, progress.seconds_left))

    with lock_cache_folder(folder):
        if not (folder / "result.json").is_file():
            run_trial(teacher_trial, folder, on_progress=forward_training_progress)
    return folder


def build_teacher_trial(trial: experiment.Trial) -> experiment.Trial:
    """Return the trial that trains a teacher built from parts: a language model on the student's data."""
    teacher = trial.teacher
    assert teacher is not None
    training = teacher.training or trial.training.model_copy(update={"distillation": None})
    return experiment.Trial.model_validate(
        {
            **trial.model_dump(mode="json", include={"data", "plugins"}),
            "task": "language-model",
            "variant": "teacher",
            "seed": teacher.seed,
            "model": teacher.model.model_dump(mode="json") if not isinstance(teacher.model, str) else {},
            "training": training.model_dump(mode="json"),
        }
    )


def describe_teacher(
    trial: experiment.Trial, dataset: Any, run_trial: RunTrial, on_progress: ProgressCallback = ignore_progress
) -> TeacherFile:
    """Return the content of teacher.json: name, weights digest, size and, if built from parts, settings and scores."""
    assert trial.teacher is not None
    teacher = open_teacher(trial, dataset, run_trial, on_progress)
    description = TeacherFile.model_validate(teacher.to_dict())
    if isinstance(trial.teacher.model, str):
        return description
    result = Run(train_teacher(trial, dataset, run_trial, on_progress)).result
    settings = TeacherSettings(model=trial.teacher.model, training=trial.teacher.training)
    training_fields = {"name": "teacher", "training": result.training, "scores": result.scores, "settings": settings}
    return description.model_copy(update=training_fields)


def list_teacher_folders(trial: experiment.Trial, dataset: Any, run_trial: RunTrial) -> list[Path]:
    """Return the folders with a teacher and its outputs that another machine needs, so as not to recompute them.

    These are the cache folders with the teacher's outputs and, if it is built from parts, its run folder.
    """
    assert trial.teacher is not None
    cache_folders = find_cache_folders(open_teacher(trial, dataset, run_trial).digest)
    if isinstance(trial.teacher.model, str):
        return cache_folders
    return [*cache_folders, train_teacher(trial, dataset, run_trial)]


def build_teacher_strategy(teacher: distillation.TeacherConfig) -> Strategy:
    """Return the teacher's decoding strategy; the default is greedy for summaries and sampling for plain text."""
    if teacher.strategy is not None:
        return build_strategy(teacher.strategy.kind, **teacher.strategy.options)
    return build_strategy("sample" if teacher.prompt is None else "greedy")


def check_same_vocabulary(teacher: FingerprintedModel, tokenizer: TokenizerProtocol) -> None:
    """Raise ModelError unless the teacher and student share a vocabulary: distributions are compared token by token."""
    teacher_tokens, student_tokens = list_vocabulary(teacher.tokenizer), list_vocabulary(tokenizer)
    if teacher_tokens == student_tokens:
        return
    token_pairs = enumerate(zip(teacher_tokens, student_tokens, strict=False))
    first_difference = next(
        (token_id for token_id, (teacher_token, student_token) in token_pairs if teacher_token != student_token), None
    )
    difference = (
        "one extends the other" if first_difference is None else f"first difference at token {first_difference}"
    )
    raise ModelError(
        f"{teacher.name}: its vocabulary ({len(teacher_tokens):,} tokens) is not the student's "
        f"({len(student_tokens):,} tokens; {difference}), so the student cannot learn from its logits; "
        'training.distillation.targets = "texts" works with any vocabulary'
    )


def list_vocabulary(tokenizer: Any) -> list[str]:
    """Return the text of every token in the vocabulary, in id order."""
    return [tokenizer.id_to_token(token_id) for token_id in range(tokenizer.vocab_size)]


def choose_teacher_batch_size(teacher: FingerprintedModel) -> int:
    """Return the batch size with which a teacher generates texts and computes logits."""
    return TEACHER_BATCH_SIZE if isinstance(teacher.model, Transformer) else 1
