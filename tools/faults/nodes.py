"""A cluster's machine that dies at random moments: of two Ray nodes on this machine, one is killed and replaced."""

from __future__ import annotations

import importlib.util
import os
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psutil

from .kills import Killing
from .seen import How, Seen
from .still import undisturbed
from .world import Running, is_worker

SHARE = 10
"""one node for so many processes that are killed"""
MACHINE, PARENT = "the cluster's machine", "the parent"
WEIGHTS = {MACHINE: 4, PARENT: 1}


def nodes(how: How) -> Iterator[Seen]:
    """The cluster's numbers must be those of local workers that nobody disturbed."""
    if importlib.util.find_spec("ray") is None:
        yield Seen("a cluster's machine killed", "", skipped="ray is not installed")
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    still = undisturbed(how)
    machines = Machines(how)
    try:
        world = still.world(how.scratch / "cluster")
        more = ("--backend", machines.on, "--device", "cpu")
        killing = Dying(world, still.numbers, still.seconds, how, more, machines=machines)
        killing.run(max(1, how.kills // SHARE), random.Random(how.seed))
        yield killing.seen()
    finally:
        machines.end()


class Machines:
    """Two Ray nodes of one core each, with caches of their own."""

    def __init__(self, how: How) -> None:
        from ray.cluster_utils import Cluster

        self._root, self._count = how.scratch / "machines", 0
        self.cluster = Cluster()
        self.add()
        self.second = self.add()

    def add(self) -> Any:
        self._count += 1
        return self.cluster.add_node(num_cpus=1, env_vars={"XDG_CACHE_HOME": str(self._root / str(self._count))})

    @property
    def on(self) -> str:
        return f"ray:{self.cluster.address}"

    def workers(self) -> list[psutil.Process]:
        """Our processes on the second machine."""
        raylets = self.second.all_processes.get("raylet", [])
        found = [child for one in raylets for child in psutil.Process(one.process.pid).children(recursive=True)]
        return [child for child in found if is_worker(child)]

    def kill(self) -> None:
        """The second machine dies, and another one takes its place."""
        self.cluster.remove_node(self.second, allow_graceful=False)
        self.second = self.add()

    def end(self) -> None:
        import ray

        ray.shutdown()
        self.cluster.shutdown()


@dataclass(kw_only=True)
class Dying(Killing):
    """The same with other victims."""

    machines: Machines
    what = "a cluster's machine, or who asked it, killed at random moments"

    def _kill(self, running: Running, victim: str, number: signal.Signals, draw: random.Random) -> bool:
        (victim,) = draw.choices(list(WEIGHTS), list(WEIGHTS.values()))
        workers = self.machines.workers()
        if victim == PARENT:
            os.kill(running.process.pid, number)
            running.process.wait()
        else:
            self.machines.kill()
        self.orphans += [(worker, time.monotonic()) for worker in workers]
        self.killed[victim] += 1
        return True
