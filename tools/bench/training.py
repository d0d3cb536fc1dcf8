"""Training: the base decoder, trials per hour over 8 seeds of 500 steps, scoring included, against every peer."""

from __future__ import annotations

from . import lessons, trials
from .findings import Found, How

ROUNDS = 2
OURS_HAS = "feed-forward 100 with ReLU, untied, biases everywhere but in queries, keys and values; Adam, fused"

RIVALS = [
    trials.Rival(
        "gpt2",
        "transformers GPT-2, plain loop",
        {trials.PEOPLE: 1.6, trials.OURS: 1.45},
        f"nothing in the mathematics: {OURS_HAS}",
    ),
    trials.Rival(
        "x-transformers",
        "x-transformers, plain loop",
        {trials.PEOPLE: 1.6, trials.OURS: 1.45},
        "no biases in norms and after attention (832 parameters fewer); the rest is the same",
        equal=False,
    ),
    trials.Rival(
        "trainer",
        "transformers Trainer, GPT-2",
        {trials.PEOPLE: 2.2},
        "AdamW without decay, which is Adam; a text's loss is a mean of its batches' means; the rest is the same",
        equal=False,
    ),
]


def training(how: How) -> Found:
    """Eight seeds of 500 steps; in short, two of twenty."""
    size = {"seeds": 2, "steps": 20, "eval_every": 10} if how.short else {"seeds": 8, "steps": 500, "eval_every": 100}
    raw = lessons.decoder(how.data, **size)
    yield from trials.contest(raw, RIVALS, how, how.rounds(ROUNDS), how.scratch / "training")
