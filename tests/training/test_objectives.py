"""Scores belong to their examples, in whatever order and company these are read."""

from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor, nn

from headtohead.config.tasks import Target
from headtohead.data.encoding import TokenRows
from headtohead.data.examples import EvaluationExamples
from headtohead.training.objectives import ClassificationObjective, Evaluation, evaluate

CPU = torch.device("cpu")


class Counting(nn.Module):
    """Says class 1 the surer, the more of the text's tokens are 1; padding is not read."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> SimpleNamespace:
        share = ((input_ids == 1) & attention_mask).sum(1) / attention_mask.sum(1)
        return SimpleNamespace(logits=torch.stack((torch.zeros_like(share), 4 * share - 2), dim=1))


def test_scores_come_back_in_the_order_of_the_rows() -> None:
    draw = torch.Generator().manual_seed(0)
    texts = [torch.randint(1, 3, (int(n),), generator=draw) for n in torch.randint(1, 30, (50,), generator=draw)]
    offsets = torch.tensor([0, *(len(text) for text in texts)]).cumsum(0)
    labels = torch.randint(0, 2, (50,), generator=draw)

    def scored(to_longest: bool, size: int) -> dict[str, list[float]]:
        rows = TokenRows("test", torch.cat(texts), offsets, labels, to_longest)
        made = EvaluationExamples(rows, Target.CLASS, 30, pad_id=0, tokens=torch.ones_like(labels))
        found = evaluate(Counting(), ClassificationObjective(), made.batches(size), CPU)
        return {name: column.tolist() for name, column in found.columns.items()}

    plain = scored(to_longest=False, size=50)
    assert plain["labels"] == labels.tolist()
    assert scored(to_longest=True, size=7) == scored(to_longest=True, size=50) == plain


def test_scores_of_some_rows_are_picked_from_those_of_all() -> None:
    columns = {"losses": [1.0, 2.0, 4.0], "counts": [1.0, 2.0, 1.0], "correct": [0.0, 1.0, 1.0]}
    found = Evaluation({name: np.array(column) for name, column in columns.items()}).pick(np.array([2, 1]))
    assert found.losses.tolist() == [4.0, 2.0]
    assert (found.loss, found.accuracy) == (2.0, 2 / 3)
