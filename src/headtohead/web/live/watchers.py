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

from headtohead.web.live.experiment_state import Live, Reader, thinned
from headtohead.web.live.render_worker import Helper

EVERY = 1.0
HEARTBEAT = 15.0
SHARE = 20
"""what took so long is done again after so many times that long: a look in processor time, a picture by the clock and
after a minute at the latest"""
KEPT = 20
"""watchers whose pictures are kept for the next one who looks"""
Json = dict[str, Any]
Render = Callable[[str, Json], str]


@dataclass(frozen=True)
class Region:
    """A piece of the page, ready to be sent."""

    version: int
    sent: bytes


class Watcher:
    """Looks at one experiment while somebody wants to know."""

    def __init__(self, root: Path, name: str, render: Render, helper: Helper) -> None:
        self.reader = Reader(root, name)
        self.name, self.render, self.helper = name, render, helper
        self.regions: dict[str, Region] = {}
        self.version = 0
        self.clients = 0
        self.born = int(time.time() * 1000)
        self.is_over = False
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._pictures: asyncio.Task[None] | None = None
        self._shown: dict[str, Any] = {}
        self._not_before: dict[str, float] = {}
        self.judged: Json = {}
        self.curves: Json = {}

    async def events(self, last: str = "") -> AsyncGenerator[bytes]:
        """What one client is sent: every region now, then those that change, and a sign of life in between."""
        self.clients += 1
        try:
            if self._task is None:
                self._task = asyncio.create_task(self._look())
            seen = self.version if last == f"{self.born}.{self.version}" else 0
            yield b"retry: 2000\n\n"
            while not self.is_over:
                news, now = self._news, self.version
                for region in [one for one in self.regions.values() if one.version > seen]:
                    yield region.sent
                seen = now
                try:
                    async with asyncio.timeout(HEARTBEAT):
                        await news.wait()
                except TimeoutError:
                    yield b": still here\n\n"
                if self._task is not None and self._task.done():
                    failed, self._task = self._task, None
                    failed.result()
        finally:
            self.clients -= 1
            if self.clients == 0:
                self._rest()

    def _rest(self) -> None:
        for task in (self._task, self._pictures):
            if task is not None:
                task.cancel()
        self._task = self._pictures = None

    def end(self) -> None:
        self.is_over = True
        self._wake()

    async def _look(self) -> None:
        try:
            while True:
                began = time.process_time()
                await self.update()
                await asyncio.sleep(max(EVERY, SHARE * (time.process_time() - began)))
        finally:
            self._wake()  # so that a fault of ours is raised where it is seen, in the stream of each client

    async def update(self) -> Live:
        """Read, and send what is new."""
        live, audits, known = await asyncio.to_thread(self._read)
        if known and known["verdicts"] != self.judged.get("verdicts"):
            self.judged = known  # the words are there at once, the picture follows
        told = asdict(replace(live, curves={}))
        changed = self._show("status", {"live": live}, told)
        changed |= self._show("trials", {"live": live}, told)
        changed |= self._show("audits", {"audits": audits}, audits)
        changed |= self._show("verdicts", {"judged": self.judged, "live": live}, (self.judged, live.state))
        changed |= self._show("curves", {"curves": self.curves, "live": live}, (self.curves, bool(live.curves)))
        if changed:
            self._wake()
        if self._task is not None and (self._pictures is None or self._pictures.done()):
            self._pictures = asyncio.create_task(self._draw(live))
        return live

    def _read(self) -> tuple[Live, Json, Json]:
        live = self.reader.read()
        return live, self.reader.audits(), self.reader.judged(live)

    def _show(self, name: str, view: Json, about: Any) -> bool:
        """Render a region, unless all that it shows (`about`) is as it was."""
        if name in self.regions and self._shown.get(name) == about:
            return False
        self._shown[name] = about
        html = self.render(name, {"name": self.name, **view})
        sent = self.regions.get(name)
        data = json.dumps({"region": name, "html": html})
        version = self.version + 1
        line = f"event: region\nid: {self.born}.{version}\ndata: {data}\n\n".encode()
        if sent is not None and sent.sent.partition(b"data:")[2] == line.partition(b"data:")[2]:
            return False
        self.version = version
        self.regions[name] = Region(version, line)
        return True

    def _wake(self) -> None:
        old, self._news = self._news, asyncio.Event()
        old.set()

    async def _draw(self, live: Live) -> None:
        """Charts and verdicts by the helper, as often as they are worth their price; at the end always."""
        await self._asked("verdicts", (live.finished, live.state, self.reader.is_judged(live)), self._judge, live)
        points = sum(len(p) for by in live.curves.values() for s in by.values() for p in s.values())
        await self._asked("curves", (points, live.state), self._draw_curves, live)

    async def _asked(self, what: str, about: Any, work: Callable[[Live], Awaitable[bool]], live: Live) -> None:
        """Have it made, if it is due. What could not be made is tried again later, also when the training is over."""
        key, failed = f"asked {what}", f"failed {what}"
        may_wait = live.state in ("running", "starting") or self._shown.get(failed)
        if self._shown.get(key) == about or (may_wait and time.monotonic() < self._not_before.get(what, 0)):
            return
        began = time.monotonic()
        self._shown[failed] = not await work(live)
        if not self._shown[failed]:
            self._shown[key] = about
        self._not_before[what] = time.monotonic() + SHARE * min(time.monotonic() - began, 3)

    async def _judge(self, live: Live) -> bool:
        if not any(t.state == "finished" and t.variant == "baseline" for t in live.trials):
            return True
        known, found = self.reader.judged(live), self.reader.findings()
        asked: Json = {"what": "judge", "folder": str(self.reader.folder)}
        if known:
            asked = {"what": "shown", "findings": {k: found.get(k) for k in ("verdicts", "metric", "experiment")}}
        answer = await self.helper.ask(asked)
        if answer.get("verdicts"):
            self.judged = {"final": False, **known, **answer}
        return bool(answer)

    async def _draw_curves(self, live: Live) -> bool:
        longest = max((len(p) for by in live.curves.values() for s in by.values() for p in s.values()), default=0)
        if longest == 0 or (longest == 1 and live.state == "running"):  # a point is no curve yet
            return True
        found = {"metric": live.metric, "curves": thinned(live.curves)}
        answer = await self.helper.ask({"what": "curves", "findings": found})
        self.curves = answer if answer.get("chart") else self.curves
        return bool(answer)


class Watchers:
    """All watchers of the server."""

    def __init__(self, root: Path, render: Render) -> None:
        self.root, self.render, self.helper = root, render, Helper()
        self._by_name: dict[str, Watcher] = {}

    def watcher(self, name: str) -> Watcher:
        """The one for this experiment; of those that nobody looks at any more, the oldest are forgotten."""
        idle = [one for one, watcher in self._by_name.items() if watcher.clients == 0 and one != name]
        for other in idle[: max(0, len(idle) - KEPT)]:
            del self._by_name[other]
        if name not in self._by_name:
            self._by_name[name] = Watcher(self.root, name, self.render, self.helper)
        return self._by_name[name]

    def end(self) -> None:
        """Everybody who watches is let go."""
        for watcher in self._by_name.values():
            watcher.end()
