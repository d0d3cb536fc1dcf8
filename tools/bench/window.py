"""Window: time and memory of a window of 128 as the context grows, and compared with full attention."""

from __future__ import annotations

from collections.abc import Callable

from .attention_op import build_attention_pass
from .isolated import run_isolated
from .measurements import BenchmarkSettings, Measurement, Measurements, Table, Target
from .timing import BestTiming, run_alternating

ROUNDS = 7
WINDOW_SIZE = 128
CONTEXTS = (2_048, 4_096, 8_192, 16_384)
FULL_ATTENTION_CONTEXT = 8_192
MAX_GROWTH = 9.0
"""target for the growth of time and memory from the shortest to the longest context"""
MIN_SPEEDUP = 8.0
"""target for the speed compared with full attention"""
MODEL_KINDS = {"decoder": False, "encoder": True}
"""whether each kind of model is an encoder"""
MEGABYTE = 1e6
PeakMemory = dict[tuple[str, int], float]
"""in megabytes, by kind of model and context length"""


def measure_window(settings: BenchmarkSettings) -> Measurements:
    """Measure time and memory from the shortest to the longest context; compare one context with full attention."""
    contexts = (1_024, 2_048) if settings.is_short else CONTEXTS
    full_context = contexts[-1] if settings.is_short else FULL_ATTENTION_CONTEXT
    rounds = settings.get_num_rounds(ROUNDS)
    contestants: dict[str, Callable[[], object]] = {}
    for kind, is_encoder in MODEL_KINDS.items():
        for context in contexts:
            contestants[f"{kind} {context}"] = build_attention_pass(context, WINDOW_SIZE, is_encoder=is_encoder)
        contestants[f"{kind} full"] = build_attention_pass(full_context, None, is_encoder=is_encoder)
    best = run_alternating(contestants, rounds)
    peaks = _measure_peak_memory(contexts, 1 if settings.is_short else 3)
    for kind in MODEL_KINDS:
        first, last = (best[f"{kind} {context}"].wall_seconds for context in (contexts[0], contexts[-1]))
        yield _compare_growth(f"{kind}, attention: time", first, last, "s", contexts)
        first, last = peaks[kind, contexts[0]], peaks[kind, contexts[-1]]
        yield _compare_growth(f"{kind}, attention: memory", first, last, "MB", contexts)
        yield _compare_with_full_attention(kind, best[f"{kind} {full_context}"], best[f"{kind} full"], full_context)
    yield from _measure_model_growth(contexts, rounds)
    yield _build_growth_table(contexts, best, peaks)


def _measure_peak_memory(contexts: tuple[int, ...], rounds: int) -> PeakMemory:
    """Return the lowest peak over the rounds, each measured in its own process."""
    peaks: PeakMemory = {}
    for _ in range(rounds):
        for kind, is_encoder in MODEL_KINDS.items():
            for context in contexts:
                result = run_isolated("attention", is_encoder=is_encoder, window=WINDOW_SIZE, context=context)
                peaks[kind, context] = min(result["bytes"] / MEGABYTE, peaks.get((kind, context), float("inf")))
    return peaks


def _compare_growth(name: str, first: float, last: float, unit: str, contexts: tuple[int, ...]) -> Measurement:
    """Return the growth of a quantity from the shortest to the longest context."""
    growth = contexts[-1] / contexts[0]
    title = f"window {WINDOW_SIZE}, {name} from {contexts[0]:,} to {contexts[-1]:,} ({growth:g} times as long)"
    target = Target(MAX_GROWTH, is_maximum=True)
    return Measurement(title, last, unit, first, f"at {contexts[0]:,}", last / first, target=target)


def _compare_with_full_attention(kind: str, windowed: BestTiming, full: BestTiming, context: int) -> Measurement:
    """Return the speed of windowed attention compared with full attention at one context length."""
    return Measurement(
        f"window {WINDOW_SIZE}, {kind}, attention at {context:,}, forward and backward",
        1 / windowed.wall_seconds,
        "passes/s",
        1 / full.wall_seconds,
        "full attention, fused",
        full.wall_seconds / windowed.wall_seconds,
        target=Target(MIN_SPEEDUP),
        cpu_time_ratio=full.cpu_seconds / max(windowed.cpu_seconds, 1e-9),
    )


def _measure_model_growth(contexts: tuple[int, ...], rounds: int) -> Measurements:
    """Measure the growth for forward and backward pass of a whole decoder, layers and loss included."""
    best: dict[int, dict[str, float]] = {}
    for _ in range(max(1, rounds // 2)):
        for context in (contexts[0], contexts[-1]):
            result = run_isolated("window-step", window=WINDOW_SIZE, context=context)
            previous = best.setdefault(context, result)
            best[context] = {key: min(previous[key], result[key]) for key in result}
    for key, quantity, unit, scale in (("seconds", "time", "s", 1.0), ("bytes", "memory", "MB", MEGABYTE)):
        first, last = (best[context][key] / scale for context in (contexts[0], contexts[-1]))
        name = f"decoder, forward and backward pass of the model: {quantity}"
        yield _compare_growth(name, first, last, unit, contexts)


def _build_growth_table(contexts: tuple[int, ...], best: dict[str, BestTiming], peaks: PeakMemory) -> Table:
    """Return time and peak memory of attention by kind of model and context length."""
    rows = []
    for kind in MODEL_KINDS:
        for context in contexts:
            milliseconds = 1e3 * best[f"{kind} {context}"].wall_seconds
            rows.append([kind, f"{context:,}", f"{milliseconds:.1f}", f"{peaks[kind, context]:.1f}"])
    note = "The attention operation, forward and backward, one row, 2 heads of 32, one thread."
    columns = ["model", "context", "ms", "peak memory, MB"]
    return Table(f"A window of {WINDOW_SIZE} as the context grows", columns, rows, note)
