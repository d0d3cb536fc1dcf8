"""Memory: peak memory of a training step with a large vocabulary, ours against plain cross entropy."""

from __future__ import annotations

from .isolated import run_isolated
from .measurements import BenchmarkSettings, Measurement, Measurements, Target

ROUNDS = 3
MEGABYTE = 1e6
"""in bytes"""


def measure_memory(settings: BenchmarkSettings) -> Measurements:
    """Measure 50,257 tokens of vocabulary and 4,096 predictions, each contestant in its own process."""
    vocab_size, num_tokens, context = (5_000, 1_024, 64) if settings.is_short else (50_257, 4_096, 256)
    options = {"vocab_size": vocab_size, "tokens": num_tokens, "context": context}
    peak_bytes: dict[str, float] = {}
    for _ in range(settings.get_num_rounds(ROUNDS)):
        for loss in ("chunked", "plain"):
            num_bytes = run_isolated("training-step", loss=loss, **options)["bytes"]
            peak_bytes[loss] = min(num_bytes, peak_bytes.get(loss, num_bytes))
    yield Measurement(
        f"peak memory of a step with vocabulary {vocab_size:,} and {num_tokens:,} tokens",
        peak_bytes["chunked"] / MEGABYTE,
        "MB",
        peak_bytes["plain"] / MEGABYTE,
        "plain cross entropy",
        peak_bytes["chunked"] / peak_bytes["plain"],
        "share",
        Target(1 / 3, is_maximum=True),
    )
