"""Time implementations ("contestants") alternately, so that other load affects all; the best round of each counts."""

from __future__ import annotations

import gc
import resource
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from .measurements import Measurement, Target


@dataclass
class BestTiming:
    """The shortest wall time and CPU time of several rounds."""

    wall_seconds: float = float("inf")
    cpu_seconds: float = float("inf")
    value: Any = None
    """return value of the fastest round"""


def read_cpu_seconds() -> float:
    """Return the CPU time of this process and of its children that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def run_alternating(
    contestants: Mapping[str, Callable[[], Any]],
    num_rounds: int,
    *,
    warm_up: bool = True,
    single_round_names: Collection[str] = (),
) -> dict[str, BestTiming]:
    """Run every contestant once per round and return the best timing of each.

    Args:
        warm_up: Call each contestant once without measuring it, to fill caches.
        contestants: Functions to time, by name.
        num_rounds: How often each contestant runs.
        single_round_names: Contestants without a target, which run in the first round only.
    """
    best = {name: BestTiming() for name in contestants}
    if warm_up:
        for contestant in contestants.values():
            contestant()
    for round_index in range(num_rounds):
        for name, contestant in contestants.items():
            if round_index and name in single_round_names:
                continue
            gc.collect()
            wall_start, cpu_start = time.perf_counter(), read_cpu_seconds()
            value = contestant()
            wall_seconds, cpu_seconds = time.perf_counter() - wall_start, read_cpu_seconds() - cpu_start
            timing = best[name]
            if wall_seconds < timing.wall_seconds:
                timing.wall_seconds, timing.value = wall_seconds, value
            timing.cpu_seconds = min(timing.cpu_seconds, cpu_seconds)
    return best


@dataclass(frozen=True)
class Comparison:
    """Two implementations of the same work in this process, or one of which only the cost is measured."""

    name: str
    unit: str
    amount: float
    """number of units that one call produces"""
    ours: Callable[[], object]
    theirs: Callable[[], object] | None = None
    peer: str = "transformers"
    min_ratio: float | None = None
    """target for our speed relative to theirs"""


def measure_comparison(comparison: Comparison, num_rounds: int) -> Measurement:
    """Return a comparison in units per second."""
    contestants = {"ours": comparison.ours} | ({"theirs": comparison.theirs} if comparison.theirs else {})
    best = run_alternating(contestants, num_rounds)
    ours, theirs = best["ours"], best.get("theirs")
    rate = comparison.amount / ours.wall_seconds
    if theirs is None:
        return Measurement(comparison.name, rate, comparison.unit)
    return Measurement(
        comparison.name,
        rate,
        comparison.unit,
        comparison.amount / theirs.wall_seconds,
        comparison.peer,
        theirs.wall_seconds / ours.wall_seconds,
        target=None if comparison.min_ratio is None else Target(comparison.min_ratio),
        cpu_time_ratio=theirs.cpu_seconds / max(ours.cpu_seconds, 1e-9),
    )
