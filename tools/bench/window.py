"""Window: what a window of 128 costs as the context grows, and against full attention on the fused road."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from . import alone
from .findings import Bar, Finding, Found, How, Table
from .roads import attention_work
from .turns import Best, take_turns

ROUNDS = 7
WINDOW = 128
CONTEXTS = (2_048, 4_096, 8_192, 16_384)
AGAINST_FULL = 8_192
GROWS, FASTER = 9.0, 8.0
KINDS = {"decoder": False, "encoder": True}
MEGA = 1e6
Sides = dict[str, Callable[[], object]]


def window(how: How) -> Found:
    """Time and memory from the shortest to the longest context; at one of them, against full attention."""
    contexts = (1_024, 2_048) if how.short else CONTEXTS
    against = contexts[-1] if how.short else AGAINST_FULL
    rounds = how.rounds(ROUNDS)
    sides: Sides = {}
    for kind, encoder in KINDS.items():
        sides |= {f"{kind} {length}": _windowed(length, encoder) for length in contexts}
        sides[f"{kind} full"] = attention_work(against, None, encoder=encoder)
    best = take_turns(sides, rounds)
    peaks = _peaks(contexts, 1 if how.short else 3)
    for kind in KINDS:
        first, last = (best[f"{kind} {length}"].wall for length in (contexts[0], contexts[-1]))
        yield _growth(f"{kind}, attention: time", first, last, "s", contexts)
        yield _growth(f"{kind}, attention: memory", peaks[kind, contexts[0]], peaks[kind, contexts[-1]], "MB", contexts)
        yield _against_full(kind, best[f"{kind} {against}"], best[f"{kind} full"], against)
    yield from _steps(contexts, rounds)
    yield _all(contexts, best, peaks)


def _windowed(length: int, encoder: bool) -> Callable[[], object]:
    return attention_work(length, WINDOW, encoder=encoder)


def _peaks(contexts: tuple[int, ...], rounds: int) -> dict[tuple[str, int], float]:
    """Megabytes, each in a process of its own."""
    found: dict[tuple[str, int], float] = {}
    for _ in range(rounds):
        for kind, encoder in KINDS.items():
            for length in contexts:
                peak = alone.ask("attention", encoder=encoder, window=WINDOW, context=length)["bytes"] / MEGA
                found[kind, length] = min(peak, found.get((kind, length), float("inf")))
    return found


def _growth(what: str, short: float, long: float, unit: str, contexts: tuple[int, ...]) -> Finding:
    wide = contexts[-1] / contexts[0]
    title = f"window {WINDOW}, {what} from {contexts[0]:,} to {contexts[-1]:,} ({wide:g} times as long)"
    return Finding(title, long, unit, short, f"at {contexts[0]:,}", long / short, bar=Bar(GROWS, at_most=True))


def _against_full(kind: str, banded: Best, full: Best, length: int) -> Finding:
    return Finding(
        f"window {WINDOW}, {kind}, attention at {length:,}, forward and backward",
        1 / banded.wall,
        "passes/s",
        1 / full.wall,
        "full attention, fused",
        full.wall / banded.wall,
        bar=Bar(FASTER),
        on_processor=full.processor / max(banded.processor, 1e-9),
    )


def _steps(contexts: tuple[int, ...], rounds: int) -> Found:
    """The same growth for a whole training step of a decoder, layers and loss included."""
    short, long = contexts[0], contexts[-1]
    asked = {length: partial(alone.ask, "window-step", window=WINDOW, context=length) for length in (short, long)}
    found: dict[int, dict[str, float]] = {}
    for _ in range(max(1, rounds // 2)):
        for length, ask in asked.items():
            answer = ask()
            known = found.setdefault(length, answer)
            found[length] = {key: min(known[key], answer[key]) for key in answer}
    for key, unit, scale in (("seconds", "s", 1.0), ("bytes", "MB", MEGA)):
        what = f"decoder, forward and backward of the model: {'time' if key == 'seconds' else 'memory'}"
        yield _growth(what, found[short][key] / scale, found[long][key] / scale, unit, contexts)


def _all(contexts: tuple[int, ...], best: dict[str, Best], peaks: dict[tuple[str, int], float]) -> Table:
    rows = [
        [kind, f"{length:,}", f"{1e3 * best[f'{kind} {length}'].wall:.1f}", f"{peaks[kind, length]:.1f}"]
        for kind in KINDS
        for length in contexts
    ]
    columns = ["", "context", "ms", "MB at the highest point"]
    note = "The attention operation, forward and backward, one row, 2 heads of 32, one thread."
    return Table(f"A window of {WINDOW} as the context grows", columns, rows, note)
