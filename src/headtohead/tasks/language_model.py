"""Language modeling: a decoder predicts the next token."""

from __future__ import annotations

from headtohead.config.tasks import LANGUAGE_MODEL
from headtohead.data.batches import IGNORE_INDEX
from headtohead.experiment.schemas import TextScore
from headtohead.saved_models import inference
from headtohead.saved_models.model_io import SavedModel
from headtohead.tasks.base import Task
from headtohead.tasks.dataset import Dataset
from headtohead.training.task_objectives.base import TaskObjective
from headtohead.training.task_objectives.language_modeling import LanguageModelObjective


class LanguageModelTask(Task):
    """Predict the next token of a stream or of sentences; report perplexity."""

    spec = LANGUAGE_MODEL
    label_description = f"the next token at each position; {IGNORE_INDEX} outside the loss"

    def build_objective(self, dataset: Dataset) -> TaskObjective:
        return LanguageModelObjective()

    def score_sentence(self, model: SavedModel, text: str) -> TextScore:
        return inference.score_text(model, text)
