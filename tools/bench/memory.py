"""Memory: the highest point of a step at a large vocabulary, ours against plain cross entropy."""

from __future__ import annotations

from . import alone
from .findings import Bar, Finding, Found, How

ROUNDS = 3
MEGA = 1e6


def memory(how: How) -> Found:
    """50,257 words and 4,096 tokens, each side in a process of its own."""
    size = {"vocab": 5_000, "tokens": 1_024, "context": 64} if how.short else {}
    options = {"vocab": 50_257, "tokens": 4_096, "context": 256, **size}
    peaks: dict[str, float] = {}
    for _ in range(how.rounds(ROUNDS)):
        for kind in ("ours", "plain"):
            found = alone.ask("loss-step", kind=kind, **options)["bytes"]
            peaks[kind] = min(found, peaks.get(kind, float("inf")))
    yield Finding(
        f"a step at vocabulary {options['vocab']:,} and {options['tokens']:,} tokens, at its highest point",
        peaks["ours"] / MEGA,
        "MB",
        peaks["plain"] / MEGA,
        "plain cross entropy",
        peaks["ours"] / peaks["plain"],
        "share",
        Bar(1 / 3, at_most=True),
    )
