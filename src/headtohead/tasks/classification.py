"""Classification: an encoder predicts the class of a text."""

from __future__ import annotations

import torch
from torch import Tensor

from headtohead.config.experiment import Trial
from headtohead.config.tables.model import PretrainingConfig, TransformerConfig
from headtohead.config.tasks import CLASSIFY
from headtohead.data.batches import Batch
from headtohead.data.encoding import EncodedSplit, TokenRows
from headtohead.distillation.teacher import RunTrial
from headtohead.experiment.schemas import ClassPrediction
from headtohead.nn.transformer import Transformer
from headtohead.progress import ProgressCallback, ignore_progress
from headtohead.saved_models import inference
from headtohead.saved_models.model_io import SavedModel
from headtohead.tasks.base import Task, TrialModel
from headtohead.tasks.dataset import Dataset
from headtohead.tasks.pretraining import load_encoder, train_encoder
from headtohead.training.task_objectives.base import TaskObjective
from headtohead.training.task_objectives.classification import ClassificationObjective


class ClassificationTask(Task):
    """Predict the class of labeled rows with an encoder; report accuracy."""

    spec = CLASSIFY
    label_description = "the class of each text"

    def train_dependencies(
        self, trial: Trial, dataset: Dataset, run_trial: RunTrial, on_progress: ProgressCallback = ignore_progress
    ) -> None:
        """Train the encoder named by model.init_from, if it is trained from scratch."""
        if isinstance(trial.model, TransformerConfig) and isinstance(trial.model.init_from, PretrainingConfig):
            train_encoder(trial, dataset.corpus.digest, run_trial, on_progress)

    def build_model(self, trial: Trial, dataset: Dataset, run_trial: RunTrial | None = None) -> TrialModel:
        """Build the classifier at step 0, with the encoder weights named by model.init_from, if given."""
        model = super().build_model(trial, dataset, run_trial)
        if isinstance(model, Transformer) and run_trial is not None:
            load_encoder(model, trial, dataset, run_trial)
        return model

    def build_objective(self, dataset: Dataset) -> TaskObjective:
        return ClassificationObjective()

    def join_rows(self, encoded: EncodedSplit, max_tokens: int) -> EncodedSplit:
        return join_rows_by_class(encoded, max_tokens) if isinstance(encoded, TokenRows) else encoded

    def score_sentence(self, model: SavedModel, text: str) -> ClassPrediction:
        return inference.predict_class(model, text)

    def describe_labels(self, batch: Batch, dataset: Dataset, length: int) -> str:
        return dataset.label_names[int(batch.labels[0])]


def join_rows_by_class(rows: TokenRows, max_tokens: int) -> TokenRows:
    """Concatenate rows of each class to up to `max_tokens` tokens, to evaluate a classifier at longer inputs.

    A longer input holds more evidence, so a model that can use it scores higher. Rows longer than the limit are not
    joined.
    """
    assert rows.labels is not None
    joined_rows: list[Tensor] = []
    labels: list[int] = []
    for label in range(int(rows.labels.max()) + 1):
        pending_rows: list[Tensor] = []
        for index in torch.nonzero(rows.labels == label).flatten().tolist():
            row = rows.token_ids[rows.row_offsets[index] : rows.row_offsets[index + 1]]
            if pending_rows and sum(map(len, pending_rows)) + len(row) > max_tokens:
                joined_rows.append(torch.cat(pending_rows))
                labels.append(label)
                pending_rows = []
            pending_rows.append(row)
        if pending_rows:
            joined_rows.append(torch.cat(pending_rows))
            labels.append(label)
    offsets = torch.tensor([0, *(len(joined_row) for joined_row in joined_rows)]).cumsum(0)
    return TokenRows(rows.name, torch.cat(joined_rows), offsets, torch.tensor(labels))
