"""Classifier: the base encoder, 15 epochs on the speeches, 8 seeds, against torch's own TransformerEncoder."""

from __future__ import annotations

from . import lessons, trials
from .findings import Found, How

ROUNDS = 2

RIVALS = [
    trials.Rival(
        "encoder",
        "torch.nn.TransformerEncoder, plain loop",
        {trials.PEOPLE: 1.5},
        "nothing in the mathematics: feed-forward 4 x width with ReLU, the same padding mask, no biases in queries, "
        "keys and values; Adam, fused",
    ),
]


def classifier(how: How) -> Found:
    """Eight seeds of 15 epochs; in short, two of one."""
    size = {"seeds": 2, "epochs": 1} if how.short else {"seeds": 8, "epochs": 15}
    raw = lessons.classifier(how.data, **size)
    yield from trials.contest(raw, RIVALS, how, how.rounds(ROUNDS), how.scratch / "classifier")
