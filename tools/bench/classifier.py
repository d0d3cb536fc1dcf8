"""Classifier: trials per hour of the base encoder, 8 seeds of 15 epochs, against torch's own TransformerEncoder."""

from __future__ import annotations

from .experiments import build_classifier_experiment
from .measurements import BenchmarkSettings, Measurements
from .trial_rate import OUR_LAYOUT, USUAL_LAYOUT, Peer, compare_trial_rates

ROUNDS = 2
PEERS = [
    Peer(
        "encoder",
        "torch.nn.TransformerEncoder, plain loop",
        {USUAL_LAYOUT: 1.6, OUR_LAYOUT: 1.3},
        "none in the mathematics: feed-forward 4 x width with ReLU, the same padding mask, no biases in queries, keys "
        "and values; Adam, fused",
    ),
]


def measure_classifier_training(settings: BenchmarkSettings) -> Measurements:
    """Train 8 seeds for 15 epochs; in a short run, 2 seeds for one epoch."""
    seeds, epochs = (2, 1) if settings.is_short else (8, 15)
    raw = build_classifier_experiment(settings.data, seeds=seeds, epochs=epochs)
    yield from compare_trial_rates(
        raw, PEERS, settings, settings.get_num_rounds(ROUNDS), settings.scratch / "classifier"
    )
