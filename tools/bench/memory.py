"""Memory: peak memory of a training step with a large vocabulary, ours against plain cross entropy."""

from __future__ import annotations

from .isolated import run_isolated
from .measurements import BenchmarkSettings, Measurement, Measurements, Target

ROUNDS = 3
MEGABYTE = 1e6


def memory(settings: BenchmarkSettings) -> Measurements:
    """Measure 50,257 tokens of vocabulary and 4,096 predictions, each contestant in its own process."""
    vocab_size, tokens, context = (5_000, 1_024, 64) if settings.is_short else (50_257, 4_096, 256)
    options = {"vocab_size": vocab_size, "tokens": tokens, "context": context}
    peaks: dict[str, float] = {}
    for _ in range(settings.get_rounds(ROUNDS)):
        for loss in ("chunked", "plain"):
            peak = run_isolated("training-step", loss=loss, **options)["bytes"]
            peaks[loss] = min(peak, peaks.get(loss, peak))
    yield Measurement(
        f"peak memory of a step with vocabulary {vocab_size:,} and {tokens:,} tokens",
        peaks["chunked"] / MEGABYTE,
        "MB",
        peaks["plain"] / MEGABYTE,
        "plain cross entropy",
        peaks["chunked"] / peaks["plain"],
        "share",
        Target(1 / 3, is_maximum=True),
    )
