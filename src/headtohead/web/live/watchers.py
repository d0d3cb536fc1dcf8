"""One watcher for each experiment that somebody looks at, shared by all who do, and gone when nobody does.

The page has regions (trials, curves, verdicts, ...). A watcher asks the disk about once a second what has changed,
renders a region once when it has, and wakes the clients. A client keeps nothing but which versions it was sent: one
that is slow simply gets the latest when it is ready, and nothing piles up for it. How often is looked and drawn goes
by what it takes, not by how many look.
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
"""what took so long is done again after so many times that long: a look in processor time, a picture by the clock and
after a minute at the latest"""
MAX_IDLE_WATCHERS = 20
"""watchers whose pictures are kept for the next one who looks"""
JsonDict = dict[str, Any]
RenderRegion = Callable[[str, JsonDict], str]


@dataclass(frozen=True)
class RenderedRegion:
    """A piece of the page, ready to be sent."""

    version: int
    sent: bytes


class ExperimentWatcher:
    """Looks at one experiment while somebody wants to know."""

    def __init__(self, root: Path, name: str, render_region: RenderRegion, render_worker: RenderWorker) -> None:
        self.reader = ExperimentReader(root, name)
        self.name, self.render, self.render_worker = name, render_region, render_worker
        self.regions: dict[str, RenderedRegion] = {}
        self.version = 0
        self.clients = 0
        self.created_ms = int(time.time() * 1000)
        self.is_over = False
        self._update_event = asyncio.Event()
        self._poll_task: asyncio.Task[None] | None = None
        self._render_task: asyncio.Task[None] | None = None
        self._shown: dict[str, Any] = {}
        self._next_render_time: dict[str, float] = {}
        self.judged: JsonDict = {}
        self.curves: JsonDict = {}

    async def events(self, last_event_id: str = "") -> AsyncGenerator[bytes]:
        """What one client is sent: every region now, then those that change, and a sign of life in between."""
        self.clients += 1
        try:
            if self._poll_task is None:
                self._poll_task = asyncio.create_task(self._poll())
            seen = self.version if last_event_id == f"{self.created_ms}.{self.version}" else 0
            yield b"retry: 2000\n\n"
            while not self.is_over:
                news, now = self._update_event, self.version
                for region in [one for one in self.regions.values() if one.version > seen]:
                    yield region.sent
                seen = now
                try:
                    async with asyncio.timeout(HEARTBEAT_SECONDS):
                        await news.wait()
                except TimeoutError:
                    yield b": still here\n\n"
                if self._poll_task is not None and self._poll_task.done():
                    failed, self._poll_task = self._poll_task, None
                    failed.result()
        finally:
            self.clients -= 1
            if self.clients == 0:
                self._rest()

    def _rest(self) -> None:
        for task in (self._poll_task, self._render_task):
            if task is not None:
                task.cancel()
        self._poll_task = self._render_task = None

    def end(self) -> None:
        self.is_over = True
        self._notify_clients()

    async def _poll(self) -> None:
        try:
            while True:
                began = time.process_time()
                await self.update()
                await asyncio.sleep(max(POLL_SECONDS, COOLDOWN_FACTOR * (time.process_time() - began)))
        finally:
            self._notify_clients()  # so that a fault of ours is raised where it is seen, in the stream of each client

    async def update(self) -> ExperimentState:
        """Read, and send what is new."""
        live, audits, known = await asyncio.to_thread(self._read)
        if known and known["verdicts"] != self.judged.get("verdicts"):
            self.judged = known  # the words are there at once, the picture follows
        told = asdict(replace(live, curves={}))
        changed = self._update_region("status", {"live": live}, told)
        changed |= self._update_region("trials", {"live": live}, told)
        changed |= self._update_region("audits", {"audits": audits}, audits)
        changed |= self._update_region("verdicts", {"judged": self.judged, "live": live}, (self.judged, live.state))
        changed |= self._update_region(
            "curves", {"curves": self.curves, "live": live}, (self.curves, bool(live.curves))
        )
        if changed:
            self._notify_clients()
        if self._poll_task is not None and (self._render_task is None or self._render_task.done()):
            self._render_task = asyncio.create_task(self._draw(live))
        return live

    def _read(self) -> tuple[ExperimentState, JsonDict, JsonDict]:
        live = self.reader.read()
        return live, self.reader.audits(), self.reader.judged(live)

    def _update_region(self, region_name: str, variables: JsonDict, inputs: Any) -> bool:
        """Render a region, unless all that it shows (`about`) is as it was."""
        if region_name in self.regions and self._shown.get(region_name) == inputs:
            return False
        self._shown[region_name] = inputs
        html = self.render(region_name, {"name": self.name, **variables})
        sent = self.regions.get(region_name)
        data = json.dumps({"region": region_name, "html": html})
        version = self.version + 1
        line = f"event: region\nid: {self.created_ms}.{version}\ndata: {data}\n\n".encode()
        if sent is not None and sent.sent.partition(b"data:")[2] == line.partition(b"data:")[2]:
            return False
        self.version = version
        self.regions[region_name] = RenderedRegion(version, line)
        return True

    def _notify_clients(self) -> None:
        old, self._update_event = self._update_event, asyncio.Event()
        old.set()

    async def _draw(self, state: ExperimentState) -> None:
        """Charts and verdicts by the helper, as often as they are worth their price; at the end always."""
        await self._asked(
            "verdicts", (state.finished, state.state, self.reader.has_current_findings(state)), self._judge, state
        )
        points = sum(len(p) for by in state.curves.values() for s in by.values() for p in s.values())
        await self._asked("curves", (points, state.state), self._render_curves, state)

    async def _asked(
        self,
        region_name: str,
        inputs: Any,
        render: Callable[[ExperimentState], Awaitable[bool]],
        state: ExperimentState,
    ) -> None:
        """Have it made, if it is due. What could not be made is tried again later, also when the training is over."""
        key, failed = f"asked {region_name}", f"failed {region_name}"
        may_wait = state.state in ("running", "starting") or self._shown.get(failed)
        if self._shown.get(key) == inputs or (
            may_wait and time.monotonic() < self._next_render_time.get(region_name, 0)
        ):
            return
        began = time.monotonic()
        self._shown[failed] = not await render(state)
        if not self._shown[failed]:
            self._shown[key] = inputs
        self._next_render_time[region_name] = time.monotonic() + COOLDOWN_FACTOR * min(time.monotonic() - began, 3)

    async def _judge(self, state: ExperimentState) -> bool:
        if not any(t.state == "finished" and t.variant == "baseline" for t in state.trials):
            return True
        known, found = self.reader.judged(state), self.reader.findings()
        asked: JsonDict = {"what": "judge", "folder": str(self.reader.folder)}
        if known:
            asked = {"what": "shown", "findings": {k: found.get(k) for k in ("verdicts", "metric", "experiment")}}
        answer = await self.render_worker.ask(asked)
        if answer.get("verdicts"):
            self.judged = {"final": False, **known, **answer}
        return bool(answer)

    async def _render_curves(self, state: ExperimentState) -> bool:
        longest = max((len(p) for by in state.curves.values() for s in by.values() for p in s.values()), default=0)
        if longest == 0 or (longest == 1 and state.state == "running"):  # a point is no curve yet
            return True
        found = {"metric": state.metric, "curves": downsample_curves(state.curves)}
        answer = await self.render_worker.ask({"what": "curves", "findings": found})
        self.curves = answer if answer.get("chart") else self.curves
        return bool(answer)


class WatcherRegistry:
    """All watchers of the server."""

    def __init__(self, root: Path, render_region: RenderRegion) -> None:
        self.root, self.render, self.render_worker = root, render_region, RenderWorker()
        self._by_name: dict[str, ExperimentWatcher] = {}

    def get_watcher(self, name: str) -> ExperimentWatcher:
        """The one for this experiment; of those that nobody looks at any more, the oldest are forgotten."""
        idle = [one for one, watcher in self._by_name.items() if watcher.clients == 0 and one != name]
        for other in idle[: max(0, len(idle) - MAX_IDLE_WATCHERS)]:
            del self._by_name[other]
        if name not in self._by_name:
            self._by_name[name] = ExperimentWatcher(self.root, name, self.render, self.render_worker)
        return self._by_name[name]

    def end(self) -> None:
        """Everybody who watches is let go."""
        for watcher in self._by_name.values():
            watcher.end()
