"""The objective of classifiers: predict the class of a text."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headtohead.data.batches import Batch
from headtohead.training.task_objectives.base import ComposedObjective


class ClassificationObjective(ComposedObjective):
    """Predict the class of a text."""

    metric = "accuracy"

    def score_batch(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Return each row's loss, label and predicted class."""
        logits = model(batch.input_ids, batch.attention_mask).logits
        losses = F.cross_entropy(logits, batch.labels, reduction="none")
        predicted_classes = logits.argmax(-1)
        return {
            "losses": losses,
            "counts": torch.ones_like(batch.labels),
            "correct": predicted_classes == batch.labels,
            "labels": batch.labels,
            "guessed": predicted_classes,
        }
