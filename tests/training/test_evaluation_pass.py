"""Scores are assigned to the correct examples, whatever their order and batch."""

from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor, nn

from headtohead.config.tasks import Target
from headtohead.data.encoding import TokenRows
from headtohead.data.evaluation_examples import EvaluationExamples
from headtohead.training.task_objectives.classification import ClassificationObjective
from headtohead.training.task_objectives.evaluation_pass import Evaluation, run_evaluation_pass

CPU = torch.device("cpu")


class TokenShareClassifier(nn.Module):
    """Predicts class 1 with a confidence that grows with the fraction of tokens equal to 1, ignoring padding."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> SimpleNamespace:
        share = ((input_ids == 1) & attention_mask).sum(1) / attention_mask.sum(1)
        return SimpleNamespace(logits=torch.stack((torch.zeros_like(share), 4 * share - 2), dim=1))


def test_scores_are_in_the_order_of_the_examples() -> None:
    generator = torch.Generator().manual_seed(0)
    sequences = [
        torch.randint(1, 3, (int(n),), generator=generator) for n in torch.randint(1, 30, (50,), generator=generator)
    ]
    offsets = torch.tensor([0, *(len(sequence) for sequence in sequences)]).cumsum(0)
    labels = torch.randint(0, 2, (50,), generator=generator)

    def score_examples(to_longest: bool, batch_size: int) -> dict[str, list[float]]:
        rows = TokenRows("test", torch.cat(sequences), offsets, labels, to_longest)
        examples = EvaluationExamples(rows, Target.CLASS, 30, pad_id=0)
        evaluation = run_evaluation_pass(
            TokenShareClassifier(), ClassificationObjective(), examples.iter_batches(batch_size), CPU
        )
        return {name: column.tolist() for name, column in evaluation.columns.items()}

    scores = score_examples(to_longest=False, batch_size=50)
    assert scores["labels"] == labels.tolist()
    assert score_examples(to_longest=True, batch_size=7) == scores
    assert score_examples(to_longest=True, batch_size=50) == scores


def test_scores_of_selected_examples_are_in_the_given_order() -> None:
    columns = {"losses": [1.0, 2.0, 4.0], "counts": [1.0, 2.0, 1.0], "correct": [0.0, 1.0, 1.0]}
    selected = Evaluation({name: np.array(column) for name, column in columns.items()}).select_examples(
        np.array([2, 1])
    )
    assert selected.losses.tolist() == [4.0, 2.0]
    assert (selected.loss, selected.accuracy) == (2.0, 2 / 3)
