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
from collections.abc import AsyncGenerator, Awaitable, Callable
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
"""watchers without clients that are kept, with their charts"""
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
        self.reader = ExperimentReader(root, name)
        self.name, self.render, self.render_worker = name, render_region, render_worker
        self.regions: dict[str, RenderedRegion] = {}
        self.version = 0
        self.clients = 0
        self.created_ms = int(time.time() * 1000)
        self.is_closed = False
        self._update_event = asyncio.Event()
        self._poll_task: asyncio.Task[None] | None = None
        self._render_task: asyncio.Task[None] | None = None
        self._rendered_inputs: dict[str, Any] = {}
        self._next_render_time: dict[str, float] = {}
        self.judged: JsonDict = {}
        self.curves: JsonDict = {}

    async def events(self, last_event_id: str = "") -> AsyncGenerator[bytes]:
        """Yield every region once, then each region that changes, with heartbeats in between."""
        self.clients += 1
        try:
            if self._poll_task is None:
                self._poll_task = asyncio.create_task(self._poll())
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
                    failed, self._poll_task = self._poll_task, None
                    failed.result()
        finally:
            self.clients -= 1
            if self.clients == 0:
                self._cancel_tasks()

    def _cancel_tasks(self) -> None:
        for task in (self._poll_task, self._render_task):
            if task is not None:
                task.cancel()
        self._poll_task = self._render_task = None

    def end(self) -> None:
        self.is_closed = True
        self._notify_clients()

    async def _poll(self) -> None:
        """Poll the experiment, waiting longer between polls the more CPU time an update takes."""
        try:
            while True:
                start = time.process_time()
                await self.update()
                await asyncio.sleep(max(POLL_SECONDS, COOLDOWN_FACTOR * (time.process_time() - start)))
        finally:
            self._notify_clients()  # so that an exception is raised in each client's stream

    async def update(self) -> ExperimentState:
        """Read the state and update the regions that changed."""
        live, audits, judged = await asyncio.to_thread(self._read)
        if judged and judged["verdicts"] != self.judged.get("verdicts"):
            self.judged = judged  # the text is available immediately; the chart follows later
        progress = asdict(replace(live, curves={}))
        changed = self._update_region("status", {"live": live}, progress)
        changed |= self._update_region("trials", {"live": live}, progress)
        changed |= self._update_region("audits", {"audits": audits}, audits)
        changed |= self._update_region("verdicts", {"judged": self.judged, "live": live}, (self.judged, live.state))
        changed |= self._update_region(
            "curves", {"curves": self.curves, "live": live}, (self.curves, bool(live.curves))
        )
        if changed:
            self._notify_clients()
        if self._poll_task is not None and (self._render_task is None or self._render_task.done()):
            self._render_task = asyncio.create_task(self._render_slow_regions(live))
        return live

    def _read(self) -> tuple[ExperimentState, JsonDict, JsonDict]:
        live = self.reader.read()
        return live, self.reader.audits(), self.reader.judged(live)

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
        previous, self._update_event = self._update_event, asyncio.Event()
        previous.set()

    async def _render_slow_regions(self, state: ExperimentState) -> None:
        """Render charts and interim verdicts at a rate that bounds their cost, and always once at the end."""
        await self._render_if_due(
            "verdicts",
            (state.finished, state.state, self.reader.has_current_findings(state)),
            self._render_verdicts,
            state,
        )
        points = sum(len(p) for by in state.curves.values() for s in by.values() for p in s.values())
        await self._render_if_due("curves", (points, state.state), self._render_curves, state)

    async def _render_if_due(
        self,
        region_name: str,
        inputs: Any,
        render: Callable[[ExperimentState], Awaitable[bool]],
        state: ExperimentState,
    ) -> None:
        """Render if due. Failed attempts are retried later, even after training has ended."""
        key, failed = f"requested {region_name}", f"failed {region_name}"
        may_wait = state.state in ("running", "starting") or self._rendered_inputs.get(failed)
        if self._rendered_inputs.get(key) == inputs or (
            may_wait and time.monotonic() < self._next_render_time.get(region_name, 0)
        ):
            return
        start = time.monotonic()
        self._rendered_inputs[failed] = not await render(state)
        if not self._rendered_inputs[failed]:
            self._rendered_inputs[key] = inputs
        self._next_render_time[region_name] = time.monotonic() + COOLDOWN_FACTOR * min(time.monotonic() - start, 3)

    async def _render_verdicts(self, state: ExperimentState) -> bool:
        """Render final or interim verdicts; return whether the render worker responded."""
        if not any(trial.state == "finished" and trial.variant == "baseline" for trial in state.trials):
            return True
        judged, findings = self.reader.judged(state), self.reader.findings()
        request: JsonDict = {"action": "judge", "folder": str(self.reader.folder)}
        if judged:
            shown_findings = findings.model_dump(mode="json", include={"warnings", "verdicts", "metric", "experiment"})
            request = {"action": "show", "findings": shown_findings}
        response = await self.render_worker.ask(request)
        if response.get("verdicts"):
            self.judged = {"final": False, **judged, **response}
        return bool(response)

    async def _render_curves(self, state: ExperimentState) -> bool:
        """Render the learning curves; return whether the render worker responded."""
        longest = max((len(p) for by in state.curves.values() for s in by.values() for p in s.values()), default=0)
        if longest == 0 or (longest == 1 and state.state == "running"):  # a single point is not a curve
            return True
        findings = {"metric": state.metric, "curves": downsample_curves(state.curves)}
        response = await self.render_worker.ask({"action": "curves", "findings": findings})
        self.curves = response if response.get("chart") else self.curves
        return bool(response)


class WatcherRegistry:
    """The server's watchers, one per open experiment."""

    def __init__(self, root: Path, render_region: RenderRegion) -> None:
        self.root, self.render, self.render_worker = root, render_region, RenderWorker()
        self._by_name: dict[str, ExperimentWatcher] = {}

    def get_watcher(self, name: str) -> ExperimentWatcher:
        """Return an experiment's watcher. The oldest watchers without clients are discarded."""
        idle = [idle_name for idle_name, watcher in self._by_name.items() if watcher.clients == 0 and idle_name != name]
        for idle_name in idle[: max(0, len(idle) - MAX_IDLE_WATCHERS)]:
            del self._by_name[idle_name]
        if name not in self._by_name:
            self._by_name[name] = ExperimentWatcher(self.root, name, self.render, self.render_worker)
        return self._by_name[name]

    def end(self) -> None:
        """Close all event streams."""
        for watcher in self._by_name.values():
            watcher.end()
