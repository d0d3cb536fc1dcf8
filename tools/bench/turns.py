"""Contestants take turns, so that a busy moment of the machine hits all of them; the best turn of each counts."""

from __future__ import annotations

import gc
import resource
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from .findings import Bar, Finding


@dataclass
class Best:
    """The best of several turns: seconds on the wall, seconds of processors, and what the quickest turn gave."""

    wall: float = float("inf")
    processor: float = float("inf")
    answer: Any = None


def processor_seconds() -> float:
    """Of this process and of its children that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def take_turns(
    sides: Mapping[str, Callable[[], Any]], rounds: int, *, warm: bool = True, once: Collection[str] = ()
) -> dict[str, Best]:
    """Every contestant once a round; those in `once`, of whom nothing is promised, in the first round only. With
    `warm`, a first call is not counted: it makes what later ones reuse."""
    best = {name: Best() for name in sides}
    if warm:
        for side in sides.values():
            side()
    for turn in range(rounds):
        for name, side in sides.items():
            if turn and name in once:
                continue
            gc.collect()
            wall, processor = time.perf_counter(), processor_seconds()
            answer = side()
            wall, processor = time.perf_counter() - wall, processor_seconds() - processor
            found = best[name]
            if wall < found.wall:
                found.wall, found.answer = wall, answer
            found.processor = min(found.processor, processor)
    return best


@dataclass(frozen=True)
class Contest:
    """Two ways to do the same work, in this process; or one way, to see what it costs."""

    what: str
    unit: str
    amount: float
    """how much of the unit one call makes"""
    ours: Callable[[], object]
    theirs: Callable[[], object] | None = None
    other: str = "transformers"
    wanted: float | None = None
    """the ratio that is promised"""


def hold(contest: Contest, rounds: int) -> Finding:
    """The contest as a finding, in units a second."""
    sides = {"ours": contest.ours} if contest.theirs is None else {"ours": contest.ours, "theirs": contest.theirs}
    best = take_turns(sides, rounds)
    ours, theirs = best["ours"], best.get("theirs")
    bar = None if contest.wanted is None else Bar(contest.wanted)
    if theirs is None:
        return Finding(contest.what, contest.amount / ours.wall, contest.unit)
    return Finding(
        contest.what,
        contest.amount / ours.wall,
        contest.unit,
        contest.amount / theirs.wall,
        contest.other,
        theirs.wall / ours.wall,
        bar=bar,
        on_processor=theirs.processor / max(ours.processor, 1e-9),
    )
