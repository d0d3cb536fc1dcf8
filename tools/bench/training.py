"""Training: trials per hour of the base decoder, 8 seeds of 500 steps with evaluation, against every peer."""

from __future__ import annotations

from .experiments import build_decoder_experiment
from .measurements import BenchmarkSettings, Measurements
from .trial_rate import OUR_LAYOUT, USUAL_LAYOUT, Peer, compare_trial_rates

ROUNDS = 2
OUR_MODEL = "feed-forward 100 with ReLU, untied, biases everywhere but in queries, keys and values; Adam, fused"
PEERS = [
    Peer(
        "gpt2",
        "transformers GPT-2, plain loop",
        {USUAL_LAYOUT: 2.2, OUR_LAYOUT: 1.6},
        f"none in the mathematics: {OUR_MODEL}",
    ),
    Peer(
        "x-transformers",
        "x-transformers, plain loop",
        {USUAL_LAYOUT: 1.6, OUR_LAYOUT: 1.45},
        "no biases in norms and after attention (832 parameters fewer); otherwise equal",
        has_equal_losses=False,
    ),
    Peer(
        "trainer",
        "transformers Trainer, GPT-2",
        {USUAL_LAYOUT: 2.2},
        "AdamW without weight decay, which is Adam; the loss of a text is a mean of batch means; otherwise equal",
        has_equal_losses=False,
    ),
]


def measure_decoder_training(settings: BenchmarkSettings) -> Measurements:
    """Train 8 seeds for 500 steps; in a short run, 2 seeds for 20 steps."""
    seeds, steps, eval_every = (2, 20, 10) if settings.is_short else (8, 500, 100)
    raw = build_decoder_experiment(settings.data, seeds=seeds, steps=steps, eval_every=eval_every)
    yield from compare_trial_rates(raw, PEERS, settings, settings.get_num_rounds(ROUNDS), settings.scratch / "training")
