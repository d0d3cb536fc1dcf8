"""Kill processes at random moments (a worker, the parent, or all of them), then resume with the same command."""

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

from .outcome import FaultOutcome, FaultSettings
from .reference_run import get_reference_run
from .run_monitor import RunMonitor, compare_with_reference
from .workspace import ORPHAN_TIMEOUT, StartedRun, Workspace, get_last_line, is_alive

VICTIM_WEIGHTS = {"a worker": 5, "the parent": 4, "parent and workers": 2}
SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGKILL, signal.SIGTERM)
MAX_RESUMES = 12
"""maximum number of starts of an experiment after the last kill"""


def kill_processes(settings: FaultSettings) -> Iterator[FaultOutcome]:
    """Kill commands and workers on this machine at random moments."""
    kinds = ("plain",) if settings.is_short else ("plain", "search", "distillation")
    campaigns = [KillCampaign.create(settings, kind) for kind in kinds]
    rng = random.Random(settings.seed)
    for index, campaign in enumerate(campaigns):
        num_kills = settings.num_kills // len(campaigns) + (index < settings.num_kills % len(campaigns))
        campaign.run(num_kills, rng)
        yield campaign.build_outcome()


@dataclass
class KillCampaign:
    """Kills processes of one kind of experiment repeatedly; a finished experiment is started again."""

    title: ClassVar[str] = "processes killed at random moments"
    workspace: Workspace
    expected: dict[str, Any]
    """results of the reference run"""
    usual_seconds: float
    """duration without faults"""
    settings: FaultSettings
    arguments: tuple[str, ...] = ()
    """command-line arguments of h2h run"""
    kill_counts: Counter[str] = field(default_factory=Counter)
    num_finished: int = 0
    lost: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    orphans: list[tuple[psutil.Process, float]] = field(default_factory=list)
    """workers whose parent was killed, and the time of the kill"""
    max_orphan_seconds: float = 0.0
    """longest time that a worker outlived its parent"""

    @classmethod
    def create(cls, settings: FaultSettings, kind: str) -> KillCampaign:
        reference = get_reference_run(settings, kind)
        workspace = reference.create_workspace(settings.scratch / f"killed-{kind}")
        return cls(workspace, reference.results, reference.seconds, settings)

    @property
    def num_kills(self) -> int:
        return sum(self.kill_counts.values())

    def run(self, max_kills: int, rng: random.Random) -> None:
        """Run experiments until this many kills; the last experiment runs to its end."""
        while self.num_kills < max_kills and not self.errors:
            self._run_experiment(max_kills, rng)

    def _run_experiment(self, max_kills: int, rng: random.Random) -> None:
        """Run one experiment to its end, resuming it after every kill, and check its results."""
        monitor = RunMonitor(self.workspace.runs)
        num_resumes = 0
        while not self.errors:
            run = self.workspace.start(*self.arguments)
            was_killed = self._follow_run(run, monitor, max_kills, rng)
            self._check_orphans()
            monitor.update()
            if run.exit_code == 0:
                break
            if not was_killed:
                self.errors.append(f"exit code {run.exit_code} without a kill: {get_last_line(run.output)}")
            num_resumes = 0 if self.num_kills < max_kills else num_resumes + 1
            if num_resumes > MAX_RESUMES:
                self.errors.append(f"does not finish: {get_last_line(run.output)}")
        self._wait_for_orphans()
        monitor.verify_results()
        self.lost += monitor.lost
        self.errors += compare_with_reference(self.workspace.runs, self.expected)
        self.num_finished += 1
        counts = f"{self.num_kills} kills, {self.num_finished} experiments, {len(self.lost)} lost"
        self.settings.print_progress(f"  {self.workspace.kind}: {counts}")
        self.workspace.reset()

    def _follow_run(self, run: StartedRun, monitor: RunMonitor, max_kills: int, rng: random.Random) -> bool:
        """Follow a command to its end and kill processes at random moments; return whether one was killed."""
        was_killed = False
        while not run.has_ended:
            next_kill_time = time.monotonic() + rng.uniform(0, 0.8 * self.usual_seconds)
            has_enough_kills = self.num_kills >= max_kills
            while not run.has_ended and (has_enough_kills or time.monotonic() < next_kill_time):
                monitor.update()
                self._check_orphans()
                time.sleep(0.02)
            if not run.has_ended and not has_enough_kills:
                # A point of a search fails if its worker dies twice, because its settings may be the cause.
                can_kill_worker = not (was_killed and self.workspace.kind == "search")
                victims = [victim for victim in VICTIM_WEIGHTS if victim != "a worker" or can_kill_worker]
                (victim,) = rng.choices(victims, [VICTIM_WEIGHTS[name] for name in victims])
                was_killed |= self._kill_victim(run, victim, rng.choice(SIGNALS), rng)
        return was_killed

    def _kill_victim(self, run: StartedRun, victim: str, signal_number: signal.Signals, rng: random.Random) -> bool:
        """Kill a worker, the parent or all processes; return whether a process was killed."""
        workers = run.list_workers()
        if victim == "a worker" and not workers:
            victim = "the parent"  # no worker has started yet, or all have ended
        pids = [rng.choice(workers).pid] if victim == "a worker" else [run.process.pid]
        if victim == "parent and workers":
            pids += [worker.pid for worker in workers]
        was_killed = False
        for pid in pids:
            try:
                os.kill(pid, signal_number)
                was_killed = True
            except ProcessLookupError:
                pass  # it has just ended
        if victim != "a worker":
            run.process.wait()
            self.orphans += [(worker, time.monotonic()) for worker in workers]
        if was_killed:
            self.kill_counts[victim] += 1
        return was_killed

    def _check_orphans(self) -> None:
        """Check that workers end soon after their parent."""
        remaining_orphans = []
        for worker, orphaned_at in self.orphans:
            seconds = time.monotonic() - orphaned_at
            if not is_alive(worker):
                self.max_orphan_seconds = max(self.max_orphan_seconds, seconds)
            elif seconds > ORPHAN_TIMEOUT:
                self.errors.append(f"a worker was alive {seconds:.0f} s after its parent was killed")
                worker.kill()
            else:
                remaining_orphans.append((worker, orphaned_at))
        self.orphans = remaining_orphans

    def _wait_for_orphans(self) -> None:
        while self.orphans:
            self._check_orphans()
            time.sleep(0.05)

    def build_outcome(self) -> FaultOutcome:
        counts = ", ".join(f"{victim} {count}" for victim, count in sorted(self.kill_counts.items()))
        observation = (
            f"{self.num_finished} experiments of {len(self.expected) - 1} runs ended with the results of the reference "
            f"run; killed: {counts}; workers ended within {self.max_orphan_seconds:.1f} s of their parent"
        )
        name = f"{self.title} ({self.workspace.kind})"
        return FaultOutcome(name, observation, self.num_kills, self.num_kills, tuple(self.lost), tuple(self.errors))
