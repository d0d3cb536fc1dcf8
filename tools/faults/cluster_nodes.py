"""Kill a cluster node at random moments: one of two Ray nodes on this machine is killed and replaced."""

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

from .kills import KillCampaign
from .outcome import FaultOutcome, FaultSettings
from .reference_run import get_reference_run
from .workspace import StartedRun, is_worker

PROCESS_KILLS_PER_NODE_KILL = 10
NODE = "a cluster node"
PARENT = "the parent"
VICTIM_WEIGHTS = {NODE: 4, PARENT: 1}


def kill_nodes(settings: FaultSettings) -> Iterator[FaultOutcome]:
    """Check that results of the cluster equal those of local workers without faults."""
    if importlib.util.find_spec("ray") is None:
        yield FaultOutcome("cluster node killed", "", skipped="ray is not installed")
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    reference = get_reference_run(settings)
    nodes = RayNodes(settings)
    try:
        workspace = reference.create_workspace(settings.scratch / "cluster")
        arguments = ("--backend", nodes.backend, "--device", "cpu")
        campaign = NodeKillCampaign(workspace, reference.results, reference.seconds, settings, arguments, nodes=nodes)
        campaign.run(max(1, settings.num_kills // PROCESS_KILLS_PER_NODE_KILL), random.Random(settings.seed))
        yield campaign.build_outcome()
    finally:
        nodes.shut_down()


class RayNodes:
    """Two Ray nodes with one core and their own cache each."""

    def __init__(self, settings: FaultSettings) -> None:
        from ray.cluster_utils import Cluster

        self._caches_folder = settings.scratch / "nodes"
        self._num_nodes = 0
        self.cluster = Cluster()
        self.add_node()
        self.second_node = self.add_node()

    def add_node(self) -> Any:
        self._num_nodes += 1
        cache = str(self._caches_folder / str(self._num_nodes))
        return self.cluster.add_node(num_cpus=1, env_vars={"XDG_CACHE_HOME": cache})

    @property
    def backend(self) -> str:
        return f"ray:{self.cluster.address}"

    def list_workers(self) -> list[psutil.Process]:
        """Return our worker processes on the second node."""
        raylets = self.second_node.all_processes.get("raylet", [])
        children = [psutil.Process(raylet.process.pid).children(recursive=True) for raylet in raylets]
        return [child for processes in children for child in processes if is_worker(child)]

    def replace_second_node(self) -> None:
        """Kill the second node and start a new one."""
        self.cluster.remove_node(self.second_node, allow_graceful=False)
        self.second_node = self.add_node()

    def shut_down(self) -> None:
        import ray

        ray.shutdown()
        self.cluster.shutdown()


@dataclass(kw_only=True)
class NodeKillCampaign(KillCampaign):
    """Kills the second node or the parent."""

    nodes: RayNodes
    title = "cluster node or parent killed at random moments"

    def _kill_victim(self, run: StartedRun, victim: str, signal_number: signal.Signals, rng: random.Random) -> bool:
        (victim,) = rng.choices(list(VICTIM_WEIGHTS), list(VICTIM_WEIGHTS.values()))
        workers = self.nodes.list_workers()
        if victim == PARENT:
            os.kill(run.process.pid, signal_number)
            run.process.wait()
        else:
            self.nodes.replace_second_node()
        self.orphans += [(worker, time.monotonic()) for worker in workers]
        self.kill_counts[victim] += 1
        return True
