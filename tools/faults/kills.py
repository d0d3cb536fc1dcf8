"""Kills at random moments: a worker, the parent, or all of them at once; then the same command goes on."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import psutil

from .ledger import Ledger, compare
from .seen import How, Seen
from .still import undisturbed
from .world import WITHIN, Running, World, is_alive, last_words

VICTIMS = {"a worker": 5, "the parent": 4, "parent and workers": 2}
SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGKILL, signal.SIGTERM)
ROUNDS = 12
"""so often an experiment that nobody disturbs any more may have to be started again"""


def kills(how: How) -> Iterator[Seen]:
    """Processes of this machine."""
    kinds = ("plain",) if how.short else ("plain", "searched", "taught")
    worlds = [Killing.of(how, kind) for kind in kinds]
    draw = random.Random(how.seed)
    for at, killing in enumerate(worlds):
        share = how.kills // len(worlds) + (at < how.kills % len(worlds))
        killing.run(share, draw)
        yield killing.seen()


@dataclass
class Killing:
    """One kind of experiment that is killed again and again, and begun anew whenever it came through."""

    what: ClassVar[str] = "processes killed at random moments"
    world: World
    wanted: dict[str, Any]
    usual: float
    """seconds that it takes undisturbed"""
    how: How
    more: tuple[str, ...] = ()
    """arguments of h2h run"""
    killed: Counter[str] = field(default_factory=Counter)
    finished: int = 0
    lost: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    orphans: list[tuple[psutil.Process, float]] = field(default_factory=list)
    slowest: float = 0.0
    """seconds that a worker lived on after its parent"""

    @classmethod
    def of(cls, how: How, kind: str) -> Killing:
        still = undisturbed(how, kind)
        return cls(still.world(how.scratch / f"killed-{kind}"), still.numbers, still.seconds, how)

    @property
    def kills(self) -> int:
        return sum(self.killed.values())

    def run(self, kills: int, draw: random.Random) -> None:
        """So many kills; what is under way then is brought to its end."""
        while self.kills < kills and not self.wrong:
            self._one_experiment(kills, draw)

    def _one_experiment(self, kills: int, draw: random.Random) -> None:
        ledger = Ledger(self.world.runs)
        rounds = 0
        while not self.wrong:
            running = self.world.start(*self.more)
            hit = self._disturb(running, ledger, kills, draw)
            self._note_orphans()
            ledger.look()
            if running.code == 0:
                break
            if not hit:
                self.wrong.append(f"ended with {running.code} though nobody was killed: {last_words(running.said)}")
            rounds = 0 if self.kills < kills else rounds + 1
            if rounds > ROUNDS:
                self.wrong.append(f"does not come to an end: {last_words(running.said)}")
        self._wait_for_orphans()
        ledger.close()
        self.lost += ledger.lost
        self.wrong += compare(self.world.runs, self.wanted)
        self.finished += 1
        self.how.say(f"  {self.world.kind}: {self.kills} kills, {self.finished} experiments, {len(self.lost)} lost")
        self.world.anew()

    def _disturb(self, running: Running, ledger: Ledger, kills: int, draw: random.Random) -> bool:
        """Follow one start of the command to its end, with kills on the way; true if somebody was hit."""
        hit = False
        while not running.is_over:
            moment = time.monotonic() + draw.uniform(0, 0.8 * self.usual)
            is_enough = self.kills >= kills
            while not running.is_over and (is_enough or time.monotonic() < moment):
                ledger.look()
                self._note_orphans()
                time.sleep(0.02)
            if not running.is_over and not is_enough:
                # A search gives a point up whose worker dies twice: it may be the point that kills it.
                victims = [v for v in VICTIMS if v != "a worker" or not (hit and self.world.kind == "searched")]
                (victim,) = draw.choices(victims, [VICTIMS[v] for v in victims])
                hit |= self._kill(running, victim, draw.choice(SIGNALS), draw)
        return hit

    def _kill(self, running: Running, victim: str, number: signal.Signals, draw: random.Random) -> bool:
        workers = running.workers()
        if victim == "a worker" and not workers:
            victim = "the parent"  # it is still starting, or reads what came out
        hit = [draw.choice(workers).pid] if victim == "a worker" else [running.process.pid]
        if victim == "parent and workers":
            hit += [worker.pid for worker in workers]
        done = False
        for pid in hit:
            try:
                os.kill(pid, number)
                done = True
            except ProcessLookupError:
                pass  # it had just ended by itself
        if victim != "a worker":
            running.process.wait()
            self.orphans += [(worker, time.monotonic()) for worker in workers]
        if done:
            self.killed[victim] += 1
        return done

    def _note_orphans(self) -> None:
        """Workers whose parent is gone: they end by themselves, and soon."""
        left = []
        for worker, since in self.orphans:
            lived = time.monotonic() - since
            if not is_alive(worker):
                self.slowest = max(self.slowest, lived)
            elif lived > WITHIN:
                self.wrong.append(f"a worker was still there {lived:.0f} s after its parent was killed")
                worker.kill()
            else:
                left.append((worker, since))
        self.orphans = left

    def _wait_for_orphans(self) -> None:
        while self.orphans:
            self._note_orphans()
            time.sleep(0.05)

    def seen(self) -> Seen:
        hit = ", ".join(f"{victim} {times}" for victim, times in sorted(self.killed.items()))
        said = (
            f"{self.finished} experiments of {len(self.wanted) - 1} runs came through with the numbers of the "
            f"undisturbed; killed: {hit}; workers without a parent were gone within {self.slowest:.1f} s"
        )
        return Seen(
            f"{self.what} ({self.world.kind})", said, self.kills, self.kills, tuple(self.lost), tuple(self.wrong)
        )
