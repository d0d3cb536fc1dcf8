"""The undisturbed: every experiment is run once in peace, and its numbers are what all disturbed ones must end with."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from .ledger import numbers
from .seen import How
from .world import World, last_words

SIZES = {"plain": (1500, 50), "searched": (800, 50), "taught": (1000, 50)}
"""steps of a trial, and after how many of them it is saved"""
SHORT = (400, 20)


@dataclass(frozen=True)
class Still:
    """An experiment that nobody disturbed."""

    kind: str
    steps: int
    checkpoint: int
    folder: Path
    numbers: dict[str, Any]
    seconds: float

    def world(self, folder: Path) -> World:
        """The same experiment at another place, to be disturbed."""
        return World(folder, self.kind, self.steps, self.checkpoint)


def undisturbed(how: How, kind: str = "plain") -> Still:
    """Run once for each kind and place."""
    return _undisturbed(how.scratch, kind, how.short, how.say)


@cache
def _undisturbed(scratch: Path, kind: str, short: bool, say: Any) -> Still:
    steps, checkpoint = SHORT if short else SIZES[kind]
    world = World(scratch / f"still-{kind}", kind, steps, checkpoint)
    began = time.monotonic()
    done = world.finish()
    if done.code != 0:
        raise RuntimeError(f"{kind}: undisturbed, it ended with {done.code}: {last_words(done.said)}")
    seconds = time.monotonic() - began
    found = numbers(world.runs)
    say(f"  {kind}: {len(found) - 1} runs, {seconds:.0f} s undisturbed")
    return Still(kind, steps, checkpoint, world.runs, found, seconds)
