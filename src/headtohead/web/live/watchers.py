"""Server-sent events: one watcher per open experiment, shared by all clients.

The page has regions (trials, curves, verdicts, ...). A watcher polls the files about once a second, renders a region
when it has changed, and wakes the clients. Each client only tracks which versions it was sent: a slow client receives
the latest version once it is ready, so nothing is queued for it. The polling and rendering rates adapt to their own
cost and do not depend on the number of clients.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from headtohead.web.live.experiment_state import ExperimentReader, ExperimentState, downsample_curves
from headtohead.web.live.render_worker import RenderWorker

POLL_SECONDS = 1.0
HEARTBEAT_SECONDS = 15.0
COOLDOWN_FACTOR = 20
"""work is repeated only after this many times its duration: CPU time for polling, wall time (at most 3 s) for charts"""
MAX_IDLE_WATCHERS = 20
"""watchers without clients that stay in memory with their charts; older ones are discarded"""
JsonDict = dict[str, Any]
RenderRegion = Callable[[str, JsonDict], str]


@dataclass(frozen=True)
class RenderedRegion:
    """A page region, rendered as a server-sent event."""

    version: int
    event: bytes


class ExperimentWatcher:
    """Watches one experiment for as long as it has clients."""

    def __init__(self, root: Path, name: str, render_region: RenderRegion, render_worker: RenderWorker) -> None:
        """Prepare to watch an experiment for its first client."""
        self.reader = ExperimentReader(root, name)
        self.name, self.render, self.render_worker = name, render_region, render_worker
        self.regions: dict[str, RenderedRegion] = {}
        self.version = 0
        self.num_clients = 0
        self.created_ms = int(time.time() * 1000)
        self.is_closed = False
        self._update_event = asyncio.Event()
        self._poll_task: asyncio.Task[None] | None = None
        self._render_task: asyncio.Task[None] | None = None
        self._rendered_inputs: dict[str, Any] = {}
        self._next_render_time: dict[str, float] = {}
        self.shown_verdicts: JsonDict = {}
        self.rendered_curves: JsonDict = {}

    async def stream_events(self, last_event_id: str = "") -> AsyncGenerator[bytes]:
        """Yield every region once, then each region that changes, with heartbeats in between."""
        self.num_clients += 1
        try:
            if self._poll_task is None:
                self._poll_task = asyncio.create_task(self._poll_experiment())
            sent_version = self.version if last_event_id == f"{self.created_ms}.{self.version}" else 0
            yield b"retry: 2000\n\n"
            while not self.is_closed:
                update, version = self._update_event, self.version
                for region in [region for region in self.regions.values() if region.version > sent_version]:
                    yield region.event
                sent_version = version
                try:
                    async with asyncio.timeout(HEARTBEAT_SECONDS):
                        await update.wait()
                except TimeoutError:
                    yield b": heartbeat\n\n"
                if self._poll_task is not None and self._poll_task.done():
                    failed_task, self._poll_task = self._poll_task, None
                    failed_task.result()
        finally:
            self.num_clients -= 1
            if self.num_clients == 0:
                self._cancel_tasks()

    def _cancel_tasks(self) -> None:
        for task in (self._poll_task, self._render_task):
            if task is not None:
                task.cancel()
        self._poll_task = self._render_task = None

    def end(self) -> None:
        """Close the event streams of all clients."""
        self.is_closed = True
        self._notify_clients()

    async def _poll_experiment(self) -> None:
        """Poll the experiment, waiting longer between polls the more CPU time an update takes."""
        try:
            while True:
                start = time.process_time()
                await self.update_regions()
                await asyncio.sleep(max(POLL_SECONDS, COOLDOWN_FACTOR * (time.process_time() - start)))
        finally:
            self._notify_clients()  # so that an exception is raised in each client's stream

    async def update_regions(self) -> ExperimentState:
        """Read the state and update the regions that changed."""
        state, audits, verdicts = await asyncio.to_thread(self._read_experiment)
        if verdicts and verdicts["verdicts"] != self.shown_verdicts.get("verdicts"):
            self.shown_verdicts = verdicts  # the text is available immediately; the chart follows later
        progress = asdict(replace(state, curves={}))
        is_changed = self._update_region("status", {"live": state}, progress)
        is_changed |= self._update_region("trials", {"live": state}, progress)
        is_changed |= self._update_region("audits", {"audits": audits}, audits)
        is_changed |= self._update_region(
            "verdicts", {"judged": self.shown_verdicts, "live": state}, (self.shown_verdicts, state.state)
        )
        is_changed |= self._update_region(
            "curves", {"curves": self.rendered_curves, "live": state}, (self.rendered_curves, bool(state.curves))
        )
        if is_changed:
            self._notify_clients()
        if self._poll_task is not None and (self._render_task is None or self._render_task.done()):
            self._render_task = asyncio.create_task(self._render_slow_regions(state))
        return state

    def _read_experiment(self) -> tuple[ExperimentState, JsonDict, JsonDict]:
        """Return the watched experiment's state, audits and verdicts."""
        state = self.reader.read_state()
        return state, self.reader.read_audits(), self.reader.read_shown_verdicts(state)

    def _update_region(self, region_name: str, variables: JsonDict, inputs: Any) -> bool:
        """Render a region if its inputs have changed, and return whether it was updated."""
        if region_name in self.regions and self._rendered_inputs.get(region_name) == inputs:
            return False
        self._rendered_inputs[region_name] = inputs
        html = self.render(region_name, {"name": self.name, **variables})
        current = self.regions.get(region_name)
        data = json.dumps({"region": region_name, "html": html})
        version = self.version + 1
        event = f"event: region\nid: {self.created_ms}.{version}\ndata: {data}\n\n".encode()
        if current is not None and current.event.partition(b"data:")[2] == event.partition(b"data:")[2]:
            return False
        self.version = version
        self.regions[region_name] = RenderedRegion(version, event)
        return True

    def _notify_clients(self) -> None:
        """Wake the event stream of every client."""
        previous_event, self._update_event = self._update_event, asyncio.Event()
        previous_event.set()

    async def _render_slow_regions(self, state: ExperimentState) -> None:
        """Render charts and interim verdicts at a rate that bounds their cost, and always once at the end."""
        await self._render_if_due(
            "verdicts",
            (state.finished, state.state, self.reader.has_current_findings(state)),
            self._render_verdicts,
            state,
        )
        num_points = sum(map(len, _iterate_curves(state)))
        await self._render_if_due("curves", (num_points, state.state), self._render_curves, state)

    async def _render_if_due(
        self,
        region_name: str,
        inputs: Any,
        render: Callable[[ExperimentState], Awaitable[bool]],
        state: ExperimentState,
    ) -> None:
        """Render the charts of a slow region if its inputs have changed and its cooldown is over.

        Failed attempts are retried later, even after training has ended.
        """
        requested_key, failed_key = f"requested {region_name}", f"failed {region_name}"
        may_wait = state.state in ("running", "starting") or self._rendered_inputs.get(failed_key)
        if self._rendered_inputs.get(requested_key) == inputs or (
            may_wait and time.monotonic() < self._next_render_time.get(region_name, 0)
        ):
            return
        start = time.monotonic()
        self._rendered_inputs[failed_key] = not await render(state)
        if not self._rendered_inputs[failed_key]:
            self._rendered_inputs[requested_key] = inputs
        self._next_render_time[region_name] = time.monotonic() + COOLDOWN_FACTOR * min(time.monotonic() - start, 3)

    async def _render_verdicts(self, state: ExperimentState) -> bool:
        """Render final or interim verdicts; return whether the render worker responded."""
        if not any(trial.state == "finished" and trial.variant == "baseline" for trial in state.trials):
            return True
        final_verdicts, findings = self.reader.read_shown_verdicts(state), self.reader.read_findings()
        request: JsonDict = {"action": "judge", "folder": str(self.reader.folder)}
        if final_verdicts:
            shown_findings = findings.model_dump(mode="json", include={"warnings", "verdicts", "metric", "experiment"})
            request = {"action": "show", "findings": shown_findings}
        response = await self.render_worker.call(request)
        if response.get("verdicts"):
            self.shown_verdicts = {"final": False, **final_verdicts, **response}
        return bool(response)

    async def _render_curves(self, state: ExperimentState) -> bool:
        """Render the learning curves; return whether the render worker responded."""
        max_points = max(map(len, _iterate_curves(state)), default=0)
        if max_points == 0 or (max_points == 1 and state.state == "running"):  # a single point is not a curve
            return True
        findings = {"metric": state.metric, "curves": downsample_curves(state.curves)}
        response = await self.render_worker.call({"action": "curves", "findings": findings})
        self.rendered_curves = response if response.get("chart") else self.rendered_curves
        return bool(response)


def _iterate_curves(state: ExperimentState) -> Iterator[list[Any]]:
    """Yield the list of points of every learning curve, over all variants, splits and seeds."""
    for curves_by_split in state.curves.values():
        for curves_by_seed in curves_by_split.values():
            yield from curves_by_seed.values()


class WatcherRegistry:
    """The server's watchers, one per open experiment."""

    def __init__(self, root: Path, render_region: RenderRegion) -> None:
        self.root, self.render, self.render_worker = root, render_region, RenderWorker()
        self._by_name: dict[str, ExperimentWatcher] = {}

    def get_watcher(self, name: str) -> ExperimentWatcher:
        """Return an experiment's watcher. The oldest watchers without clients are discarded."""
        idle_names = [
            idle_name for idle_name, watcher in self._by_name.items() if watcher.num_clients == 0 and idle_name != name
        ]
        for idle_name in idle_names[: max(0, len(idle_names) - MAX_IDLE_WATCHERS)]:
            del self._by_name[idle_name]
        if name not in self._by_name:
            self._by_name[name] = ExperimentWatcher(self.root, name, self.render, self.render_worker)
        return self._by_name[name]

    def end(self) -> None:
        """Close all event streams."""
        for watcher in self._by_name.values():
            watcher.end()
