"""The server's side of the model process: a child with torch that is started when it is needed and again when it has
died, sent home when nothing was asked for a while, and told to stop as soon as nobody waits for its answer.

A few requests are worked on at once, in turns; the next ones wait in the order in which they came, and beyond a limit
they are turned away.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from itertools import count
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request

from headtohead.errors import RequestError

AT_ONCE = 4
MOST_WAITING = 12
LARGEST_ANSWER = 64 << 20
LOOK_EVERY = 0.3
"""seconds between looks at whether a client is still there"""
GONE = "the process that holds the models has ended; ask again"
Json = dict[str, Any]


@dataclass(frozen=True)
class Patience:
    """How long is waited for what, in seconds."""

    idle: float = 600.0
    """without a question: then the process is sent home"""
    step: float = 60.0
    """of computing for one step, a token for instance"""
    request: float = 180.0
    """of computing for one request"""
    silent: float = 300.0
    """without a word while there is work: then the process is taken for dead"""


class Models:
    """One child, and the requests that it works on."""

    def __init__(self, patience: Patience | None = None) -> None:
        self.patience = patience or Patience()
        self._child: asyncio.subprocess.Process | None = None
        self._listener: asyncio.Task[None] | None = None
        self._answers: dict[int, asyncio.Queue[Json]] = {}
        self._numbers = count(1)
        self._turn = asyncio.Semaphore(AT_ONCE)
        self._waiting = 0
        self._starting = asyncio.Lock()
        self._idle: asyncio.TimerHandle | None = None

    @property
    def pid(self) -> int | None:
        """The child's number, while there is one."""
        return self._child.pid if self._child is not None and self._child.returncode is None else None

    @property
    def at_work(self) -> int:
        """Requests that the child works on."""
        return len(self._answers)

    async def ask(self, question: Json) -> AsyncGenerator[Json]:
        """The answers to a question, as they come. Whoever stops listening stops the work."""
        if self._waiting >= MOST_WAITING:
            raise HTTPException(503, "too many ask the models at once", {"retry-after": "5"})
        self._waiting += 1
        try:
            await self._turn.acquire()
        finally:
            self._waiting -= 1
        number, answers = next(self._numbers), asyncio.Queue[Json]()
        self._answers[number] = answers
        ended = False
        try:
            await self._tell({**question, "request": number})
            while True:
                answer = await self._next(answers)
                if answer["event"] in ("done", "failed", "gone"):
                    ended = True
                    _raise(answer)
                    return
                yield answer
        finally:
            del self._answers[number]
            self._turn.release()
            if not ended and self.pid is not None:
                self._say({"stop": number})
            self._rest()

    async def answer(self, request: Request, question: Json) -> Json:
        """The one answer to a question, unless the client goes away before it is there."""
        async with aclosing(self.ask(question)) as answers:
            return await unless_gone(request, anext(answers))

    async def _next(self, answers: asyncio.Queue[Json]) -> Json:
        try:
            async with asyncio.timeout(self.patience.silent):
                return await answers.get()
        except TimeoutError:
            await self.end()
            return {"event": "gone"}

    async def _tell(self, question: Json) -> None:
        async with self._starting:
            if self.pid is None:
                await self._start()
        if self._idle is not None:
            self._idle.cancel()
        self._say(question)

    def _say(self, line: Json) -> None:
        assert self._child is not None and self._child.stdin is not None
        with contextlib.suppress(OSError, RuntimeError):  # it has died; the listener says so
            self._child.stdin.write(json.dumps(line).encode() + b"\n")

    async def _start(self) -> None:
        threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        self._child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "headtohead.web.models.process",
            str(self.patience.step),
            str(self.patience.request),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            limit=LARGEST_ANSWER,
            env={**os.environ, **threads, "TOKENIZERS_PARALLELISM": "false"},
        )
        self._listener = asyncio.create_task(self._listen(self._child))

    async def _listen(self, child: asyncio.subprocess.Process) -> None:
        """Hand each answer to whoever asked; when the child has ended, tell them all."""
        assert child.stdout is not None
        try:
            while line := await child.stdout.readline():
                answer = json.loads(line)
                if (waiting := self._answers.get(answer.pop("request"))) is not None:
                    waiting.put_nowait(answer)
        except (ValueError, OSError):  # an answer that is too large, or no answer
            child.kill()
        await child.wait()
        if self._child is child:
            self._child = None
            for waiting in self._answers.values():
                waiting.put_nowait({"event": "gone"})

    def _rest(self) -> None:
        """Nobody asks: after a while the child goes, and its memory with it."""
        if not self._answers:
            if self._idle is not None:
                self._idle.cancel()
            self._idle = asyncio.get_running_loop().call_later(self.patience.idle, self._send_home)

    def _send_home(self) -> None:
        if not self._answers and self._child is not None and self._child.stdin is not None:
            self._child.stdin.close()  # it reads the end, and ends

    async def end(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
        child = self._child
        if child is not None and child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            if self._listener is not None:
                await self._listener


def _raise(answer: Json) -> None:
    if answer["event"] == "failed":
        raise RequestError(answer["message"])
    if answer["event"] == "gone":
        raise HTTPException(503, GONE, {"retry-after": "1"})


async def unless_gone(request: Request, answer: Any) -> Json:
    """What is waited for, while the client waits too."""
    task = asyncio.ensure_future(answer)
    try:
        while True:
            await asyncio.wait({task}, timeout=LOOK_EVERY)
            if task.done():
                found: Json = task.result()
                return found
            if await request.is_disconnected():
                raise HTTPException(499, "the client has gone")
    finally:
        task.cancel()
        with contextlib.suppress(BaseException):
            await task


def models_of(request: Request) -> Models:
    found: Models = request.app.state.models
    return found
