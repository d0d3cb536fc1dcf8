"""A clock that is moved, forward and back, while experiments run; and files with times of the future or of 1970."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

from .ledger import Ledger, compare
from .seen import How, Seen
from .still import undisturbed
from .trials import cache_of, outcome, stop_at, trial_of
from .world import last_words

MOVED = Path(__file__).parent / "moved"
DAY = 86400.0
MOVES = (3 * 365 * DAY, -DAY, -20 * 365 * DAY, 3600.0, 0.0)


def clock(how: How) -> Iterator[Seen]:
    """What is trained may not depend on when."""
    yield _file_times(how)
    if not how.short:
        yield _moved(how)


def _file_times(how: How) -> Seen:
    """A run that is gone on with though its files say that they were written in ten years, or in 1970."""
    still = undisturbed(how)
    world = still.world(how.scratch / "times")
    folder = world.runs / "baseline" / "seed-0"
    trial, draw = trial_of(world), random.Random(how.seed)
    wrong: list[str] = []
    with cache_of(world):
        for step in (world.steps // 4, world.steps // 2, 3 * world.steps // 4):
            stop_at(trial, folder, step)
            for path in (*world.runs.rglob("*"), *world.cache.rglob("*")):
                when = draw.choice((0.0, time.time() + 3650 * DAY))
                os.utime(path, (when, when))
        said = outcome(trial, folder)
    wrong += [f"did not go on: {said}"] if said else []
    wrong += compare(world.runs, {"baseline/seed-0": still.numbers["baseline/seed-0"]})
    return Seen("files with times of 1970 and of the future", "the same numbers", 3, wrong=tuple(wrong))


def _moved(how: How) -> Seen:
    """The processes' clock, moved while they work and between two starts."""
    still = undisturbed(how)
    world = still.world(how.scratch / "clock")
    file = world.folder / "seconds-off"
    world.variables |= {"PYTHONPATH": str(MOVED), "H2H_FAULTS_CLOCK": str(file)}
    ledger, draw = Ledger(world.runs), random.Random(how.seed)
    moves, wrong = 0, []
    for stop in (True, False):
        running = world.start()
        until = time.monotonic() + 0.7 * still.seconds
        while not running.is_over and (not stop or time.monotonic() < until):
            file.write_text(str(draw.choice(MOVES)), encoding="utf-8")
            moves += 1
            ledger.look()
            time.sleep(0.3)
        if stop:
            running.end()
    if running.code:
        wrong.append(f"ended with {running.code}: {last_words(running.said)}")
    ledger.close()
    wrong += compare(world.runs, still.numbers)
    said = "the same numbers, after a kill and --resume in between"
    return Seen("clock moved by hours to years, forward and back", said, moves, 1, tuple(ledger.lost), tuple(wrong))
