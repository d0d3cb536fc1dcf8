"""Fine-tuning: trials per hour of MiniLM, 2 seeds of 100 steps, against a plain loop and transformers' Trainer."""

from __future__ import annotations

from .experiments import build_finetuning_experiment
from .measurements import BenchmarkSettings, Measurements
from .trial_rate import USUAL_LAYOUT, Peer, compare_trial_rates

ROUNDS = 2
PEERS = [
    Peer(
        "minilm",
        "transformers MiniLM, plain loop",
        {USUAL_LAYOUT: 1.0},
        "none in the mathematics: mean pooling, dropout and a linear layer; Adam, fused. Dropout draws other numbers",
    ),
    Peer(
        "minilm-trainer",
        "transformers Trainer, MiniLM",
        {USUAL_LAYOUT: 1.3},
        "AdamW without weight decay, which is Adam; the loss of a text is a mean of batch means; otherwise equal",
        has_equal_losses=False,
    ),
]


def measure_finetuning(settings: BenchmarkSettings) -> Measurements:
    """Train 2 seeds for 100 steps; in a short run, 1 seed for 4 steps."""
    seeds, steps, eval_every = (1, 4, 2) if settings.is_short else (2, 100, 50)
    raw = build_finetuning_experiment(settings.data, seeds=seeds, steps=steps, eval_every=eval_every)
    num_rounds = settings.get_num_rounds(ROUNDS)
    yield from compare_trial_rates(raw, PEERS, settings, num_rounds, settings.scratch / "finetuning")
