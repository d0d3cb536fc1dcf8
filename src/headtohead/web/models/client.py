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

MAX_CONCURRENT_REQUESTS = 4
MAX_QUEUED_REQUESTS = 12
MAX_RESPONSE_BYTES = 64 << 20
DISCONNECT_POLL_SECONDS = 0.3
"""seconds between looks at whether a client is still there"""
PROCESS_EXITED_MESSAGE = "the process that holds the models has ended; ask again"
JsonDict = dict[str, Any]


@dataclass(frozen=True)
class ProcessTimeouts:
    """How long is waited for what, in seconds."""

    idle: float = 600.0
    """without a question: then the process is sent home"""
    step: float = 60.0
    """of computing for one step, a token for instance"""
    request_cpu_seconds: float = 180.0
    """of computing for one request"""
    unresponsive_seconds: float = 300.0
    """without a word while there is work: then the process is taken for dead"""


class ModelProcessClient:
    """One child, and the requests that it works on."""

    def __init__(self, timeouts: ProcessTimeouts | None = None) -> None:
        self.patience = timeouts or ProcessTimeouts()
        self._child: asyncio.subprocess.Process | None = None
        self._listener: asyncio.Task[None] | None = None
        self._response_queues: dict[int, asyncio.Queue[JsonDict]] = {}
        self._request_ids = count(1)
        self._concurrency_limit = asyncio.Semaphore(MAX_CONCURRENT_REQUESTS)
        self._waiting = 0
        self._start_lock = asyncio.Lock()
        self._idle_timer: asyncio.TimerHandle | None = None

    @property
    def pid(self) -> int | None:
        """The child's number, while there is one."""
        return self._child.pid if self._child is not None and self._child.returncode is None else None

    @property
    def num_active_requests(self) -> int:
        """Requests that the child works on."""
        return len(self._response_queues)

    async def ask(self, message: JsonDict) -> AsyncGenerator[JsonDict]:
        """The answers to a question, as they come. Whoever stops listening stops the work."""
        if self._waiting >= MAX_QUEUED_REQUESTS:
            raise HTTPException(503, "too many ask the models at once", {"retry-after": "5"})
        self._waiting += 1
        try:
            await self._concurrency_limit.acquire()
        finally:
            self._waiting -= 1
        number, answers = next(self._request_ids), asyncio.Queue[JsonDict]()
        self._response_queues[number] = answers
        ended = False
        try:
            await self._tell({**message, "request": number})
            while True:
                answer = await self._next(answers)
                if answer["event"] in ("done", "failed", "gone"):
                    ended = True
                    _raise_for_event(answer)
                    return
                yield answer
        finally:
            del self._response_queues[number]
            self._concurrency_limit.release()
            if not ended and self.pid is not None:
                self._say({"stop": number})
            self._rest()

    async def answer(self, request: Request, message: JsonDict) -> JsonDict:
        """The one answer to a question, unless the client goes away before it is there."""
        async with aclosing(self.ask(message)) as answers:
            return await await_unless_disconnected(request, anext(answers))

    async def _next(self, responses: asyncio.Queue[JsonDict]) -> JsonDict:
        try:
            async with asyncio.timeout(self.patience.unresponsive_seconds):
                return await responses.get()
        except TimeoutError:
            await self.end()
            return {"event": "gone"}

    async def _tell(self, message: JsonDict) -> None:
        async with self._start_lock:
            if self.pid is None:
                await self._start()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self._say(message)

    def _say(self, message: JsonDict) -> None:
        assert self._child is not None and self._child.stdin is not None
        with contextlib.suppress(OSError, RuntimeError):  # it has died; the listener says so
            self._child.stdin.write(json.dumps(message).encode() + b"\n")

    async def _start(self) -> None:
        threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        self._child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "headtohead.web.models.process",
            str(self.patience.step),
            str(self.patience.request_cpu_seconds),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            limit=MAX_RESPONSE_BYTES,
            env={**os.environ, **threads, "TOKENIZERS_PARALLELISM": "false"},
        )
        self._listener = asyncio.create_task(self._listen(self._child))

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        """Hand each answer to whoever asked; when the child has ended, tell them all."""
        assert process.stdout is not None
        try:
            while line := await process.stdout.readline():
                answer = json.loads(line)
                if (waiting := self._response_queues.get(answer.pop("request"))) is not None:
                    waiting.put_nowait(answer)
        except (ValueError, OSError):  # an answer that is too large, or no answer
            process.kill()
        await process.wait()
        if self._child is process:
            self._child = None
            for waiting in self._response_queues.values():
                waiting.put_nowait({"event": "gone"})

    def _rest(self) -> None:
        """Nobody asks: after a while the child goes, and its memory with it."""
        if not self._response_queues:
            if self._idle_timer is not None:
                self._idle_timer.cancel()
            self._idle_timer = asyncio.get_running_loop().call_later(self.patience.idle, self._close_idle_process)

    def _close_idle_process(self) -> None:
        if not self._response_queues and self._child is not None and self._child.stdin is not None:
            self._child.stdin.close()  # it reads the end, and ends

    async def end(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        child = self._child
        if child is not None and child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            if self._listener is not None:
                await self._listener


def _raise_for_event(response: JsonDict) -> None:
    if response["event"] == "failed":
        raise RequestError(response["message"])
    if response["event"] == "gone":
        raise HTTPException(503, PROCESS_EXITED_MESSAGE, {"retry-after": "1"})


async def await_unless_disconnected(request: Request, awaitable: Any) -> JsonDict:
    """What is waited for, while the client waits too."""
    task = asyncio.ensure_future(awaitable)
    try:
        while True:
            await asyncio.wait({task}, timeout=DISCONNECT_POLL_SECONDS)
            if task.done():
                found: JsonDict = task.result()
                return found
            if await request.is_disconnected():
                raise HTTPException(499, "the client has gone")
    finally:
        task.cancel()
        with contextlib.suppress(BaseException):
            await task


def get_model_client(request: Request) -> ModelProcessClient:
    found: ModelProcessClient = request.app.state.models
    return found
