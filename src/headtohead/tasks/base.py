"""The base class of tasks.

A task loads the dataset, builds the model, the training batches and the objective of a trial, and decides what is
evaluated and shown.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from headtohead.config.experiment import Trial
from headtohead.config.tables.data import DataConfig
from headtohead.config.tables.model import PretrainedModelConfig
from headtohead.config.tasks import TaskSpec
from headtohead.data import token_cache
from headtohead.data.batches import IGNORE_INDEX, Batch, BatchSchedule
from headtohead.data.encoding import EncodedSplit, count_tokens
from headtohead.data.evaluation_examples import EvaluationExamples, build_evaluation_examples
from headtohead.distillation.teacher import RunTrial
from headtohead.experiment.schemas import ClassPrediction, TextScore
from headtohead.model_factory import build_model
from headtohead.nn.custom_model import CustomModel
from headtohead.nn.transformer import Transformer
from headtohead.pretrained.classifier import EncoderClassifier
from headtohead.pretrained.student_model import StudentModel
from headtohead.progress import ProgressCallback, ignore_progress
from headtohead.saved_models.model_io import SavedModel
from headtohead.tasks.dataset import Dataset
from headtohead.training.task_objectives.base import TaskObjective

AUDIT_BATCH_SIZE = 8
NUM_TRAIN_EVAL_EXAMPLES = 256
"""rows or blocks of the training split that are scored during training"""

TrialModel = Transformer | CustomModel | EncoderClassifier | StudentModel


class Task:
    """Base class of tasks. Subclasses set `spec` and override the methods that differ."""

    spec: ClassVar[TaskSpec]
    label_description: ClassVar[str]
    """what the labels of a batch are, for `h2h inspect`"""

    def load_dataset(self, data: DataConfig) -> Dataset:
        """Read, split and tokenize the corpus, or open it in the token cache."""
        tokenized = token_cache.load_tokenized_corpus(data, has_labels=self.spec.target.is_class_label)
        return Dataset(tokenized.corpus, tokenized.tokenizer, tokenized.encoded, tokenized.corpus.label_names)

    def train_dependencies(
        self, trial: Trial, dataset: Dataset, run_trial: RunTrial, on_progress: ProgressCallback = ignore_progress
    ) -> None:
        """Train the models whose weights a variant's trials start from, before these trials run in parallel."""

    def build_model(self, trial: Trial, dataset: Dataset, run_trial: RunTrial | None = None) -> TrialModel:
        """Build the model of this task at step 0. Without `run_trial`, the models it depends on are not trained."""
        vocab_size = dataset.tokenizer.vocab_size
        is_pretrained = isinstance(trial.model, PretrainedModelConfig)
        return build_model(
            trial.model,
            vocab_size,
            dataset.num_classes,
            is_causal=self.spec.target.is_causal,
            seed=trial.seed,
            token_counts=None if is_pretrained else count_tokens(dataset.encoded["train"], vocab_size),
        )

    def build_objective(self, dataset: Dataset) -> TaskObjective:
        """Return the objective that scores the model and, unless the trial has a teacher, trains it."""
        raise NotImplementedError

    def build_training_data(
        self, trial: Trial, dataset: Dataset, run_trial: RunTrial | None = None
    ) -> tuple[BatchSchedule, TaskObjective]:
        """Return the training batches and the objective of this task. Without `run_trial`, no teacher is trained."""
        batches = BatchSchedule(
            dataset.encoded["train"],
            self.spec.target,
            trial.training,
            trial.data,
            trial.model.context,
            trial.seed,
            dataset.tokenizer,
        )
        return batches, self.build_objective(dataset)

    def build_examples(self, dataset: Dataset, encoded: EncodedSplit, context: int) -> EvaluationExamples:
        """Return an encoded split's evaluation examples, for a model with this context length."""
        return build_evaluation_examples(encoded, self.spec.target, context, dataset.tokenizer)

    def build_split_examples(self, trial: Trial, dataset: Dataset, split: str) -> EvaluationExamples:
        """Return the evaluation examples of this task for a named split.

        The training split is subsampled: scoring all of it would cost more than training.
        """
        examples = self.build_examples(dataset, dataset.encoded[split], trial.model.context)
        return examples.sample(NUM_TRAIN_EVAL_EXAMPLES) if split == "train" else examples

    def build_audit_batch(self, trial: Trial, dataset: Dataset) -> Batch:
        """Return a small training batch on which the model audit measures the loss before training."""
        return next(self.build_split_examples(trial, dataset, "train").iter_batches(AUDIT_BATCH_SIZE))

    def join_rows(self, encoded: EncodedSplit, max_tokens: int) -> EncodedSplit:
        """Return the split for evaluating this task at input lengths of up to `max_tokens` tokens.

        Tasks with short rows concatenate rows. By default, the split is unchanged.
        """
        return encoded

    def score_sentence(self, model: SavedModel, text: str) -> TextScore | ClassPrediction:
        """Return a probe sentence's score or predicted class."""
        raise NotImplementedError

    def describe_labels(self, batch: Batch, dataset: Dataset, length: int) -> str:
        """Return the labels of the first sequence, up to `length` positions, as text, for `h2h inspect`."""
        return dataset.tokenizer.decode(
            [int(label_id) for label_id in batch.labels[0, :length] if int(label_id) != IGNORE_INDEX]
        )

    def write_outputs(self, trial: Trial, dataset: Dataset, model: TrialModel, folder: Path) -> dict[str, float]:
        """Write task-specific files to the run folder; return additional entries for result.json."""
        return {}
